"""Builds the simulator once and finds it again, for all tests that need it."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "simulator"
BUILD_TIMEOUT_S = 600

PACKAGES = (
    *("good", "wrong-sign", "halves-swapped", "one-off"),
    *("grad-only", "shim", "no-symbol"),
)
"""The operator packages that are built, each in packages/NAME."""

_COUNTER = struct.Struct("<56sq")


class BuildError(Exception):
    """The simulator does not compile; the text is the compiler's."""


def missing_tools() -> str:
    """Return why nothing can be built here, for a test's skip reason; "" if all is there."""
    absent = [tool for tool in ("cc", "make") if shutil.which(tool) is None]
    return f"the simulator needs {' and '.join(absent)}" if absent else ""


def missing_sanitizer(sanitize: str) -> str:
    """Return why a sanitizer cannot be used here, for a test's skip reason; "" if it can.

    Args:
        sanitize: what `-fsanitize=` takes, for example "thread".
    """
    if why := missing_tools():
        return why
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        source = Path(folder, "program.c")
        source.write_text("int main(void) { return 0; }\n")
        built = subprocess.run(
            ["cc", f"-fsanitize={sanitize}", "-o", program, source], capture_output=True
        )
        if built.returncode or subprocess.run([program], capture_output=True).returncode:
            return f"cc has no -fsanitize={sanitize} that works here"
    return ""


def build(sanitize: str = "", acl_include: Path | None = None) -> Path:
    """Return the folder with the libraries, packages/ and the test programs; builds if need be.

    The folder is kept in .cache/simulator (or in OPFERRY_SIMULATOR_CACHE) under a digest of the
    sources, the compiler and the arguments, and never changed once it is there.

    Args:
        sanitize: what `-fsanitize=` takes; "": none.
        acl_include: an include folder of CANN to compile against; None: our own headers.

    Raises:
        BuildError: if it does not compile.
    """
    cache = Path(os.environ.get("OPFERRY_SIMULATOR_CACHE") or CACHE)
    target = cache / _digest(sanitize, acl_include)
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
    try:
        _make(fresh, sanitize, acl_include)
        # Processes that build at the same time do not see each other's unfinished folders.
        fresh.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def package_folder(build_folder: Path, name: str) -> Path:
    """Return the folder of an operator package, the one with op_api/lib in it."""
    return build_folder / "packages" / name


def read_counters(path: Path) -> dict[str, int]:
    """Return the counters of a process from its OPFERRY_SIM_COUNTERS file, dead or alive."""
    records = _COUNTER.iter_unpack(path.read_bytes())
    return {name.rstrip(b"\0").decode(): value for name, value in records}


def _make(folder: Path, sanitize: str, acl_include: Path | None) -> None:
    command = ["make", "-s", f"-j{os.cpu_count() or 1}", "-C", HERE, f"BUILD={folder}"]
    command += [f"SANITIZE={sanitize}"] if sanitize else []
    command += [f"ACL_INCLUDE={acl_include}"] if acl_include else []
    # A make that started this test run says things in the environment that are not for this one.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    made = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, env=environment
    )
    if made.returncode:
        raise BuildError(made.stdout + made.stderr)
    shutil.rmtree(folder / "objects")


def _digest(sanitize: str, acl_include: Path | None) -> str:
    digest = hashlib.sha256()
    compiler = subprocess.run(["cc", "--version"], capture_output=True, check=True).stdout
    for part in (
        compiler,
        platform.machine().encode(),
        sanitize.encode(),
        str(acl_include).encode(),
    ):
        digest.update(part + b"\0")
    for path in sorted([HERE / "Makefile", *HERE.rglob("*.[ch]")]):
        digest.update(path.relative_to(HERE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]
