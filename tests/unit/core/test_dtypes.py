"""The three dtypes: their names, their bits, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from opferry.core.dtypes import DType, canonical_nan
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import from_array, view_array

BF16_BITS = [0x0000, 0x8000, 0x0001, 0x7F80, 0xFF80, 0x7FC1, 0x3C24]
"""Zero of both signs, the smallest subnormal, both infinities, a NaN with a payload, 0.01."""


@pytest.mark.parametrize("bits", BF16_BITS, ids=hex)
@pytest.mark.parametrize("keep_strides", [False, True])
def test_bfloat16_bits_survive_encoding_and_decoding(bits: int, keep_strides: bool) -> None:
    """The bits of a bfloat16 are unchanged on the way into a tensor and back."""
    array = np.full((2, 3), bits, np.uint16).view(ml_dtypes.bfloat16)
    tensor = from_array("query", array[:, ::2], keep_strides=keep_strides)
    words = np.frombuffer(tensor.data, "<u2")
    back = view_array(tensor.spec, bytes(tensor.data))
    assert set(words) == {bits}
    assert back.shape == (2, 2)
    assert set(back.copy().view(np.uint16).ravel()) == {bits}


def test_bfloat16_words_are_little_endian() -> None:
    """The raw bytes of a bfloat16 are its lower byte, then its upper."""
    array = np.array([0x3C24], np.uint16).view(ml_dtypes.bfloat16)
    assert bytes(from_array("cos", array).data) == b"\x24\x3c"


def test_float32_rounds_to_the_nearest_bfloat16() -> None:
    """0.01 becomes 0x3C24; cutting the lower half off would give 0x3C23."""
    rounded = np.array(0.01, np.float32).astype(DType.BFLOAT16.numpy)
    assert rounded.view(np.uint16) == 0x3C24


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("float32", DType.FLOAT32),
        ("fp32", DType.FLOAT32),
        ("FLOAT16", DType.FLOAT16),
        (" fp16 ", DType.FLOAT16),
        ("bfloat16", DType.BFLOAT16),
        ("BF16", DType.BFLOAT16),
    ],
)
def test_parse_knows_the_users_words(word: str, dtype: DType) -> None:
    """The words of TTK files and of numpy name the dtypes, in any case."""
    assert DType.parse(word) is dtype


@pytest.mark.parametrize("word", ["", "float64", "int8", "bf8", "float", "x" * 1000])
def test_parse_refuses_other_words(word: str) -> None:
    """Any other word is refused with what it was for, what was given and what is allowed."""
    with pytest.raises(Problem, match=r"^the second dtype has dtype .*; allowed are") as caught:
        DType.parse(word, "the second dtype")
    problem = caught.value
    assert (problem.reason, problem.argument) == (Reason.DTYPE_NOT_ALLOWED, "the second dtype")
    assert word[:40] in str(problem.given)
    assert word[:40] in problem.message
    assert len(problem.message) < 150


@pytest.mark.parametrize("dtype", list(DType))
def test_of_finds_a_dtype_in_either_byte_order(dtype: DType) -> None:
    """An array's dtype is found whatever its byte order."""
    assert DType.of(dtype.numpy, "query") is dtype
    assert DType.of(dtype.numpy.newbyteorder(">"), "query") is dtype
    assert dtype.numpy.itemsize == dtype.itemsize


@pytest.mark.parametrize("dtype", ["f8", "i1", "c8", "?", "O", "U3", [("a", "f4")]])
def test_of_refuses_other_dtypes(dtype: object) -> None:
    """Any other numpy dtype is refused, naming the argument, with CANN's status."""
    with pytest.raises(Problem, match=r"^grad_key_embed has dtype ") as caught:
        DType.of(np.dtype(dtype), "grad_key_embed")  # type: ignore[call-overload]
    problem = caught.value
    assert problem.reason is Reason.DTYPE_NOT_ALLOWED
    assert (problem.argument, problem.aclnn_status) == ("grad_key_embed", 161002)


@pytest.mark.parametrize(
    ("dtype", "integer", "nans", "canonical"),
    [
        (np.dtype(np.float32), np.uint32, [0x7F800001, 0xFFC00000, 0x7FFFFFFF], 0x7FC00000),
        (np.dtype(np.float16), np.uint16, [0x7C01, 0xFE00, 0x7FFF], 0x7E00),
        (np.dtype(ml_dtypes.bfloat16), np.uint16, [0x7F81, 0xFFC0, 0x7FFF], 0x7FC0),
        (np.dtype(np.float64), np.uint64, [0x7FF0000000000001, 0xFFF8 << 48], 0x7FF8 << 48),
    ],
    ids=["float32", "float16", "bfloat16", "float64"],
)
def test_canonical_nan_replaces_nans_only(
    dtype: np.dtype, integer: type, nans: list[int], canonical: int
) -> None:
    """Every NaN becomes the quiet NaN without sign or payload; nothing else changes."""
    others = np.array([0.0, -0.0, 1.5, np.inf, -np.inf], np.float64).astype(dtype)
    array = np.concatenate([np.array(nans, integer).view(dtype), others])
    before = array.copy()
    result = canonical_nan(array)
    assert [int(bits) for bits in result.view(integer)[: len(nans)]] == [canonical] * len(nans)
    assert result[len(nans) :].tobytes() == others.tobytes()
    assert array.tobytes() == before.tobytes()


def test_canonical_nan_takes_scalars() -> None:
    """An array without axes is handled as any other."""
    assert canonical_nan(np.array(-np.nan, np.float32)).view(np.uint32) == 0x7FC00000
