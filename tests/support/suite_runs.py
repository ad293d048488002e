"""Suites on the command line: case files, runs as processes, and their results."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from opferry.validation.generation import generated_rows, write_rows

VARYING = ("worker", "request_id")
"""Columns that differ from run to run, beside all that are times."""


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `opferry` and wait for it."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=1000,
        env={**os.environ, **environment},
    )


def command(*arguments: str | Path) -> list[str]:
    """Return the words of a process of `opferry`."""
    return [sys.executable, "-m", "opferry.cli", *map(str, arguments)]


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file; none if it is not there yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8-sig") as stream:
        return list(csv.DictReader(stream))


def steady(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return rows without what differs from run to run."""
    return [
        {
            name: cell
            for name, cell in row.items()
            if name not in VARYING and not name.endswith("_us")
        }
        for row in rows
    ]


def write_suite(
    path: Path, count: int, *, level: str = "L0", largest_bytes: int = 256 * 1024
) -> Path:
    """Write a generated suite with small tensors."""
    rows = generated_rows(
        "apply_rotary_pos_emb_grad", level=level, row_count=count, largest_bytes=largest_bytes
    )
    assert write_rows(path, rows, "aclnn") == count
    return path


def write_rows_of(path: Path, rows: Iterable[Mapping[str, str]]) -> Path:
    """Write rows with TND tensors of (4, 2, 8), changed as each row says."""
    whole, one = "(4,2,8)", "(4,1,8)"
    usual = {
        "api_name": "aclnnApplyRotaryPosEmbGrad",
        "tensor_view_shapes": f"({whole},{whole},{one},{one},None,None,{whole},{whole})",
        "tensor_dtypes": "(" + "'float32'," * 8 + ")",
        "attributes": "{'layout': 4}",
        "output_tensor_indexes": "(6,7)",
    }
    found = [{"testcase_name": f"case_{n}", **usual, **row} for n, row in enumerate(rows)]
    columns = list(dict.fromkeys(name for row in found for name in row))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(found)
    return path
