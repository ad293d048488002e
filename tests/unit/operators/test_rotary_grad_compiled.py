"""The compiled reference: the bits of the blocked one, whatever is given, by any threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opferry.core.dtypes import DType, canonical_nan
from opferry.core.tensors import TensorSpec
from opferry.operators import _rotary_grad_compiled, operator_named
from opferry.operators._rotary_blocks import BLOCK_ELEMENTS
from opferry.operators._rotary_grad_compiled import FusedRotaryGrad
from opferry.operators._rotary_grad_reference import rotary_grad
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGrad
from opferry.operators.compiled import Threads

Array = NDArray[Any]
Arrays = dict[str, Array]

OUTPUTS = {
    "grad_query": "grad_query_embed",
    "grad_key": "grad_key_embed",
    "grad_cos": "cos",
    "grad_sin": "sin",
}

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -6e-8, 65504.0, 65520.0, 3.4e38, 1e-39]
"""Values at the edges of the three dtypes; what does not fit becomes infinite or 0."""


def random_bits(shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    """Return numbers of all magnitudes, with some special values among them."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) * np.exp2(random.integers(-20, 12, shape))
    chosen = random.random(shape) < 0.1
    with np.errstate(over="ignore"):
        return np.where(chosen, random.choice(SPECIAL, shape), values).astype(dtype.numpy)


def bsnd(sizes: Any, seed: int, dtype: DType) -> Arrays:
    """Return the inputs of a call, all as (B, S, N, D)."""
    names = ["grad_query_embed", "grad_key_embed", "cos", "sin"]
    names += ["query", "key"] if sizes.optional else []
    return {
        name: random_bits(sizes.shape(name), dtype, seed + number)
        for number, name in enumerate(names)
    }


def made(inputs: Arrays, compute: Any) -> Arrays:
    """Return what *compute* writes for some inputs."""
    outputs = {
        name: np.full_like(inputs[like], 7)
        for name, like in OUTPUTS.items()
        if "query" in inputs or like.startswith("grad")
    }
    assert compute(inputs, outputs) is not False
    return outputs


def blocked(inputs: Arrays, outputs: Arrays) -> None:
    rotary_grad(inputs, outputs, np.float32)


def assert_same_bits(found: Arrays, wanted: Arrays) -> None:
    """Equal bytes, every NaN replaced by the canonical one."""
    for name, array in wanted.items():
        one, other = (canonical_nan(value).tobytes() for value in (found[name], array))
        assert one == other, name


EXTENTS = st.tuples(
    st.integers(1, 5), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(1, 40)
)


@pytest.mark.parametrize("dtype", list(DType))
@settings(max_examples=60, deadline=None)
@given(
    extents=EXTENTS,
    shared=st.booleans(),
    optional=st.booleans(),
    seed=st.integers(0, 2**31),
    threads=st.integers(1, 4),
    piece=st.sampled_from([1, 50, 10**6]),
)
def test_bits_are_those_of_the_blocked_reference(
    sizes: Any,
    dtype: DType,
    extents: tuple[int, ...],
    shared: bool,
    optional: bool,
    seed: int,
    threads: int,
    piece: int,
) -> None:
    """All four outputs, special values and sums included, by however many threads."""
    *outer, half = extents
    call = sizes(1, *outer, 2 * half, 1 if shared else 0, optional)
    inputs = bsnd(call, seed, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rotary_grad_compiled, "PIECE_ELEMENTS", piece)
        assert_same_bits(made(inputs, FusedRotaryGrad(threads)), made(inputs, blocked))


def _large(sizes: Any) -> Iterator[Any]:
    yield sizes(1, 1, 3, 300, 1, 1024)  # more heads than a block has
    yield sizes(1, 3, 2, 150, 130, 1024, 1)
    yield sizes(1, 70, 5, 7, 2, 32, 1)  # more batches than one
    yield sizes(1, 2, 300, 5, 3, 128, 1)
    assert BLOCK_ELEMENTS < 300 * 1024


@pytest.mark.parametrize("dtype", list(DType))
def test_sums_over_several_blocks(sizes: Any, dtype: DType) -> None:
    """The order of a sum is the same where the blocked reference does it in pieces."""
    for call in _large(sizes):
        inputs = bsnd(call, 3, dtype)
        assert_same_bits(made(inputs, FusedRotaryGrad(2)), made(inputs, blocked))


def _strided(array: Array, kind: str) -> Array:
    """Return the same values with other strides."""
    if kind == "swapped":
        return np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1)
    if kind == "gaps":
        wide = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
        wide[..., 2:-1] = array
        return wide[..., 2:-1]
    if kind == "heads first":
        return np.ascontiguousarray(array.transpose(2, 1, 0, 3)).transpose(2, 1, 0, 3)
    if kind == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1]
    if kind == "columns":
        return np.ascontiguousarray(array.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)
    unaligned = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    unaligned[:] = array
    return unaligned


