"""The direction of imports: who may know whom, read from the sources without importing them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

OWN = ("opferry", "opferry_server")

LAYERS = {
    "opferry.core": "core",
    "opferry.operators": "operators",
    "opferry.v1": "v1",
    "opferry.wire": "wire",
    "opferry.errors": "errors",
    "opferry.validation": "validation",
    "opferry.reports": "reports",
    "opferry.torch": "torch",
    "opferry.cli": "cli",
    "opferry": "client",
    "opferry_server.testing": "testing",
    "opferry_server": "server",
}
"""The layer of a package and all below it; the longest name that fits decides."""

_SHARED = {"core", "operators", "v1", "wire", "errors", "validation"}
MAY_IMPORT = {
    "core": set(),
    "v1": set(),
    "operators": {"core"},
    "wire": {"core", "operators", "v1", "validation"},
    # wire when a reply is an error, which is when it is loaded
    "errors": {"core", "wire"},
    "validation": {"core", "operators", "errors"},
    "reports": {"validation"},
    "client": _SHARED,
    "torch": _SHARED | {"client"},
    "cli": _SHARED | {"client", "reports", "torch"},
    "server": _SHARED,
    # it starts a server as the command line does
    "testing": {"client", "server"},
}
"""The other layers that each layer may import. No layer of opferry may import opferry_server."""

NETWORK = {"grpc", "grpc_status", "grpc_health", "grpc_reflection", "google"}
WITHOUT_NETWORK = (
    "opferry.core",
    "opferry.operators",
    "opferry.validation",
    "opferry.reports",
    "opferry_server.backends",
)
"""Packages that know arrays, and neither messages nor the network."""

COMPILED = (
    "opferry.operators.compiled",
    "opferry.operators._rotary_forward_compiled",
    "opferry.operators._rotary_grad_compiled",
    "opferry.operators._rotary_vectors",
    "opferry.validation._draw_compiled",
)
"""What is imported when something is to be compiled, and not before."""

ONLY_IN = {
    "ctypes": ("opferry_server.backends.aclnn", "opferry_server.malloc", "opferry.core.malloc"),
    "numba": COMPILED,
    "llvmlite": COMPILED,
}
"""Foreign modules that some packages alone may import."""


class Import(NamedTuple):
    """One import of one module."""

    importer: str
    imported: str
    line: int


def _modules(roots: list[Path]) -> dict[str, Path]:
    """Return every module of the source trees by its dotted name; what does not exist is absent."""
    found = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


def _imports(roots: list[Path]) -> Iterator[Import]:
    """Yield all imports, also those inside functions and those for type checkers only."""
    modules = _modules(roots)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(name, alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(node, name, is_package=path.stem == "__init__")
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield Import(name, inner if inner in modules else base, node.lineno)


def _absolute(node: ast.ImportFrom, importer: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = importer.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, node.module] if node.module else parts)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _layer(module: str) -> str:
    return LAYERS[max((name for name in LAYERS if _within(module, name)), key=len)]


def _wrong(roots: list[Path]) -> list[str]:
    """Return a sentence for each import that points the wrong way."""
    found = []
    for importer, imported, line in _imports(roots):
        top = imported.split(".")[0]
        said = f"{importer}:{line} imports {imported}"
        if top in OWN:
            mine, other = _layer(importer), _layer(imported)
            if other not in MAY_IMPORT[mine] | {mine}:
                found.append(f"{said}: {mine} may not know {other}")
        elif top in NETWORK and any(_within(importer, name) for name in WITHOUT_NETWORK):
            found.append(f"{said}: it may not know the network")
        elif not any(_within(importer, home) for home in ONLY_IN.get(top, (importer,))):
            found.append(f"{said}: only {' and '.join(ONLY_IN[top])} may")
    return found


def test_imports_point_the_right_way() -> None:
    """No module imports one that stands above or beside it, and arrays stay off the network."""
    roots = [ROOT / "client", ROOT / "server"]
    assert {"opferry.core.tensors", "opferry_server"} <= _modules(roots).keys()
    assert _wrong(roots) == []


def test_the_vocabulary_needs_numpy_alone() -> None:
    """Core and operators import nothing foreign but numpy and its bfloat16."""
    tops = {
        imported.split(".")[0]
        for importer, imported, _ in _imports([ROOT / "client"])
        if (_within(importer, "opferry.core") or _within(importer, "opferry.operators"))
        and importer not in COMPILED
    }
    standard = {"__future__", "abc", "collections", "contextlib", "dataclasses", "enum"}
    standard |= {"ctypes", "functools", "ipaddress", "json", "math", "operator", "typing"}
    assert tops - standard == {"opferry", "numpy", "ml_dtypes"}


def test_nothing_is_compiled_unasked() -> None:
    """Who imports operators, the server's configuration or a client has not loaded a compiler."""
    program = "import sys, opferry.aio, opferry.operators, opferry_server.config\n"
    program += "sys.exit(str([name for name in sys.modules if name in ('numba', 'llvmlite')]))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert said.stderr == b"[]\n"


WRONG = {
    "opferry/core/a.py": "from opferry.operators import base",
    "opferry/core/b.py": "def late():\n    from opferry import wire",
    "opferry/core/c.py": "import opferry",
    "opferry/operators/a.py": "from ..validation import suite",
    "opferry/operators/b.py": "import grpc.aio",
    "opferry/operators/c.py": "if 0:\n    from google.protobuf import message",
    "opferry/validation/a.py": "from opferry import client",
    "opferry/validation/b.py": "from .. import wire",
    "opferry/reports/a.py": "from opferry.client import Client",
    "opferry/validation/c.py": "from opferry import reports",
    "opferry/wire/a.py": "from opferry.errors import OpFerryError",
    "opferry/client.py": "from opferry.cli import main",
    "opferry/aio.py": "import ctypes",
    "opferry/cli/run.py": "import opferry_server.app",
    "opferry/torch/a.py": "from opferry_server.testing import running_server",
    "opferry_server/app.py": "from opferry.client import Client",
    "opferry_server/backends/cpu.py": "from grpc_status import rpc_status",
    "opferry_server/backends/torch_npu.py": "import ctypes.util",
}
RIGHT = {
    "opferry/__init__.py": "from opferry import client",
    "opferry/wire/__init__.py": "from opferry.v1 import tensor_pb2\nimport google.rpc.status_pb2",
    "opferry/errors.py": "import grpc\nfrom opferry import wire",
    "opferry/validation/__init__.py": "from .. import errors\nfrom . import a",
    "opferry/core/__init__.py": "from opferry.core.a import x\nimport numpy.typing",
    "opferry/reports/__init__.py": "from opferry.validation import suite\nimport jinja2",
    "opferry/cli/__init__.py": "import opferry\nfrom opferry.validation import suite",
    "opferry_server/__init__.py": "from opferry.wire import calls\nimport grpc",
    "opferry_server/testing.py": "from opferry.embedded import embedded_server",
    "opferry_server/backends/aclnn/library.py": "import ctypes\nfrom opferry.core import dtypes",
}


@pytest.mark.parametrize("path", [*WRONG, *RIGHT])
def test_a_wrong_arrow_is_found(tmp_path: Path, path: str) -> None:
    """In a tree of right imports, a wrong one is reported with its place, and only that one."""
    for name, source in {**RIGHT, **dict.fromkeys(WRONG, ""), path: (WRONG | RIGHT)[path]}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, "utf-8")
    found = _wrong([tmp_path])
    assert len(found) == (path in WRONG)
    module = path.removesuffix(".py").replace("/", ".")
    assert all(sentence.startswith(f"{module}:") for sentence in found)
