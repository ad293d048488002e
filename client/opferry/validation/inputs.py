"""Input data from a recipe: the same bits with every numpy release and on every machine.

The generator `recipes.GENERATOR_VERSION`:

1. The key is the first 16 bytes, little-endian, of the SHA-256 of the JSON array [version, seed,
   case name, input name]. It keys Philox4x64-10 (Salmon et al., 2011), which makes of each value of
   its counter four words of 64 bits, and so eight draws of 32 bits, the lower half of a word first.
2. Both bounds are rounded to the dtype, to nearest; an infinite one counts as the dtype's largest
   finite value of its sign. The grid's unit is the least power of two, not under the dtype's least
   subnormal value, for which the points first = floor(low / unit) to last = ceil(high / unit) are
   at most 2^32, and none is larger than 2^53 (float32) or 2^24 (float16, bfloat16) in magnitude.
3. Element i of the storage takes draw i mod 8 of the counter 1 + floor(i / 8). Its point is
   uniform: first + floor(draw * (last - first + 1) / 2^32);
   normal: floor((first + last) / 2), plus, or minus if the draw's highest bit is set,
   floor(z * (last - first) / 2^31), where z is the quantile in units of 2^-28 at the position
   t = FIRST_POSITION + floor(lower 31 bits of the draw * (2^32 - FIRST_POSITION) / 2^31), read off
   the chords of `_normal_table`: z = a - floor((a - b) * f / 2^25) in a segment from a to b, where
   f = floor(2^25 * the part of the segment before t).
   The value is the point times the unit, rounded once to the dtype, to nearest, ties to even; for
   the first and the last point it is the bound.
4. The values that must occur, the forced ones and then infinite bounds, take their places: for each
   one 64-bit word w, from the counter 2^128 + 1 on, chooses the view element w mod n of the n in
   row-major order (axes of stride 0 count as 1); if its place is taken, the next element.

With equal bounds every element is that value, with a NaN bound NaN. No function of a mathematical
library takes part, nothing is rounded twice, and any element can be made alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor, TensorSpec, raw_bytes
from opferry.validation._draw import CHUNK, compile_pens, pen
from opferry.validation.ranges import ValueRange
from opferry.validation.recipes import Distribution, Recipe
from opferry.validation.rounding import FORMATS

BLOCK_ELEMENTS = 64 * 1024
"""What one thread makes at a time: about 0.4 ms, and 256 KiB of draws."""

_DRAWS = 8
"""Draws of 32 bits for each value of Philox's counter."""


def generate_input(
    spec: TensorSpec,
    value_range: ValueRange,
    *,
    seed: int,
    case_name: str,
    input_name: str,
    distribution: Distribution = Distribution.UNIFORM,
) -> HostTensor:
    """Return an input with data drawn from a range; `generate` of the `Recipe` of these.

    Args:
        spec: the tensor; the whole storage is filled.
        value_range: the interval, and the values that occur for certain in the view.
        seed: any integer.
        case_name: the case's name; other names give other data.
        input_name: the operator's parameter; likewise.
        distribution: how values lie in the interval.

    Raises:
        Problem: TENSOR_MALFORMED for a tensor that is not well formed.
    """
    return generate(Recipe(spec, value_range, distribution, seed, case_name, input_name))


def compile_generator() -> None:
    """Make inputs in machine code from now on: the same bits, faster.

    Raises:
        Exception: whatever keeps it from being compiled; inputs are made as before then.
    """
    compile_pens()


def generate(recipe: Recipe, *, threads: int = 1) -> HostTensor:
    """Make the input that a recipe describes.

    Args:
        recipe: the recipe.
        threads: how many threads share the work; the bits do not depend on it.
    """
    bits = np.empty(recipe.spec.storage_count, _bits_dtype(recipe))
    _make(recipe, bits, threads)
    return HostTensor(recipe.spec, raw_bytes(bits))


def fill(recipe: Recipe, data: memoryview) -> None:
    """Make the input that a recipe describes in memory that is there.

    Args:
        recipe: the recipe.
        data: spec.data_bytes bytes, writable.
    """
    bits = np.frombuffer(data, _bits_dtype(recipe))
    _make(recipe, bits, 1)


