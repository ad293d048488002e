"""`opferry-server doctor`: the real command, against the simulator's libraries or none."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from opferry_server.backends.aclnn.operators import BINDINGS
from opferry_server.backends.aclnn.symbols import SYMBOLS
from opferry_server.config import load_config
from tests.doctor.running import report, run
from tests.support import simulator

MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
STAGE_ONE, STAGE_TWO = (symbol.name for symbol in BINDINGS["ApplyRotaryPosEmbGrad"].stages)
STAGES = [symbol.name for binding in BINDINGS.values() for symbol in binding.stages]
SHORT = ("--start-timeout-s", "3")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that looks like a host with two devices; any character device is as good."""
    made = tmp_path / "host"
    (made / "dev").mkdir(parents=True)
    for name in ("davinci0", "davinci1", *MANAGERS):
        (made / "dev" / name).symlink_to("/dev/null")
    driver = made / "usr/local/Ascend/driver/version.info"
    driver.parent.mkdir(parents=True)
    driver.write_text("Version=25.2.0\nascendhal_version=7.35\n")
    toolkit = made / "usr/local/Ascend/ascend-toolkit"
    toolkit.mkdir()
    (toolkit / "set_env.sh").touch()
    return made


def mine(name: str) -> tuple[str, ...]:
    """Return the words that make one of the simulator's packages the default."""
    return "--packages", f"mine={simulator.package(name)}", "--default-package", "mine"


def without_library(folder: Path, *names: str) -> dict[str, str]:
    """Return the simulator's environment with some libraries gone."""
    copy = folder / "libraries"
    shutil.copytree(simulator.libraries(), copy, ignore=shutil.ignore_patterns("packages", *names))
    return {"LD_LIBRARY_PATH": str(copy)}


def test_a_host_on_which_all_is_well(root: Path) -> None:
    """Every check is OK but for what only a person can judge; each symbol has its file."""
    libraries = simulator.libraries()
    environment = simulator.environment() | {
        "ASCEND_HOME_PATH": str(libraries),
        "ASCEND_OPP_PATH": str(libraries),
        "OPFERRY_DEVICE__DEVICE_MEMORY_BYTES": "20000000",
    }
    found = report("--workers", "2", environment=environment, root=root)
    assert found.status == 0
    assert found.fields["will_start"]
    assert found.fields["simulated"]
    assert {check["outcome"] for check in found.fields["checks"]} == {"OK"}
    symbols = {
        name: file
        for check in found.of_group("libraries")
        if check["name"].startswith(("symbols", "aclnn"))
        for name, file in check["facts"].items()
    }
    assert set(symbols) == {symbol.name for symbol in SYMBOLS} | set(STAGES)
    assert symbols["aclInit"] == str(libraries / "libascendcl.so")
    assert symbols["aclCreateTensor"] == str(libraries / "libnnopbase.so")
    library = libraries / "libopapi_transformer.so"
    assert symbols[STAGE_ONE] == str(library)
    package = found["package built-in"]
    assert package["facts"]["digest"] == hashlib.sha256(library.read_bytes()).hexdigest()
    assert package["facts"]["digest"] in package["found"]
    assert "simulator, no device" in found["SoC"]["found"]
    assert found["driver"]["found"].startswith("25.2.0 (")
    assert found["device count"]["facts"] == {"count": 2}
    assert found["CANN version"]["found"].count(".") == 2
    assert found["device 1 known answer"]["facts"]["answer"] == "PASSED"
    assert found["device 1 memory"]["facts"]["total_bytes"] == 4 * 2**30
    assert found["device 1 open"]["facts"]["operator_timeout_ms"] == "300000"
    assert {check["name"] for check in found.of_group("device nodes")} == {
        *(f"{root}/dev/{name}" for name in ("davinci0", "davinci1", *MANAGERS)),
        "driver",
    }


def test_a_simulator_needs_no_device_nodes() -> None:
    """The real command with nothing but LD_LIBRARY_PATH: the server would start, and it says so."""
    done = run(environment=simulator.environment())
    assert done.returncode == 0
    assert "  WARNING  /dev/davinci_manager" in done.stdout
    assert "simulator, which needs none" in done.stdout
    assert done.stdout.endswith("\naclnn will start on a simulator, no device\n")


