"""Whether an output agrees with its golden, by one of the standards of `STANDARDS`.

With a the output and g the golden, over every element:

- mixed: passes if at least 99 % of the elements have |a-g| <= atol + rtol*|g|, and the largest
  |a-g| is at most the dtype's floor or 32 units in the last place of g there.
- stat_rel_err: passes if mean(r) < t and max(r) < 10 t, where r = |a-g| / (|g| + 1e-7).
- close: passes if the share of elements with |a-g| > atol + rtol*|g| is at most ptol.
- cosine: passes if 1 - cos(a, g) <= 0.01, a and g as vectors of all finite pairs. If all values of
  one are 0 and the other's are not, it fails; if both are 0, it passes. Whether a golden is 0 is
  decided after rounding it to the output's dtype. No element fails by itself.
- binary: passes if every element has the bits of g rounded to the output's dtype.

Under every standard, NaN in both is equal and passes, so is the same infinity in both; NaN or
infinity on one side only fails the output. Infinities are compared after rounding the golden to the
output's dtype. Errors, their mean and their maximum count the elements that are finite in both.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation._verdict import Pair, check_arrays, judge
from opferry.validation.comparison import Comparison
from opferry.validation.standards import EDITIONS, check_standard

Array = NDArray[Any]


def compare(
    actual: Array,
    golden: Array,
    standard: str = "mixed",
    *,
    dtype: DType,
    edition: str = EDITIONS[0],
    rtol: float | None = None,
    ptol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Judge an output by its golden.

    Args:
        actual: the output; its dtype is *dtype*, any shape with at least one element.
        golden: the same shape; of *dtype*, or float64 and unrounded.
        standard: one of `STANDARDS`.
        dtype: the output's dtype, which chooses the thresholds.
        edition: one of `EDITIONS`, for `mixed`.
        rtol: for `close` in place of the default.
        ptol: the share of elements that may miss, likewise.
        atol: likewise.

    Raises:
        Problem: ATTRIBUTE_INVALID for a word or threshold that the standard does not take;
            SHAPE_MISMATCH or DTYPE_NOT_ALLOWED if the arrays do not belong together.
    """
    check_standard(standard, edition, rtol=rtol, ptol=ptol, atol=atol)
    check_arrays(actual, golden, dtype)
    pair = Pair(actual, golden, dtype)
    return judge(pair, standard, edition=edition, rtol=rtol, ptol=ptol, atol=atol)
