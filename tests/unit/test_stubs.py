"""The generated code in client/opferry/v1 is what protos/ gives now."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"
STUBS = ROOT / "client" / "opferry" / "v1"


def _generate(protos: Path, output: Path) -> Path:
    """Generate stubs as `make protos` does, and return their folder."""
    output.mkdir()
    sources = sorted(protos.glob("opferry/v1/*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}"]
    command += [f"--python_out={output}", f"--pyi_out={output}", *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return output / "opferry" / "v1"


def _stale(generated: Path, stubs: Path) -> list[str]:
    """Return the names of the files that differ, or exist on one side only."""
    names = {path.name for folder in (generated, stubs) for path in folder.glob("*_pb2.py*")}
    return [name for name in sorted(names) if _content(generated / name) != _content(stubs / name)]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of freshly generated stubs."""
    return _generate(PROTOS, tmp_path_factory.mktemp("stubs") / "fresh")


def test_stubs_are_current(generated: Path) -> None:
    """Generating again gives the same bytes; if it does not, run `make protos`."""
    assert _stale(generated, STUBS) == []
    assert len(list(generated.iterdir())) == 2 * len(list(PROTOS.glob("opferry/v1/*.proto")))


def test_the_package_of_stubs_is_committed_and_says_nothing() -> None:
    """Protoc writes no __init__.py; without one another opferry.v1 on the path would win."""
    assert (STUBS / "__init__.py").exists()
    others = {path.name for path in STUBS.iterdir() if "_pb2.py" not in path.name}
    assert others <= {"__init__.py", "__pycache__"}


def test_a_changed_schema_is_noticed(tmp_path: Path) -> None:
    """A field that is added to the schema alone makes its stubs stale, and no others."""
    changed = tmp_path / "protos"
    shutil.copytree(PROTOS, changed)
    file = changed / "opferry" / "v1" / "rotary.proto"
    file.write_text(
        file.read_text().replace("Layout layout = 2;", "Layout layout = 2;\n bool x = 9;")
    )
    assert _stale(_generate(changed, tmp_path / "out"), STUBS) == [
        "rotary_pb2.py",
        "rotary_pb2.pyi",
    ]


def test_a_stub_by_hand_or_without_a_schema_is_noticed(generated: Path, tmp_path: Path) -> None:
    """A stub that was edited, is missing, or whose schema is gone is stale."""
    stubs = tmp_path / "v1"
    shutil.copytree(generated, stubs)
    (stubs / "tensor_pb2.py").write_text("# edited")
    (stubs / "rotary_pb2.pyi").unlink()
    (stubs / "gone_pb2.py").write_text("")
    assert _stale(generated, stubs) == ["gone_pb2.py", "rotary_pb2.pyi", "tensor_pb2.py"]
