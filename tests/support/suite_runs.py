"""Suites on the command line: case files, runs as processes, and their results."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from opferry.validation.generation import generated_rows, write_rows
from tests.support.calls import GRAD, Subject

VARYING = ("worker", "request_id")
"""Columns that differ from run to run, beside all that are times."""


SLOW_LINE = {"up_rate": 4e6, "down_rate": 4e6, "up_delay_s": 0.015, "down_delay_s": 0.015}
"""A line of 4 MB/s each way with a round trip of 30 ms, as `counting_proxy` takes it."""


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
    path: Path,
    count: int,
    *,
    level: str = "L0",
    largest_bytes: int = 256 * 1024,
    subject: Subject = GRAD,
) -> Path:
    """Write a generated suite with small tensors."""
    rows = generated_rows(subject.name, level=level, row_count=count, largest_bytes=largest_bytes)
    assert write_rows(path, rows, "aclnn") == count
    return path


def write_rows_of(path: Path, rows: Iterable[Mapping[str, str]], subject: Subject = GRAD) -> Path:
    """Write rows with TND tensors of (4, 2, 8), changed as each row says."""
    whole, one = "(4,2,8)", "(4,1,8)"
    shapes, outputs = [whole, whole, one, one], "(0,1)"
    if subject is GRAD:
        shapes, outputs = [*shapes, "None", "None", whole, whole], "(6,7)"
    usual = {
        "api_name": subject.stages[1],
        "tensor_view_shapes": f"({','.join(shapes)})",
        "tensor_dtypes": "(" + "'float32'," * len(shapes) + ")",
        "attributes": "{'layout': 4}",
        "output_tensor_indexes": outputs,
    }
    found = [{"testcase_name": f"case_{n}", **usual, **row} for n, row in enumerate(rows)]
    columns = list(dict.fromkeys(name for row in found for name in row))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(found)
    return path


def bsnd_cells(subject: Subject, whole: str, one: str) -> dict[str, str]:
    """Return a row's cells of an operator with layout BSND.

    Args:
        subject: the operator; of the backward grad_query and grad_key come out.
        whole: the shape of query and key.
        one: the shape of cos and sin.
    """
    shapes, outputs = [whole, whole, one, one], "(0,1)"
    if subject is GRAD:
        shapes, outputs = [*shapes, whole, whole], "(6,7)"
    return {
        "api_name": subject.stages[1],
        "tensor_view_shapes": f"({','.join(shapes)})",
        "attributes": "{'layout': 1}",
        "output_tensor_indexes": outputs,
    }


def write_large_rows(path: Path, count: int, subject: Subject = GRAD) -> Path:
    """Write cases of 64 MiB of inputs and outputs each."""
    if subject is GRAD:
        # 11 MiB in each of q and k and their gradients, and in the gradients that come out
        whole, one, outputs = "(4,512,22,128)", "(4,512,1,128)", "(6,7,8,9)"
    else:
        # 16.5 MiB in each of q and k, before and after
        whole, one, outputs = "(4,512,33,128)", "(4,512,1,128)", "(0,1)"
    row = {
        **bsnd_cells(subject, whole, one),
        "tensor_dtypes": "('float16',)",
        "output_tensor_indexes": outputs,
    }
    return write_rows_of(path, [row] * count)