def test_an_ordinary_machine() -> None:
    """Neither nodes nor CANN: that in words, each missing thing with its remedy, exit status 1."""
    done = run()
    assert done.returncode == 1
    assert done.stderr == ""
    for line in (
        "  FAILED   /dev/davinci[0-9]*",
        "  FAILED   /dev/hisi_hdc",
        "  WARNING  LD_LIBRARY_PATH",
        "  FAILED   libascendcl.so",
        "  FAILED   libnnopbase.so",
        "  UNKNOWN  aclInit",
        "  UNKNOWN  device 0 known answer",
        "remedy: source set_env.sh",
        "neither an NPU's device nodes nor CANN",
    ):
        assert line in done.stdout


def test_set_env_is_named_where_it_is_found(root: Path) -> None:
    """Installed but not sourced: the remedy is the command to type."""
    found = report(root=root)
    assert found.status == 1
    remedy = f"source {root}/usr/local/Ascend/ascend-toolkit/set_env.sh"
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH", "libascendcl.so"):
        assert found[name]["remedy"] == remedy
    assert found[f"{root}/dev/davinci0"]["outcome"] == "OK"
    assert found.fields["verdict"].endswith("begin with libascendcl.so")


def test_a_missing_operator_library_hides_nothing_else(root: Path, tmp_path: Path) -> None:
    """The runtime is still asked; devices are not opened, and the reason is said."""
    environment = without_library(tmp_path, "libopapi_transformer.so")
    found = report(environment=environment, root=root)
    assert found.status == 1
    assert found.failed == ["libopapi_transformer.so", "libopapi.so"]
    assert found["SoC"]["outcome"] == "OK"
    assert found[STAGE_ONE]["outcome"] == "UNKNOWN"
    assert found["device 0 open"]["found"] == "not tried after libopapi_transformer.so failed"


def test_a_missing_base_library_is_named(root: Path, tmp_path: Path) -> None:
    """And with it the library that needs it; the runtime is still asked."""
    found = report(environment=without_library(tmp_path, "libnnopbase.so"), root=root)
    assert found.status == 1
    assert found.failed[0] == "libnnopbase.so"
    assert found["symbols of nnopbase"]["outcome"] == "UNKNOWN"
    assert found["CANN version"]["outcome"] == "OK"


def test_a_package_without_the_operator(root: Path) -> None:
    """Its library loads; the functions of every operator are missing, by name."""
    found = report(*mine("no-symbol"), environment=simulator.environment(), root=root)
    assert found.status == 1
    assert found.failed == STAGES
    assert found["device 0 open"]["outcome"] == "UNKNOWN"


def test_a_package_with_one_operator_of_two(root: Path) -> None:
    """It will be served; the operator that it lacks is named, with what comes of that."""
    found = report(*mine("grad-only"), environment=simulator.environment(), root=root)
    assert found.status == 0
    assert found["device 0 known answer"]["facts"]["answer"] == "PASSED"
    for name in STAGES:
        lacking = name not in (STAGE_ONE, STAGE_TWO)
        assert found[name]["outcome"] == ("WARNING" if lacking else "OK")
        assert ("ApplyRotaryPosEmb will be refused" in found[name]["found"]) is lacking


def test_a_package_folder_without_a_library(root: Path) -> None:
    """The file that is missing is named; it is the configuration that is wrong."""
    done = run("--packages", "mine=/nowhere", environment=simulator.environment())
    assert done.returncode == 2
    assert "packages.mine: /nowhere has no op_api/lib/libcust_opapi.so" in done.stderr


def test_a_package_with_another_signature(root: Path) -> None:
    """It crashes in the known-answer case: the signal is told, and doctor lives."""
    found = report(*mine("shim"), environment=simulator.environment(), root=root)
    assert found.status == 1
    assert found.failed == ["device 0 known answer"]
    check = found["device 0 known answer"]
    assert "SIGSEGV" in check["found"]
    assert "--abi" in check["remedy"]
    assert found["device 0 memory"]["outcome"] == "UNKNOWN"


def test_a_wrong_answer_of_a_custom_package(root: Path) -> None:
    """As at the server's start: it is flagged."""
    found = report(*mine("wrong-sign"), environment=simulator.environment(), root=root)
    assert found.status == 0
    assert found["device 0 known answer"]["outcome"] == "WARNING"
    assert found["package mine"]["facts"]["kind"] == "custom"
    assert found["package built-in"]["outcome"] == "OK"


def test_a_wrong_answer_of_the_vendors_library(root: Path, tmp_path: Path) -> None:
    """As at the server's start: it must be right."""
    environment = without_library(tmp_path, "libopapi_transformer.so")
    wrong = Path(simulator.package("wrong-sign"), "op_api/lib/libcust_opapi.so")
    shutil.copy(wrong, Path(environment["LD_LIBRARY_PATH"], "libopapi_transformer.so"))
    found = report(environment=environment, root=root)
    assert found.status == 1
    assert found.failed == ["device 0 known answer"]


