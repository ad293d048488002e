"""The table of the normal distribution's quantiles, against other ways to work them out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import NormalDist

import pytest

from opferry.validation import _normal_table as table

ROOT = Path(__file__).parents[3]
SCALE = 2**table.SCALE_BITS
SEGMENTS = 2**table.SEGMENT_BITS


def start_of(segment: int) -> int:
    """The position at which a segment starts."""
    octave, rest = divmod(segment, SEGMENTS)
    return (SEGMENTS + rest) << (octave + table.FIRST_OCTAVE - table.SEGMENT_BITS)


def quantile(position: float) -> float:
    """By the algorithm AS241 (Wichura, 1988), which Python's statistics uses."""
    return -NormalDist().inv_cdf(position / 2**33)


def test_quantiles_are_right_to_the_last_place() -> None:
    """Each entry is the quantile, rounded to nearest; AS241 is right to about 1e-16."""
    count = len(table.QUANTILES)
    assert start_of(count - 1) == 2**32
    assert table.QUANTILES[-1] == 0
    for segment, found in enumerate(table.QUANTILES):
        assert abs(found - quantile(start_of(segment)) * SCALE) <= 0.5 + 1e-5


def test_chords_stay_near_the_curve() -> None:
    """Between the entries the chord is off by at most 1.3e-5 standard deviations, as documented."""
    worst = 0.0
    for segment, (high, low) in enumerate(zip(table.QUANTILES, table.QUANTILES[1:], strict=False)):
        start, stop = start_of(segment), start_of(segment + 1)
        for part in range(1, 64):
            chord = (high + (low - high) * part / 64) / SCALE
            worst = max(worst, abs(chord - quantile(start + (stop - start) * part / 64)))
    assert 1.2e-5 < worst < 1.3e-5


def test_first_position_is_the_least_within_the_cut() -> None:
    """There the chord has come down to 4 standard deviations, one position before not yet."""
    first, second = table.QUANTILES[:2], table.QUANTILES[1:3]
    width = start_of(1) - start_of(0)

    def chord(position: int) -> float:
        segment, rest = divmod(position - start_of(0), width)
        high, low = (first, second)[segment] if segment < 2 else table.QUANTILES[segment:][:2]
        fraction = rest * 2**table.FRACTION_BITS // width
        return high - ((high - low) * fraction >> table.FRACTION_BITS)

    assert chord(table.FIRST_POSITION) <= 4 * SCALE < chord(table.FIRST_POSITION - 1)


def test_the_script_writes_the_committed_table() -> None:
    """tools/normal_table.py, with 60 digits, gives the module byte for byte."""
    pytest.importorskip("mpmath", reason="the script works with mpmath")
    spec = importlib.util.spec_from_file_location("script", ROOT / "tools" / "normal_table.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.module() == Path(table.__file__).read_text("ascii")
