"""Writes the inputs for the questions of docs/operations.md that only a device can answer."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

# By file: the shape of grad_query_embed and query, of grad_key_embed and key, of cos and sin.
FILES = {
    "wrong-heads": ((2, 16, 4, 64), (2, 16, 4, 64), (1, 16, 2, 64)),
    "sbnd-full-cos": ((16, 2, 4, 64), (16, 2, 4, 64), (16, 2, 4, 64)),
    "copies": ((16384, 8, 128), (16384, 1, 128), (16384, 1, 128)),
}


def main(folder: Path) -> None:
    """Write the files, float16, the same bits each time."""
    random = np.random.default_rng(0)
    for name, (query, key, cos) in FILES.items():
        shapes = {"grad_query_embed": query, "grad_key_embed": key, "cos": cos, "sin": cos}
        shapes |= {"query": query, "key": key}
        arrays = {
            tensor: random.standard_normal(shape, np.float32).astype(np.float16)
            for tensor, shape in shapes.items()
        }
        np.savez(folder / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "."))