def _make(recipe: Recipe, bits: NDArray[Any], threads: int) -> None:
    starts = range(0, bits.size, BLOCK_ELEMENTS)
    if threads > 1 and len(starts) > 1 and recipe.constant is None:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda some: _fill(recipe, some, 0, bits), _shares(starts, threads)):
                pass
    else:
        _fill(recipe, starts, 0, bits)
    _force(recipe, 0, bits)


def generate_slice(recipe: Recipe, start: int, stop: int) -> NDArray[Any]:
    """Make a part of the storage alone, without what lies before it.

    Args:
        recipe: the recipe.
        start: the first element of the storage.
        stop: the element after the last.

    Returns:
        Shape (stop - start,), of the recipe's dtype.

    Raises:
        ValueError: unless 0 <= start <= stop <= the number of elements of the storage.
    """
    if not 0 <= start <= stop <= recipe.spec.storage_count:
        raise ValueError(
            f"elements {start} to {stop} of a storage of {recipe.spec.storage_count}; give "
            "0 <= start <= stop <= that number"
        )
    bits = np.empty(stop - start, _bits_dtype(recipe))
    _fill(recipe, range(start, stop, BLOCK_ELEMENTS), start, bits)
    _force(recipe, start, bits)
    return bits.view(recipe.spec.dtype.numpy)


def digest(tensor: HostTensor) -> bytes:
    """Return the XXH3 of a tensor's storage: 8 bytes, as xxh3_64 in the protocol.

    Args:
        tensor: any tensor; its whole storage counts.
    """
    return xxhash.xxh3_64_digest(tensor.data)


def check_digest(recipe: Recipe, tensor: HostTensor, wanted: bytes) -> None:
    """Check that generated data are what another side generated.

    Args:
        recipe: what both made.
        tensor: what was made here.
        wanted: what `digest` returned there.

    Raises:
        Problem: RECIPE_MISMATCH if the digests differ.
    """
    found = digest(tensor)
    if found != wanted:
        raise Problem(
            Reason.RECIPE_MISMATCH,
            f"{recipe.input_name} has the digest {found.hex()} here and {wanted.hex()} on the "
            f"other side, both made by {recipe.version}: send the data instead, and report it with "
            "both numpy versions and processors",
            argument=recipe.input_name,
            given=wanted.hex(),
            allowed=found.hex(),
        )


def _bits_dtype(recipe: Recipe) -> np.dtype[Any]:
    return np.dtype(f"u{recipe.spec.dtype.itemsize}")


def _shares(starts: range, threads: int) -> Iterator[range]:
    """Split blocks into neighbouring ones, a share for each thread."""
    each = -(-len(starts) // threads)
    for first in range(0, len(starts), each):
        yield starts[first : first + each]


def _fill(recipe: Recipe, starts: range, origin: int, bits: NDArray[Any]) -> None:
    """Write all but the forced values.

    Args:
        recipe: the recipe.
        starts: the storage elements at which the blocks begin.
        origin: the storage element of bits[0]; a block ends with *bits* at the latest.
        bits: shape (n,).
    """
    form = FORMATS[recipe.spec.dtype]
    if recipe.constant is not None:
        bits[:] = form.bits(recipe.constant)
        return
    low, high = (form.bits(bound) for bound in recipe.finite_bounds)
    normal = recipe.distribution is Distribution.NORMAL
    writer = pen(recipe.grid, recipe.spec.dtype, (low, high), normal=normal)
    for start in starts:
        block = bits[start - origin : start - origin + BLOCK_ELEMENTS]
        draws = _draws(recipe, start, block.size)
        for first in range(0, block.size, CHUNK):
            writer.write(draws[first : first + CHUNK], block[first : first + CHUNK])


def _draws(recipe: Recipe, start: int, count: int) -> NDArray[np.uint32]:
    """Return the draws of *count* elements from *start* on."""
    counter, skipped = divmod(start, _DRAWS)
    # numpy steps the counter before it makes words, so that its first four are those of counter + 1
    philox = np.random.Philox(key=recipe.key, counter=counter)
    words: NDArray[np.uint64] = philox.random_raw((skipped + count + 1) // 2)
    return words.view(np.uint32)[skipped : skipped + count]


def _force(recipe: Recipe, origin: int, bits: NDArray[Any]) -> None:
    """Write the forced values that lie in the storage elements from *origin* on."""
    form = FORMATS[recipe.spec.dtype]
    for place, value in recipe.forced.items():
        if origin <= place < origin + bits.size:
            bits[place - origin] = form.bits(value)
