"""Input data from a seed: the same bits with every numpy release and on every machine.

The recipe, version `GENERATOR_VERSION`:

1. The key is the first 16 bytes, little-endian, of the SHA-256 of the JSON array [version, seed,
   case name, input name]. It keys Philox4x64-10, whose raw 64-bit words are used in order.
2. For each value that must occur, one word w chooses the view element w mod n of the n in row-major
   order (axes of stride 0 count as 1); if its place in the storage is taken, the next element.
3. For each element of the storage in order, one word w: u = (w >> 11) / (2^53 - 1), the value is
   low + u * (high - low) in float64, kept within the bounds, rounded to float32, then to the dtype.
   An infinite bound counts here as the dtype's largest finite value of its sign.
4. The values that must occur, the forced ones and then infinite bounds, take their places.

With equal bounds step 3 writes that value, with a NaN bound NaN, and no words are used for it. Only
integer arithmetic and IEEE + - * / take part, so nothing depends on a mathematical library.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.tensors import HostTensor, TensorSpec, raw_bytes
from opferry.validation.ranges import ValueRange
from opferry.validation.rounding import FORMATS

GENERATOR_VERSION = "opferry-inputs-1"
"""Changes whenever the same seed gives other bits."""

BLOCK_ELEMENTS = 64 * 1024
"""Elements drawn at once: a few float64 temporaries of 512 KiB, whatever the tensor's size."""


def generate_input(
    spec: TensorSpec, value_range: ValueRange, *, seed: int, case_name: str, input_name: str
) -> HostTensor:
    """Return an input with data drawn from a range.

    Args:
        spec: a checked spec; the whole storage is filled.
        value_range: the interval, and the values that occur for certain in the view.
        seed: any integer.
        case_name: the case's name; other names give other data.
        input_name: the operator's parameter; likewise.
    """
    philox = np.random.Philox(key=_key(seed, case_name, input_name))
    storage = np.empty(spec.storage_count, spec.dtype.numpy)
    low, high = (_bound(value, spec.dtype) for value in (value_range.low, value_range.high))
    constant = low == high or value_range.is_nan
    forced = [_bound(value, spec.dtype) for value in value_range.forced]
    if not constant:
        forced += [bound for bound in (low, high) if math.isinf(bound)]
    places = _places(spec, philox, len(forced))
    if constant:
        storage[:] = _rounded(np.float64(math.nan if value_range.is_nan else low), spec.dtype)
    else:
        largest = FORMATS[spec.dtype].largest
        _draw(storage, philox, max(low, -largest), min(high, largest), spec.dtype)
    for place, value in zip(places, forced, strict=False):
        storage[place] = _rounded(np.float64(value), spec.dtype)
    return HostTensor(spec, raw_bytes(storage))


def _key(seed: int, case_name: str, input_name: str) -> int:
    text = json.dumps([GENERATOR_VERSION, int(seed), case_name, input_name])
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:16], "little")


def _bound(value: float, dtype: DType) -> float:
    """Return a bound or forced value as the dtype can hold it: finite, infinite or NaN."""
    form = FORMATS[dtype]
    if math.isnan(value) or abs(value) <= form.largest:
        return value
    return math.copysign(math.inf if abs(value) >= form.overflow else form.largest, value)


def _rounded(values: Any, dtype: DType) -> Any:
    with np.errstate(all="ignore"):
        return values.astype(np.float32).astype(dtype.numpy)


def _draw(
    storage: NDArray[Any], philox: np.random.Philox, low: float, high: float, dtype: DType
) -> None:
    span = high - low
    for first in range(0, storage.size, BLOCK_ELEMENTS):
        block = storage[first : first + BLOCK_ELEMENTS]
        words: NDArray[np.uint64] = philox.random_raw(block.size)
        unit = (words >> np.uint64(11)).astype(np.float64)
        unit /= 2.0**53 - 1
        unit *= span
        unit += low
        # the last rounding of the sum may step over the upper bound
        np.minimum(unit, high, out=unit)
        np.maximum(unit, low, out=unit)
        block[:] = _rounded(unit, dtype)


def _places(spec: TensorSpec, philox: np.random.Philox, count: int) -> list[int]:
    """Return up to *count* different places in the storage that the view shows."""
    axes = [
        (extent, step) for extent, step in zip(spec.shape, spec.full_strides, strict=True) if step
    ]
    total = math.prod(extent for extent, _ in axes)
    places: list[int] = []
    for _ in range(min(count, total)):
        start = int(philox.random_raw()) % total
        for element in range(start, start + total):
            rest, place = element % total, spec.storage_offset
            for extent, step in reversed(axes):
                rest, position = divmod(rest, extent)
                place += position * step
            if place not in places:
                places.append(place)
                break
    return places
