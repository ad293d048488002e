"""The element types: float32, float16 and bfloat16.

bfloat16 arrays are numpy arrays of ml_dtypes' bfloat16; on the wire and in files the raw bits go.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason


class DType(Enum):
    """The type of one element; the value is its name everywhere."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    # each is itself alone; Enum's own takes a step of Python each time, and specs are keys
    __hash__ = object.__hash__

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return 4 if self is DType.FLOAT32 else 2

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype in native (little-endian) byte order."""
        found: np.dtype[Any] = _NUMPY[self]
        return found

    @classmethod
    def parse(cls, word: str, argument: str = "dtype") -> DType:
        """Return the dtype for a word as users and TTK write it, for example "bf16".

        Args:
            word: in any case.
            argument: what the word was given for, for the error's text.

        Raises:
            Problem: DTYPE_NOT_ALLOWED for any other word.
        """
        try:
            return _WORDS[word.strip().lower()]
        except KeyError:
            raise not_allowed(argument, word[:40]) from None

    @classmethod
    def of(cls, dtype: np.dtype[Any], argument: str) -> DType:
        """Return the dtype of an array, whatever its byte order.

        Args:
            dtype: the array's numpy dtype.
            argument: the parameter that the array was given for, for the error's text.

        Raises:
            Problem: DTYPE_NOT_ALLOWED for any type but the three.
        """
        found = _OF_NUMPY.get(dtype.newbyteorder("="))
        if found is None:
            raise not_allowed(argument, str(dtype))
        return found


ALLOWED = "float32, float16 or bfloat16"
"""The allowed dtypes as error texts name them."""

_NUMPY = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_OF_NUMPY = {numpy: dtype for dtype, numpy in _NUMPY.items()}
_WORDS = {
    "float32": DType.FLOAT32,
    "fp32": DType.FLOAT32,
    "float16": DType.FLOAT16,
    "fp16": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16,
    "bf16": DType.BFLOAT16,
}


def not_allowed(argument: str, given: str) -> Problem:
    """Return the problem of a dtype that is not one of the three."""
    return Problem(
        Reason.DTYPE_NOT_ALLOWED,
        f"{argument} has dtype {given}; allowed are {ALLOWED}",
        argument=argument,
        given=given,
        allowed=ALLOWED,
        aclnn_status=ACLNN_ERR_PARAM_INVALID,
    )


def canonical_nan(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of *array* in which every NaN is the dtype's canonical quiet NaN.

    Equal bits, and digests of outputs, are defined after this replacement, because the sign and
    payload of a computed NaN differ between processors.

    Args:
        array: any shape; float32, float16, bfloat16 or float64.
    """
    result = array.copy()
    # looking at a signalling NaN raises the processor's flag for invalid operations
    with np.errstate(invalid="ignore"):
        result[np.isnan(result)] = np.nan
    return result