def test_packages_beside_the_default_are_tried_too(root: Path) -> None:
    """Each has its digest and its known answer; a broken one keeps nothing from starting."""
    names = ("good", "wrong-sign", "shim", "no-symbol")
    words = ",".join(f"{name}={simulator.package(name)}" for name in names)
    found = report("--packages", words, environment=simulator.environment(), root=root)
    assert found.status == 0
    outcomes = [found[f"package {name}"]["outcome"] for name in names]
    assert outcomes == ["OK", "WARNING", "WARNING", "WARNING"]
    assert found["package good"]["facts"]["answer"] == "PASSED"
    assert len(found["package good"]["facts"]["digest"]) == 64
    assert "FAILED" in found["package wrong-sign"]["found"]
    assert "SIGSEGV" in found["package shim"]["found"]
    assert STAGE_ONE in found["package no-symbol"]["found"]


def test_the_environments_package_is_the_one_that_runs(root: Path, tmp_path: Path) -> None:
    """It comes before the vendor's; both are listed, each with its digest."""
    folders = f"{tmp_path}:{simulator.package('good')}"
    environment = simulator.environment() | {"ASCEND_CUSTOM_OPP_PATH": folders}
    found = report(environment=environment, root=root)
    assert found.status == 0
    assert str(tmp_path) in found["ASCEND_CUSTOM_OPP_PATH"]["found"].partition("without")[2]
    assert found["package built-in"]["facts"]["file"].endswith("good/op_api/lib/libcust_opapi.so")
    assert found["package beside it"]["facts"]["kind"] == "vendor's"
    assert len(found["package beside it"]["facts"]["digest"]) == 64


def test_another_system_on_chip(root: Path) -> None:
    """Named, with those that would do; devices are not opened."""
    found = report(environment=simulator.environment(soc="Ascend910B"), root=root)
    assert found.status == 1
    assert found.failed == ["SoC"]
    assert "Ascend910B-simulated" in found["SoC"]["found"]
    assert "need one of Ascend950PR, Ascend950DT" in found["SoC"]["found"]
    assert found["device 0 open"]["found"] == "not tried after SoC failed"


def test_more_workers_than_devices(root: Path) -> None:
    """The count fails; the devices that exist are tried."""
    found = report("--workers", "2", environment=simulator.environment(device_count="1"), root=root)
    assert found.failed == ["device count"]
    assert found["device count"]["remedy"] == "--workers 1 at most"
    assert found["device 0 known answer"]["outcome"] == "OK"
    assert found["device 1 open"]["found"] == "there are 1 devices"


@pytest.mark.full
@pytest.mark.parametrize(
    ("rule", "name", "words"),
    [
        ("aclInit:*:hang", "aclInit", "did not return within 3 s"),
        ("aclInit:*:crash:6", "aclInit", "SIGABRT"),
        ("aclInit:*:crash:9", "aclInit", "SIGKILL (out of memory?"),
        ("aclInit:*:507033", "aclInit", "507033 (ACL_ERROR_RT_DEV_SETUP_ERROR)"),
        ("aclrtGetSocName:*:hang", "SoC", "did not return within 3 s"),
        ("aclrtGetSocName:*:null", "SoC", "the runtime says nothing"),
        ("aclrtGetDeviceCount:*:507899", "device count", "507899"),
        ("aclrtSetDevice:*:507033", "device 0 open", "aclrtSetDevice returned 507033"),
        (f"{STAGE_TWO}:*:507015", "device 0 known answer", "507015"),
        (f"{STAGE_TWO}:*:unwritten:1", "device 0 known answer", "were not written"),
    ],
)
def test_what_the_runtime_does_is_told(root: Path, rule: str, name: str, words: str) -> None:
    """A hang, a signal or a status is one failed line; what comes after it is unknown."""
    found = report(*SHORT, environment=simulator.environment(rule), root=root)
    assert found.status == 1
    assert found.failed == [name]
    assert words in found[name]["found"]
    assert found[name]["remedy"]
    assert found[f"{root}/dev/davinci0"]["outcome"] == "OK"
    assert found["symbols of runtime"]["outcome"] == "OK"
    names = [check["name"] for check in found.fields["checks"]]
    after = found.fields["checks"][names.index(name) + 1 :]
    if name != "SoC" or "null" not in rule:
        assert {check["outcome"] for check in after} <= {"UNKNOWN"}


