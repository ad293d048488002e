"""`opferry validate` with files that are no case files: one line, status 2, and nothing runs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from openpyxl import Workbook

from opferry.cli.__main__ import main

HEADER = "testcase_name,api_name,tensor_view_shapes,tensor_dtypes"
LINE = 'a,aclnnApplyRotaryPosEmbGrad,"((1,1,1,2),)","(\'fp32\',)"'
GOOD = f"{HEADER}\n{LINE}\n"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port where a server would be; it only counts who comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def _formula(path: Path) -> None:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append([*HEADER.split(","), "remark"])
    sheet.append(["a", "aclnnApplyRotaryPosEmbGrad", "((1,1,1,2),)", "('fp32',)", "=1+1"])
    book.save(path)


def _text(content: str, encoding: str = "utf-8") -> bytes:
    return content.encode(encoding)


FILES: list[tuple[str, bytes | None, str]] = [
    ("empty.csv", b"", ": is empty; a case file starts with a header"),
    ("utf16.csv", _text(GOOD, "utf-16"), ": is UTF-16 text; save it as UTF-8"),
    ("nul.csv", _text(GOOD + "b\0,c,d,e\n"), ", row 3: is not CSV: line contains NUL"),
    ("quote.csv", _text(GOOD + 'b,"c\n'), ", row 3: is not CSV"),
    ("column.csv", _text("testcase_name\na\n"), ", row 1: the header lacks api_name"),
    ("twice.csv", _text(GOOD + LINE + "\n"), ", row 3, column testcase_name: 'a' is also the"),
    (
        "code.csv",
        _text(GOOD.replace("((1,1,1,2),)", "__import__('os').abort()")),
        ", row 2, column tensor_view_shapes: has \"__import__('os').abo\" at character 1",
    ),
    (
        "deep.csv",
        _text(GOOD.replace("((1,1,1,2),)", "[" * 8000 + "]" * 8000)),
        ", row 2, column tensor_view_shapes: is not a literal",
    ),
    ("wide.csv", _text(GOOD.rstrip() + "," * 1_000_000), ", row 2: has 1000004 cells"),
    (
        "file.csv",
        _text(f"{HEADER},manual_tensor_binaries\n{LINE},none.bin\n"),
        "none.bin, and there is no such file",
    ),
    (
        "batch.csv",
        _text(f'{HEADER},batch_axis\n{LINE},"((0,),)"\n'),
        ", row 2, column batch_seed: is empty, and batch_axis is not",
    ),
    ("old.xls", b"x", ": is an Excel workbook of the old kind (.xls)"),
    ("text.xlsx", _text(GOOD), ": is no Excel workbook: File is not a zip file"),
    ("formula.xlsx", None, ", row 2, column remark: has a formula, which is code in a cell"),
]


@pytest.mark.parametrize(("name", "content", "said"), FILES, ids=[name for name, _, _ in FILES])
def test_nothing_runs(
    tmp_path: Path, listener: socket.socket, name: str, content: bytes | None, said: str
) -> None:
    """One line and no more; nobody is called, and no result file is made."""
    path = tmp_path / name
    if content is None:
        _formula(path)
    else:
        path.write_bytes(content)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    result = tmp_path / "result.csv"
    arguments = ["validate", "-i", str(path), "-o", str(result), "--target", address]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert line.startswith(f"error: {path}")
    assert said in line
    assert not result.exists()
    with pytest.raises(BlockingIOError):
        listener.accept()
