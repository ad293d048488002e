"""The same bits everywhere: SHA-256 of inputs, with every numpy, and with fewer CPU features.

tests/packaging/test_numpy_range.py runs this file with the oldest and the newest numpy.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.validation import (
    GENERATOR_VERSION,
    Distribution,
    Recipe,
    ValueRange,
    _draw,
    generate,
)
from opferry.validation._draw_compiled import CompiledPen
from opferry.validation.inputs import compile_generator
from opferry.validation.rounding import FORMATS

VECTORS = json.loads(Path(__file__).with_name("input_vectors.json").read_text("ascii"))
"""Of tools/input_vectors.py: dtype, distribution, count, seed, range and SHA-256 of each."""

FLUSH = """
import torch
assert torch.set_flush_denormal(True)
import numpy as np
assert np.float32(2.0**-126) * np.float32(0.5) == 0
"""
"""Sets the thread to flush subnormal values, as libraries built with -ffast-math do; shows it."""


COMPILED = "from opferry.validation.inputs import compile_generator as c; c()"


def sha256(dtype: str, how: str, count: int, seed: int, bounds: list[str]) -> str:
    """The SHA-256 of a vector's bytes, little-endian."""
    spec = TensorSpec(DType(dtype), (count,))
    values = ValueRange(float(bounds[0]), float(bounds[1]))
    recipe = Recipe(spec, values, Distribution(how), seed, "vectors", "cos")
    return hashlib.sha256(generate(recipe).data).hexdigest()


def differing() -> list[Any]:
    """The vectors that this process makes differently."""
    return [row for *row, wanted in VECTORS["vectors"] if sha256(*row) != wanted]


def cpu_features() -> set[str]:
    """The features that numpy detects, that its build can dispatch on, and that can be disabled."""
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        from numpy._core import _multiarray_umath as umath
    else:
        from numpy.core import _multiarray_umath as umath
    return {name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)}


def test_vectors() -> None:
    """Every vector comes out as it is written down; none is left out."""
    assert VECTORS["version"] == GENERATOR_VERSION
    rows = [tuple(map(str, row[:4])) for row in VECTORS["vectors"]]
    for dtype in DType:
        for how in Distribution:
            for count in (1, 7, 65_535, 65_537):
                found = [row for row in rows if row[:3] == (dtype.value, how.value, str(count))]
                assert len(found) == 3
    assert differing() == []


def run_here(prelude: str = "", **variables: str) -> str:
    """Run the vectors in a process of their own; returns the features that numpy has there."""
    program = (
        f"{prelude}\nimport importlib.util as u\n"
        f"spec = u.spec_from_file_location('vectors', {__file__!r})\n"
        "vectors = u.module_from_spec(spec)\nspec.loader.exec_module(vectors)\n"
        "assert vectors.differing() == []\nprint(*sorted(vectors.cpu_features()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vectors_without_cpu_features() -> None:
    """With every dispatched feature disabled numpy takes other code, and the bits are the same."""
    features = cpu_features()
    if not features:
        pytest.skip("numpy dispatches on no feature of this processor: none can be disabled")
    # what is disabled besides may be absent already, and then numpy warns on stderr alone
    said = run_here(NPY_DISABLE_CPU_FEATURES=" ".join(sorted(features)))
    assert said.split() == []


@pytest.mark.full
@pytest.mark.parametrize("compiled", ["", COMPILED], ids=["numpy", "compiled"])
def test_vectors_in_a_thread_that_flushes_subnormal_values(compiled: str) -> None:
    """A library that sets the processor to flush subnormal values to zero changes no bit."""
    pytest.importorskip("torch", reason="torch sets the flag")
    run_here(compiled + FLUSH)


def test_compiled_vectors() -> None:
    """The compiled generator makes the same, also for a processor that lacks all extensions."""
    run_here(COMPILED)
    run_here(COMPILED, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")


_BOUNDS = st.sampled_from(
    [
        0.0,
        -0.0,
        1e-45,
        2.0**-133,
        -(2.0**-126),
        6e-8,
        1e-5,
        1.0,
        1 + 2.0**-23,
        -math.pi,
        65504.0,
        3e38,
    ]
) | st.floats(-1e30, 1e30)


@settings(max_examples=300, deadline=None)
@given(
    bounds=st.tuples(_BOUNDS, _BOUNDS),
    dtype=st.sampled_from(list(DType)),
    how=st.sampled_from(list(Distribution)),
    seed=st.integers(0, 2**31),
    edge=st.lists(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]), max_size=8),
)
def test_compiled_pens_write_the_same(
    bounds: tuple[float, float], dtype: DType, how: Distribution, seed: int, edge: list[int]
) -> None:
    """Whatever the bounds, each draw becomes the same bits, the first and the last included."""
    recipe = Recipe(TensorSpec(dtype, (1,)), ValueRange(min(bounds), max(bounds)), how)
    if recipe.constant is not None:
        return
    random = np.random.default_rng(seed)
    draws = np.array([*edge, *random.integers(0, 2**32, 200)], np.uint32)
    ends = tuple(FORMATS[dtype].bits(bound) for bound in recipe.finite_bounds)
    arguments = recipe.grid, dtype, (ends[0], ends[1])
    found, wanted = (np.zeros(draws.size, f"u{dtype.itemsize}") for _ in range(2))
    compile_generator()
    try:
        chosen = _draw.pen(*arguments, normal=how is Distribution.NORMAL)
    finally:
        _draw._compiled = None
    assert isinstance(chosen, CompiledPen) == (recipe.grid.exponent >= -126)
    chosen.write(draws, found)
    _draw.pen(*arguments, normal=how is Distribution.NORMAL).write(draws, wanted)
    np.testing.assert_array_equal(found, wanted)
