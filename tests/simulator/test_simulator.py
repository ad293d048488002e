"""The simulator's own tests: programs that break the rules, and its operator by the reference."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.abi.headers import HeadersUnavailableError, third_party
from tests.simulator import build as simulator

PROGRAMS = sorted(path.stem for path in simulator.HERE.glob("test_*.c"))
RULE_PROGRAMS = [name for name in PROGRAMS if name != "test_vendor_sequence"]
PROGRAM_TIMEOUT_S = 110


def run(program: list[str | Path], **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program with no setting of the simulator but these."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPFERRY_SIM_")}
    environment.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    return subprocess.run(
        program,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        env=environment | settings,
    )


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the simulator's build."""
    if why := simulator.missing_tools():
        pytest.skip(why)
    return simulator.build()


@pytest.fixture(scope="session", params=["address,undefined", "thread"])
def sanitized(request: pytest.FixtureRequest) -> Path:
    """The folder of a build under sanitizers."""
    if why := simulator.missing_sanitizer(request.param):
        pytest.skip(why)
    return simulator.build(sanitize=request.param)


@pytest.mark.parametrize("program", RULE_PROGRAMS)
def test_each_broken_rule_is_caught(built: Path, program: str) -> None:
    """Each case of the program breaks a rule, and the simulator says which."""
    done = run([built / program])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_vendors_sequence_runs_clean(built: Path) -> None:
    """The documented order of calls gives the right numbers and breaks no rule."""
    done = run([built / "test_vendor_sequence"], OPFERRY_SIM_ABORT="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_operator_agrees_with_contract_and_reference(built: Path) -> None:
    """Results are bit-equal to the reference, refusals those of the contract, in every layout."""
    done = run([sys.executable, "-m", "tests.simulator.congruence", built])
    assert done.returncode == 0, done.stdout + done.stderr


def test_libraries_are_found_by_search_path_too(built: Path) -> None:
    """A plain name is enough where LD_LIBRARY_PATH leads to the build."""
    code = (
        "import ctypes; "
        "operator = ctypes.CDLL('libopapi_transformer.so'); "
        "runtime = ctypes.CDLL('libascendcl.so'); "
        "assert runtime.aclInit(None) == 0 and runtime.aclFinalize() == 0; "
        "assert operator.aclnnApplyRotaryPosEmbGrad"
    )
    done = run([sys.executable, "-c", code], LD_LIBRARY_PATH=str(built))
    assert done.returncode == 0, done.stderr


def test_every_package_is_built(built: Path) -> None:
    """Each package has its library where CANN's layout wants it."""
    for name in simulator.PACKAGES:
        folder = simulator.package_folder(built, name)
        assert (folder / "op_api" / "lib" / "libcust_opapi.so").is_file()


def test_build_is_made_once(built: Path) -> None:
    """A second build of the same sources is the first one."""
    assert simulator.build() == built


def test_counters_are_readable_from_outside(built: Path, tmp_path: Path) -> None:
    """The counters of a process that has ended are still there."""
    counters = tmp_path / "counters"
    run([built / "test_vendor_sequence"], OPFERRY_SIM_COUNTERS=str(counters))
    read = simulator.read_counters(counters)
    assert read["kernels"] == 1
    assert read["total.tensors"] == 10
    assert {value for name, value in read.items() if name.startswith("live.")} == {0}


@pytest.fixture(scope="session")
def acl_include() -> Path:
    """The include folder of CANN that OPFERRY_ACL_INCLUDE names, or that of a published wheel."""
    if why := simulator.missing_tools():
        pytest.skip(why)
    if "OPFERRY_ACL_INCLUDE" in os.environ:
        return Path(os.environ["OPFERRY_ACL_INCLUDE"])
    try:
        return third_party() / "acl" / "inc"
    except HeadersUnavailableError as err:
        pytest.skip(str(err))


@pytest.mark.full
def test_compiles_against_the_vendors_headers(acl_include: Path) -> None:
    """With CANN's own headers in place of ours everything compiles and runs the same."""
    build = simulator.build(acl_include=acl_include)
    done = run([build / "test_vendor_sequence"], OPFERRY_SIM_ABORT="1")
    assert done.returncode == 0, done.stderr


def test_constants_are_the_vendors(acl_include: Path, tmp_path: Path) -> None:
    """Each constant of our header has the value that CANN's headers give it."""
    text = (simulator.HERE / "acl_sim.h").read_text()
    constants = dict(re.findall(r"(?:^ +|define )(ACL_\w+)(?: = | )(-?\d\w*)", text, re.MULTILINE))
    checks = "".join(
        f'if ({name} != {value}) puts("{name}");\n' for name, value in constants.items()
    )
    source = tmp_path / "constants.c"
    source.write_text(f'#include "acl_sim.h"\n#include <stdio.h>\nint main(void) {{\n{checks}}}\n')
    include = [f"-I{simulator.HERE}", f"-I{acl_include}", f"-I{acl_include}/acl"]
    built = run(["cc", "-DOPFERRY_VENDOR_HEADERS", *include, "-o", tmp_path / "program", source])
    assert built.returncode == 0, built.stderr
    assert run([tmp_path / "program"]).stdout == ""
    assert len(constants) > 60


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_clean_under_sanitizers(sanitized: Path, program: str) -> None:
    """No memory error, no leak, no undefined behaviour, no data race in any program."""
    done = run([sanitized / program])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_the_vendors_sequence_is_clean_under_valgrind(built: Path) -> None:
    """Valgrind finds nothing, though device memory is mapped twice."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    done = run(["valgrind", "-q", "--error-exitcode=9", built / "test_vendor_sequence"])
    assert done.returncode == 0, done.stderr
