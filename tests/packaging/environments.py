"""Virtual environments that hold the built wheel and nothing of this checkout."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.packaging.interpreters import RUNNING
from tests.support.processes import eventually
from tests.support.servers import free_port

ONE_CALL = Path(__file__).parent / "programs" / "one_call.py"
"""A program that makes one call and checks its outputs; see there."""

INSTALL_TIMEOUT_S = 600.0


def clean_variables(**more: str) -> dict[str, str]:
    """Return this process's variables without those that lead Python or opferry elsewhere."""
    prefixes = ("PYTHON", "OPFERRY_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, **more}


class Environment:
    """A virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment from a folder that is not the checkout's."""
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.folder,
            env=clean_variables(),
            timeout=120,
            capture_output=True,
            text=True,
            check=False,
        )

    def version(self, distribution: str) -> tuple[int, ...]:
        """Return the release of an installed distribution, for example (1, 26, 0)."""
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        said = self.run("python", "-c", code)
        assert said.returncode == 0, said.stderr
        return tuple(int(part) for part in said.stdout.split(".")[:3] if part.strip().isdigit())

    def one_call(self, address: str | None = None) -> None:
        """Make a call, on an own server if no address is given, and assert that it is right."""
        said = self.run("python", str(ONE_CALL), *([] if address is None else [address]))
        assert said.returncode == 0, said.stderr
        assert said.stdout.strip() == "right"

    @contextlib.contextmanager
    def server(self) -> Iterator[str]:
        """Run `opferry-server` of the environment; yields its address."""
        address = f"127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [self.folder / "bin" / "opferry-server", "--address", address],
            cwd=self.folder,
            env=clean_variables(),
        )
        try:
            # its first start compiles the reference
            assert eventually(lambda: self._serves(address), within_s=300)
            yield address
        finally:
            process.terminate()
            assert process.wait(60) == 0

    def _serves(self, address: str) -> bool:
        return self.run("opferry", "info", "--target", address, "--timeout", "5").returncode == 0


class Environments:
    """Makes environments with the wheel, each once."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self.wheel = wheel
        self._digest = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def get(
        self,
        *requirements: str,
        extra: str = "",
        version: str = RUNNING,
        interpreter: Path = Path(sys.executable),
    ) -> Environment:
        """Return an environment with the wheel.

        Args:
            requirements: what else is installed, as pip reads it.
            extra: an extra of the wheel, for example "[server]".
            version: the interpreter's version.
            interpreter: what makes the environment.
        """
        words = (version, self._digest, extra, *requirements)
        key = hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
        environment = Environment(self._folder / f"python{version}-{key}")
        complete = environment.folder / "complete"
        if not complete.exists():
            run_checked([interpreter, "-m", "venv", "--without-pip", "--clear", environment.folder])
            install(environment.python, f"{self.wheel}{extra}", *requirements)
            complete.touch()
        return environment


def install(python: Path, *requirements: str) -> None:
    """Install into the environment of an interpreter with the pip of this one."""
    run_checked([sys.executable, "-m", "pip", "--python", python, "install", *requirements])


def run_checked(command: list[Any], **options: Any) -> None:
    """Run a command and assert that it succeeds; its words are the assertion's."""
    said = subprocess.run(
        command,
        **{"env": clean_variables(), "cwd": "/", "timeout": INSTALL_TIMEOUT_S, **options},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout
