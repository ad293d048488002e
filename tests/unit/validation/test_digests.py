"""Digests of outputs: of the bytes, once every NaN is the dtype's canonical one."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from opferry.core.dtypes import DType
from opferry.validation import digests
from opferry.validation.digests import output_digest
from opferry.validation.rounding import FORMATS

# infinities, the NaN on either side of them, quiet and signalling, zeros, the largest
EDGES = {
    2: (0x0000, 0x8000, 0x7BFF, 0x7C00, 0x7C01, 0xFC00, 0xFC01, 0x7F7F, 0x7F80, 0x7F81, 0xFFFF),
    4: (0, 1 << 31, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFF800000, 0xFFC00001, 0xFFFFFFFF),
}


@pytest.mark.parametrize("dtype", DType)
@given(data=st.data())
def test_it_is_that_of_the_bytes_with_canonical_nan(dtype: DType, data: st.DataObject) -> None:
    """NaN are found by their bits, one element at a time, independently of numpy's isnan."""
    size = dtype.itemsize
    any_bits = st.sampled_from(EDGES[size]) | st.integers(0, 256**size - 1)
    bits = data.draw(st.lists(any_bits, max_size=40))
    infinity, nan = (FORMATS[dtype].bits(value) for value in (float("inf"), float("nan")))
    magnitude = 256**size // 2 - 1
    canonical = [nan if (one & magnitude) > infinity else one for one in bits]
    array = np.array(bits, f"u{size}").view(dtype.numpy)
    wanted = xxhash.xxh3_64_digest(np.array(canonical, f"u{size}").tobytes())
    assert output_digest(array) == wanted


@pytest.mark.parametrize("dtype", DType)
def test_every_block_is_looked_at(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN with a payload in the last element of many counts as the canonical one."""
    monkeypatch.setattr(digests, "BLOCK_ELEMENTS", 16)
    array = np.ones(16 * 5, dtype.numpy)
    array[-1] = np.nan
    other = array.copy()
    other.view(f"u{dtype.itemsize}")[-1] |= 1
    assert other.tobytes() != array.tobytes()
    assert output_digest(other) == output_digest(array)