@pytest.mark.full
def test_an_operator_that_the_device_refuses_is_named(root: Path) -> None:
    """The server starts with the other one, and the doctor says without which."""
    rule = f"{STAGE_ONE}:*:561003"
    found = report(*SHORT, environment=simulator.environment(rule), root=root)
    check = found["device 0 known answer"]
    assert (found.status, found.failed, check["outcome"]) == (0, [], "WARNING")
    assert "ApplyRotaryPosEmbGrad is not served" in check["found"]
    assert "561003" in check["found"]
    assert "ApplyRotaryPosEmbGrad" in check["remedy"]


def test_memory_that_cannot_be_asked_is_unknown(root: Path) -> None:
    """The server does not ask for it, so it keeps nothing from starting."""
    environment = simulator.environment("aclrtGetMemInfo:*:107000")
    found = report(environment=environment, root=root)
    assert found.status == 0
    assert found["device 0 memory"]["outcome"] == "UNKNOWN"
    assert "107000" in found["device 0 memory"]["found"]


def test_a_library_that_crashes_when_it_is_loaded(root: Path, tmp_path: Path) -> None:
    """The signal and its last words are told, and the libraries behind it are tried as well."""
    environment = simulator.environment()
    library = tmp_path / "package" / "op_api" / "lib" / "libcust_opapi.so"
    library.parent.mkdir(parents=True)
    source = tmp_path / "crash.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "__attribute__((constructor)) static void start(void) {\n"
        '    fprintf(stderr, "goodbye\\n"); abort(); }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    folder = str(tmp_path / "package")
    found = report(environment=environment | {"ASCEND_CUSTOM_OPP_PATH": folder}, root=root)
    assert found.status == 1
    assert found.failed == [str(library)]
    assert "SIGABRT" in found[str(library)]["found"]
    assert "goodbye" in found[str(library)]["found"]
    assert found["libopapi_transformer.so"]["outcome"] == "OK"
    assert found["aclInit"]["outcome"] == "OK"


def test_the_order_of_timeouts(root: Path) -> None:
    """It is a check with the three numbers, also where the backend is given."""
    found = report(
        *("--backend", "aclnn", "--device.sync-timeout-ms", "300000"),
        environment=simulator.environment(),
        root=root,
    )
    assert found.status == 1
    assert found["timeouts"]["outcome"] == "FAILED"
    assert "device.sync_timeout_ms 300000" in found["timeouts"]["found"]


def test_options_come_from_a_file_too(root: Path, tmp_path: Path) -> None:
    """--config is the server's."""
    file = tmp_path / "server.toml"
    file.write_text('backend = "aclnn"\nworkers = 2\n')
    found = report("--config", str(file), environment=simulator.environment(), root=root)
    assert found.status == 0
    assert found["device 1 known answer"]["outcome"] == "OK"


@pytest.mark.parametrize(
    "words", [("--no-such",), ("--config", "/nowhere.toml"), ("extra",), ("--workers", "0")]
)
def test_wrong_words(words: tuple[str, ...]) -> None:
    """Exit status 2, and what is wrong."""
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr
    assert done.stdout == ""


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Both commands name the other's options."""
    done = run("--help")
    assert done.returncode == 0
    assert "--abi INCLUDE_DIR" in done.stdout
    assert "--packages" in done.stdout
    with pytest.raises(SystemExit):
        load_config(["--help"])
    assert "opferry-server doctor" in capsys.readouterr().out


def test_a_node_that_is_none(root: Path) -> None:
    """A file in its place, no device behind it, or nothing: three texts."""
    dev = root / "dev"
    (dev / "devmm_svm").unlink()
    (dev / "devmm_svm").touch()
    (dev / "hisi_hdc").unlink()
    try:
        (dev / "davinci1").unlink()
        os.mknod(dev / "davinci1", 0o20666, os.makedev(4095, 77))
        device_behind = False
    except PermissionError:
        device_behind = True
    found = report(environment=simulator.environment(), root=root)
    # on the simulator nodes are not needed, so they do not fail; the texts are the same
    assert "no character device" in found[f"{dev}/devmm_svm"]["found"]
    assert "absent" in found[f"{dev}/hisi_hdc"]["found"]
    if not device_behind:
        assert found[f"{dev}/davinci1"]["outcome"] == "WARNING"
        assert "opening it" in found[f"{dev}/davinci1"]["found"]
