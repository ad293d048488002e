"""Package folders that are not as anybody expects: they cost their own requests, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

import opferry
from opferry import errors
from opferry.embedded import embedded_server
from tests.aclnn.test_backend import server
from tests.aclnn.test_packages import LIBRARY, copy_of, packages
from tests.support import simulator
from tests.support.calls import HEAVY, Subject, assert_same_bits, reference
from tests.support.processes import family


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a package whose kernel is right."""
    return copy_of("good", tmp_path / "mine")


@pytest.mark.parametrize("subject", HEAVY)
def test_names_that_are_no_text_and_links_in_circles(folder: Path, subject: Subject) -> None:
    """They change the folder, as any file does; both packages are served, also after a death."""
    arguments = subject.tnd()
    with server(options=packages(mine=str(folder))) as (running, client):
        for number, make in enumerate(
            (
                lambda: os.close(
                    os.open(os.fsencode(folder) + b"/bad\xff.o", os.O_CREAT | os.O_WRONLY)
                ),
                lambda: [os.symlink(".", folder / name) for name in ("l1", "l2", "l3")],
                lambda: os.symlink("/", folder / "root"),
            )
        ):
            make()
            for name in ("mine", "built-in"):
                found = subject.call(client, **arguments, operator_package=name)
                assert_same_bits(found, reference(arguments))
            (worker,) = [pid for pid in family(running.pid) if pid != running.pid]
            os.kill(worker, signal.SIGKILL)
            found = subject.call(client, **arguments, operator_package="mine")
            assert_same_bits(found, reference(arguments))
            assert client.server_info().workers[0].restart_count > number


@pytest.mark.parametrize("subject", HEAVY)
def test_a_package_that_only_leads_to_the_vendors_operator_is_refused(
    tmp_path: Path, subject: Subject
) -> None:
    """It would be judged right without having run: the linker looks into what it is linked to."""
    library = tmp_path / "mine" / LIBRARY
    library.parent.mkdir(parents=True)
    source = tmp_path / "nothing.c"
    source.write_text("int nothing(void) { return 0; }\n")
    subprocess.run(
        [
            *("cc", "-shared", "-fPIC", "-o", library, source, "-Wl,--no-as-needed"),
            *(f"-L{simulator.libraries()}", "-l:libopapi_transformer.so"),
        ],
        check=True,
    )
    with server(options=packages(mine=str(tmp_path / "mine"))) as (_, client):
        with pytest.raises(errors.OperatorError, match="of its own") as caught:
            subject.call(client, **subject.tnd(), operator_package="mine")
        assert caught.value.reason == "OPERATOR_PACKAGE_NOT_READY"


@pytest.mark.parametrize("subject", HEAVY)
def test_a_library_behind_a_link_is_as_good_as_any(tmp_path: Path, subject: Subject) -> None:
    """Installers link libraries with versions: a wrong one is served and flagged all the same."""
    folder = copy_of("wrong-sign", tmp_path / "mine")
    library = folder / LIBRARY
    library.rename(library.with_suffix(".so.1.0"))
    library.symlink_to(library.with_suffix(".so.1.0").name)
    with server(options=packages(mine=str(folder))) as (_, client):
        found = subject.call(client, **subject.tnd(), operator_package="mine")
    assert found.execution.operator_package.known_answer == "FAILED"


@pytest.mark.parametrize("subject", HEAVY)
def test_a_helper_that_a_library_has_forked_keeps_nobody_waiting(
    tmp_path: Path, subject: Subject
) -> None:
    """It holds the worker's socket open: the worker's end is noticed all the same."""
    arguments = subject.tnd()
    library = tmp_path / "helper.so"
    source = tmp_path / "helper.c"
    # in workers only: they alone are started with this option
    source.write_text(
        "#include <fcntl.h>\n#include <string.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void start(void) {\n"
        "    char words[4096] = {0};\n"
        '    int file = open("/proc/self/cmdline", O_RDONLY);\n'
        "    ssize_t size = read(file, words, sizeof words - 1);\n"
        "    close(file);\n"
        '    if (size > 0 && memmem(words, size, "--begun-fd", 10) && fork() == 0) {\n'
        "        sleep(60);\n        _exit(0);\n    }\n}\n"
    )
    subprocess.run(["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source], check=True)
    environment = simulator.environment() | {"LD_PRELOAD": str(library)}
    helpers: list[int] = []
    try:
        with (
            embedded_server(
                backend="aclnn",
                options=packages(mine=simulator.package("good")),
                environment=environment,
            ) as running,
            opferry.connect(running.address, timeout=20) as client,
        ):
            for name in ("mine", "built-in"):
                found = subject.call(client, **arguments, operator_package=name)
                assert_same_bits(found, reference(arguments))
            helpers = family(running.pid)[1:]
            worker = psutil.Process(running.pid).children()[0].pid
            os.kill(worker, signal.SIGKILL)
            assert_same_bits(subject.call(client, **arguments), reference(arguments))
            assert client.server_info().workers[0].restart_count == 3
    finally:
        for process in psutil.process_iter(["environ"]):
            # the helpers outlive their workers, as they would
            if (process.info["environ"] or {}).get("LD_PRELOAD") == str(library):
                process.kill()
    assert helpers
