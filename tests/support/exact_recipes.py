"""The documented recipe once more, in plain integers and fractions, without numpy."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from opferry.core.dtypes import DType
from opferry.validation import GENERATOR_VERSION, Distribution, Recipe
from opferry.validation._normal_table import FIRST_POSITION, QUANTILES

# of each dtype: significand bits, exponent bits, bits of a point
FORMS = {DType.FLOAT32: (24, 8, 53), DType.FLOAT16: (11, 5, 24), DType.BFLOAT16: (8, 8, 24)}
_MASK = 2**64 - 1


def philox_words(key: int, counter: int) -> Iterator[int]:
    """Philox4x64-10 (Salmon et al., 2011): the words of the counters from counter + 1 on."""
    while True:
        counter += 1
        c = [counter >> shift & _MASK for shift in (0, 64, 128, 192)]
        k = [key & _MASK, key >> 64]
        for _ in range(10):
            high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 2**64)
            high1, low1 = divmod(0xCA5A826395121157 * c[2], 2**64)
            c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
            k = [(k[0] + 0x9E3779B97F4A7C15) & _MASK, (k[1] + 0xBB67AE8584CAA73B) & _MASK]
        yield from c


def recipe_key(seed: int, case: str, name: str) -> int:
    text = json.dumps([GENERATOR_VERSION, seed, case, name]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "little")


def draws(recipe: Recipe, first_counter: int = 0) -> Iterator[int]:
    """The 32-bit draws of the elements, from the element 8 * first_counter on."""
    key = recipe_key(recipe.seed, recipe.case_name, recipe.input_name)
    for word in philox_words(key, first_counter):
        yield word & 0xFFFFFFFF
        yield word >> 32


@lru_cache
def least(dtype: DType) -> Fraction:
    """The smallest subnormal value."""
    precision, exponent_bits, _ = FORMS[dtype]
    return Fraction(2) ** (3 - 2 ** (exponent_bits - 1) - precision)


def nearest_bits(value: Fraction, dtype: DType) -> int:
    """The bits of an exact value, rounded to nearest, ties to even."""
    precision, exponent_bits, _ = FORMS[dtype]
    count = abs(value) / least(dtype)
    binade = max(int(count).bit_length() - precision, 0)
    # round takes ties to even; a carry into the next binade comes out right in the sum
    bits = round(count / 2**binade) + (binade << (precision - 1))
    return bits | (value < 0) << (precision - 1 + exponent_bits)


def value_of(bits: int, dtype: DType) -> Fraction:
    """The exact value of finite bits."""
    precision, exponent_bits, _ = FORMS[dtype]
    sign, magnitude = divmod(bits, 1 << (precision - 1 + exponent_bits))
    field, rest = divmod(magnitude, 1 << (precision - 1))
    count = rest if field == 0 else (rest + (1 << (precision - 1))) << (field - 1)
    return (-1) ** sign * count * least(dtype)


@lru_cache
def grid(low: Fraction, high: Fraction, dtype: DType) -> tuple[Fraction, int, int]:
    """The unit and the first and last point."""
    unit = least(dtype)
    while True:
        first, last = math.floor(low / unit), math.ceil(high / unit)
        if last - first + 1 <= 2**32 and max(abs(first), abs(last)) <= 2 ** FORMS[dtype][2]:
            return unit, first, last
        unit *= 2


def normal_offset(draw: int, width: int) -> int:
    """How far from the middle a normal draw lies, in points."""
    position = FIRST_POSITION + ((draw % 2**31) * (2**32 - FIRST_POSITION) >> 31)
    octave = position.bit_length() - 1
    segment, rest = divmod(position - 2**octave, 2 ** (octave - 6))
    fraction = math.floor(Fraction(rest, 2 ** (octave - 6)) * 2**25)
    at = 64 * (octave - 18) + segment
    quantile = QUANTILES[at] - ((QUANTILES[at] - QUANTILES[at + 1]) * fraction >> 25)
    offset = quantile * width >> 31
    return -offset if draw >> 31 else offset


def element_bits(recipe: Recipe, draw: int, low: Fraction, high: Fraction) -> int:
    """The bits of one element.

    Args:
        recipe: the recipe.
        draw: the element's draw.
        low: the finite lower bound, which the dtype holds.
        high: the finite upper bound, likewise.
    """
    unit, first, last = grid(low, high, recipe.spec.dtype)
    if recipe.distribution is Distribution.NORMAL:
        point = (first + last) // 2 + normal_offset(draw, last - first)
    else:
        point = first + (draw * (last - first + 1) >> 32)
    value = low if point == first else high if point == last else point * unit
    return nearest_bits(value, recipe.spec.dtype)