KINDS = {"swapped": True, "gaps": True, "heads first": True}
KINDS |= {"reversed": False, "columns": False, "unaligned": False}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", list(DType))
def test_strides(sizes: Any, dtype: DType, kind: str) -> None:
    """Views are computed where they lie; those that are not for it are left to the other path."""
    plain = bsnd(sizes(1, 3, 4, 2, 3, 8, 1), 11, dtype)
    views = {name: _strided(array, kind) for name, array in plain.items()}
    wanted = made(plain, blocked)
    found = {name: np.full_like(array, 7) for name, array in wanted.items()}
    assert FusedRotaryGrad(2)(views, found) is KINDS[kind]
    if KINDS[kind]:
        assert_same_bits(found, wanted)
        into = {name: _strided(np.full_like(array, 7), kind) for name, array in wanted.items()}
        assert FusedRotaryGrad(2)(plain, into)
        assert_same_bits(into, wanted)
    else:
        assert all((array == 7).all() for array in found.values())


@pytest.mark.parametrize("layout", [1, 2, 4])
@pytest.mark.parametrize("kind", ["gaps", "columns"])
def test_the_operator_takes_either(sizes: Any, compute: Any, layout: int, kind: str) -> None:
    """An operator whose reference is compiled returns the same for each layout and any strides."""
    operator = ApplyRotaryPosEmbGrad()
    operator.compile_reference(2)
    assert operator.reference_kernel == "numba-fused"
    assert operator_named(operator.name).reference_kernel == "numpy-blocked"
    inputs = sizes(layout, 2, 3, 2, 1, 6).arrays(1, DType.BFLOAT16)
    if layout != 4:
        inputs = {name: _strided(array, kind) for name, array in inputs.items()}
    specs = {name: TensorSpec(DType.BFLOAT16, array.shape) for name, array in inputs.items()}
    plan = operator.check(specs, operator.parse_attributes({"layout": layout}))
    assert_same_bits(operator.reference(inputs, plan), compute(inputs, layout))
    wide = operator.reference(inputs, plan, promote=True)
    for name, array in compute(inputs, layout, promote=True).items():
        assert wide[name].dtype == np.float64
        np.testing.assert_array_equal(wide[name], array)


def test_code_that_is_wrong_here_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not do as the blocked reference does, is refused before it is used."""
    operator = ApplyRotaryPosEmbGrad()
    for wrong in (lambda _, outputs: True, lambda inputs, outputs: False):
        monkeypatch.setattr(_rotary_grad_compiled, "FusedRotaryGrad", lambda _, wrong=wrong: wrong)
        with pytest.raises(ArithmeticError, match="float32 comes out wrong"):
            operator.compile_reference(1)
        assert operator.reference_kernel == "numpy-blocked"


def test_every_16_bit_number(sizes: Any) -> None:
    """Each of the 65,536 numbers of both formats is read, and written back the same."""
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        every = np.arange(2**16, dtype=np.uint16).view(dtype.numpy).reshape(1, 64, 16, 64)
        inputs = dict.fromkeys(["grad_query_embed", "grad_key_embed"], every)
        inputs |= {"cos": np.ones((1, 64, 1, 64), dtype.numpy)}
        inputs |= {"sin": np.zeros((1, 64, 1, 64), dtype.numpy)}
        assert_same_bits(made(inputs, FusedRotaryGrad(1)), made(inputs, blocked))


@pytest.mark.full
def test_a_processor_without_extensions() -> None:
    """All this holds where nothing converts float16, and nothing has vector units."""
    said = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not full",
            "-p",
            "no:cacheprovider",
            __file__,
        ],
        env={**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert said.returncode == 0, said.stdout


def test_a_piece_that_fails_is_told() -> None:
    """An error in any thread reaches the caller, when all have ended."""

    def kernel(first: int, last: int) -> None:
        if first == 5:
            raise ValueError("five")

    threads = Threads(3)
    for _ in range(20):
        with pytest.raises(ValueError, match="five"):
            threads.run(kernel, 10, 1)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("length", "piece"), [(1, 1), (10, 3), (10, 100), (7, 1)])
def test_pieces_cover_the_range(count: int, length: int, piece: int) -> None:
    """Each number of the range is in one piece."""
    seen: list[int] = []
    Threads(count).run(lambda first, last: seen.extend(range(first, last)), length, piece)
    assert sorted(seen) == list(range(length))


def test_without_a_folder_to_keep_it(tmp_path: Path) -> None:
    """Where nothing can be written, it is compiled in memory."""
    folder = tmp_path / "a file"
    folder.touch()
    program = (
        "from opferry.operators.compiled import compiled; from numba import int64\n"
        "@compiled(int64(int64))\ndef twice(n): return 2 * n\nprint(twice(21))"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    said = subprocess.run(
        [sys.executable, script],
        env={"NUMBA_CACHE_DIR": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout == "42\n", said.stderr
