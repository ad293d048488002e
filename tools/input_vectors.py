"""Writes tests/unit/validation/input_vectors.json: what the generator gives, as SHA-256.

    python tools/input_vectors.py tests/unit/validation/input_vectors.json

Only to be run when GENERATOR_VERSION changes: the file is what every machine, numpy release and
processor must reproduce.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.validation import GENERATOR_VERSION, Distribution, Recipe, ValueRange, generate

COUNTS = (1, 7, 65_535, 65_537)
SEEDS = (0, 1, -(2**63))
RANGES = {
    DType.FLOAT32: (["-3.39e38", "3.39e38"], ["1e-45", "1e-39"], ["1", "1.0000002"]),
    DType.FLOAT16: (["-65504", "65504"], ["6e-8", "6e-5"], ["1", "1.001"]),
    DType.BFLOAT16: (["-3.38e38", "3.38e38"], ["1e-40", "1e-37"], ["1", "1.008"]),
}
OTHER = (["0", "0"], ["1", "1"], ["-inf", "inf"], ["nan", "nan"], ["inf", "inf"], ["0.1", "1e5"])


def rows() -> Iterator[tuple[str, str, int, int, list[str]]]:
    """Yield dtype, distribution, number of elements, seed and range of every vector."""
    for dtype in DType:
        for how in Distribution:
            for count in COUNTS:
                for seed in SEEDS:
                    yield dtype.value, how.value, count, seed, ["-2", "2"]
            for bounds in (*RANGES[dtype], *OTHER):
                yield dtype.value, how.value, 8193, 5, bounds


def sha256(dtype: str, how: str, count: int, seed: int, bounds: list[str]) -> str:
    """Return the SHA-256 of a vector's bytes."""
    low, high, *forced = map(float, bounds)
    recipe = Recipe(
        TensorSpec(DType(dtype), (count,)),
        ValueRange(low, high, tuple(forced)),
        Distribution(how),
        seed,
        "vectors",
        "cos",
    )
    return hashlib.sha256(generate(recipe).data).hexdigest()


def main() -> None:
    """Write the file."""
    vectors: list[list[Any]] = [[*row, sha256(*row)] for row in rows()]
    head = json.dumps(GENERATOR_VERSION)
    lines = ",\n".join(json.dumps(vector) for vector in vectors)
    Path(sys.argv[1]).write_text(
        f'{{"version": {head}, "vectors": [\n{lines}\n]}}\n', encoding="ascii"
    )


if __name__ == "__main__":
    main()
