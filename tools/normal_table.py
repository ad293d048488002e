"""Writes client/opferry/validation/_normal_table.py, the normal distribution's quantiles.

    python -m pip install mpmath
    python tools/normal_table.py client/opferry/validation/_normal_table.py

The quantiles are worked out with 60 decimal digits (z = sqrt(2) * erfinv(1 - 2p), NIST Digital
Library of Mathematical Functions, 7.17) and rounded once to integers, to nearest. What the numbers
mean stands in the docstring of the module that is written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import mpmath

SEGMENT_BITS = 6
FIRST_OCTAVE = 18
LAST_OCTAVE = 31
SCALE_BITS = 28
FRACTION_BITS = 25
CUT = 4

HEAD = '''"""Quantiles of the normal distribution as integers. Written by tools/normal_table.py.

A position t, {first} <= t <= 2^32, stands for the probability p = t / 2^33 of the lower half, and
QUANTILES for -z(p) in units of 2^-{scale} standard deviations. Each octave of t, from
2^{octave} on, has {segments} segments of equal width; the quantile at the start of each is listed,
and at last that of 2^32, which is 0. Between them the chord is followed,
off by at most 1.3e-5 standard deviations (tests/unit/validation/test_normal_table.py measures it).
"""

from __future__ import annotations

SEGMENT_BITS = {bits}
"""Each octave has 2^SEGMENT_BITS segments."""

FIRST_OCTAVE = {octave}
"""The table begins at the position 2^FIRST_OCTAVE."""

SCALE_BITS = {scale}
"""A quantile's unit is 2^-SCALE_BITS standard deviations."""

FRACTION_BITS = {fraction}
"""A place within a segment counts in units of 2^-FRACTION_BITS of the segment."""

FIRST_POSITION = {first}
"""The least position whose chord stays within {cut} standard deviations."""

_WORDS = """
{table}
"""

QUANTILES = tuple(int(word) for word in _WORDS.split())
"""The quantiles, falling; the first lies beyond FIRST_POSITION."""
'''


def quantile(position: int) -> int:
    """Return -z(position / 2^33) in units of 2^-28, rounded to nearest."""
    upper = 1 - mpmath.mpf(position) / 2**32
    return int(mpmath.floor(mpmath.sqrt(2) * mpmath.erfinv(upper) * 2**SCALE_BITS + 0.5))


def table() -> list[int]:
    """Return the quantile at the start of every segment, and that of 2^32."""
    starts = [
        ((1 << SEGMENT_BITS) + segment) << (octave - SEGMENT_BITS)
        for octave in range(FIRST_OCTAVE, LAST_OCTAVE + 1)
        for segment in range(1 << SEGMENT_BITS)
    ]
    return [*map(quantile, starts), 0]


def first_position(quantiles: Sequence[int]) -> int:
    """Return the least position whose chord is at most CUT standard deviations."""
    width = FIRST_OCTAVE - SEGMENT_BITS
    position = 1 << FIRST_OCTAVE
    while True:
        segment, rest = divmod(position - (1 << FIRST_OCTAVE), 1 << width)
        step = quantiles[segment] - quantiles[segment + 1]
        fraction = rest << (FRACTION_BITS - width)
        if quantiles[segment] - (step * fraction >> FRACTION_BITS) <= CUT << SCALE_BITS:
            return position
        position += 1


def module() -> str:
    """Return the module's source."""
    mpmath.mp.dps = 60
    quantiles = table()
    lines = [" ".join(map(str, quantiles[at : at + 9])) for at in range(0, len(quantiles), 9)]
    return HEAD.format(
        bits=SEGMENT_BITS,
        octave=FIRST_OCTAVE,
        scale=SCALE_BITS,
        fraction=FRACTION_BITS,
        segments=1 << SEGMENT_BITS,
        first=first_position(quantiles),
        cut=CUT,
        table="\n".join(lines),
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(module(), "ascii")
