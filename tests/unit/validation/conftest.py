"""Case files on disk, executions in this process, and an exact judge of the standards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import isinf, isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.execution import Execution, Timings
from opferry.core.problems import Problem
from opferry.core.tensors import HostTensor, view_array
from opferry.errors import from_problem
from opferry.operators.call import Call, CallResult
from opferry.validation import CaseFile, read_cases

Array = NDArray[Any]
Arrays = dict[str, Array]

ROW = {
    "testcase_name": "small",
    "api_name": "aclnnApplyRotaryPosEmbGrad",
    "tensor_view_shapes": "((2,3,4,8),(2,3,2,8),(2,3,1,8),(2,3,1,8),(2,3,4,8),(2,3,2,8),"
    "(2,3,4,8),(2,3,2,8),(2,3,1,8),(2,3,1,8),)",
    "tensor_dtypes": "('float32',)",
    "tensor_storage_shapes": "",
    "tensor_view_offsets": "",
    "tensor_view_strides": "",
    "attributes": "{'rotaryModeOptional': 'half', 'layout': 1}",
    "output_tensor_indexes": "(6,7,8,9,)",
    "precision_tolerances": "",
    "absolute_precision": "",
    "input_data_ranges": "",
    "is_enabled": "",
    "remark": "",
}
"""A row that passes, with every column that tests fill in otherwise."""

WITHOUT_OPTIONAL = {
    "tensor_view_shapes": "((2,3,4,8),(2,3,2,8),(2,3,1,8),(2,3,1,8),None,None,"
    "(2,3,4,8),(2,3,2,8),(2,3,1,8),(2,3,1,8),)"
}
"""The same without query and key."""

MakeFile = Callable[..., CaseFile]


@pytest.fixture
def row() -> Mapping[str, str]:
    """The cells of a row that passes."""
    return ROW


@pytest.fixture
def without_optional() -> Mapping[str, str]:
    """The cells that take query and key out of it."""
    return WITHOUT_OPTIONAL


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes rows, each as changes to `ROW`, to a case file."""

    def write(*changes: Mapping[str, str], name: str = "cases.csv") -> Path:
        rows = [{**ROW, **change} for change in changes]
        columns = dict.fromkeys(column for cells in rows for column in cells)
        # by hand: csv of Python 3.10 does not write NUL
        lines = [list(columns), *([cells.get(column, "") for column in columns] for cells in rows)]
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as stream:
            for line in lines:
                quoted = ('"' + cell.replace('"', '""') + '"' for cell in line)
                stream.write(",".join(quoted) + "\r\n")
        return tmp_path / name

    return write


@pytest.fixture
def make_file(write_file: Callable[..., Path]) -> MakeFile:
    """A function that writes and reads a case file; unnamed rows are numbered."""

    def make(*changes: Mapping[str, str]) -> CaseFile:
        named = [{"testcase_name": f"case {i}", **change} for i, change in enumerate(changes)]
        return read_cases(write_file(*named))

    return make


Breakage = Callable[[Arrays], None]


def _reference_call(
    call: Call,
    inputs: Mapping[str, HostTensor],
    before: Breakage | None = None,
    after: Breakage | None = None,
) -> CallResult:
    try:
        plan = call.operator.check(call.inputs, call.attributes)
    except Problem as problem:
        raise from_problem(problem) from problem
    arrays = {name: view_array(tensor.spec, tensor.data).copy() for name, tensor in inputs.items()}
    if before is not None:
        before(arrays)
    outputs = call.operator.reference(arrays, plan)
    if after is not None:
        after(outputs)
    execution = Execution(
        request_id="request-1",
        worker="worker-0",
        device="cpu:0",
        backend="cpu",
        timings=Timings(kernel_ns=tuple(1000 * (i + 1) for i in range(call.options.repeat))),
    )
    return CallResult(outputs, execution)


@pytest.fixture
def reference_call() -> Callable[..., CallResult]:
    """Executes a call by the reference; *before* and *after* may spoil inputs and outputs."""
    return _reference_call


THRESHOLDS = {
    ("current", DType.FLOAT16): ("1/512", "1/512", "0.1"),
    ("current", DType.BFLOAT16): ("1/64", "1/64", "1"),
    ("current", DType.FLOAT32): ("1/1024", "1/65536", "0.01"),
    ("earlier", DType.FLOAT16): ("1/1024", "1/1024", "0.1"),
    ("earlier", DType.BFLOAT16): ("1/128", "1/128", "0.1"),
    ("earlier", DType.FLOAT32): ("1/8192", "1/8192", "0.01"),
}
"""rtol, atol and floor of `mixed`, written down once more."""

MEANS = {DType.FLOAT16: "1/1024", DType.BFLOAT16: "1/128", DType.FLOAT32: "1/8192"}
"""The threshold of `stat_rel_err`, likewise."""


class ExactJudge:
    """The standards in fractions, from their definitions; for a handful of elements."""

    def __init__(self) -> None:
        # the finite magnitudes are the bit patterns below that of infinity, in order
        self._magnitudes = {
            dtype: [
                Fraction(float(value))
                for value in np.arange(infinity, dtype=np.uint16).view(dtype.numpy)
            ]
            for dtype, infinity in ((DType.FLOAT16, 0x7C00), (DType.BFLOAT16, 0x7F80))
        }

    def ulp(self, value: float, dtype: DType) -> Fraction:
        """The distance from a value of the dtype to its neighbour away from zero."""
        if dtype is DType.FLOAT32:
            return Fraction(float(np.spacing(np.float32(abs(value)))))
        magnitudes = self._magnitudes[dtype]
        place = min(bisect_right(magnitudes, Fraction(abs(value))), len(magnitudes) - 1)
        return magnitudes[place] - magnitudes[place - 1]

    def nearest(self, value: float, dtype: DType) -> float:
        """A finite value rounded to float16 or bfloat16 by looking among all of them."""
        magnitudes = self._magnitudes[dtype]
        wanted = abs(Fraction(value))
        place = bisect_right(magnitudes, wanted)
        low = magnitudes[place - 1]
        # above the largest, the next magnitude would be as far off as the one below
        beyond = place == len(magnitudes)
        high = low + (low - magnitudes[place - 2]) if beyond else magnitudes[place]
        to_low, to_high = wanted - low, high - wanted
        # magnitudes are in the order of their bits: an even place has an even last bit
        up = to_high < to_low or (to_high == to_low and (place - 1) % 2 == 1)
        magnitude = float("inf") if up and beyond else float(high if up else low)
        return float(np.copysign(magnitude, value))

    def passes(
        self,
        actual: Sequence[float],
        golden: Sequence[float],
        standard: str,
        dtype: DType,
        edition: str = "current",
        close: tuple[str, str, str] = ("0", "0", "0"),
    ) -> bool:
        """The verdict on values of the dtype; *close* is (rtol, ptol, atol)."""
        good = len(actual)
        pairs: list[tuple[Fraction, Fraction]] = []
        for a, g in zip(actual, golden, strict=True):
            if isnan(a) or isnan(g) or isinf(a) or isinf(g):
                if not (isnan(a) and isnan(g)) and a != g:
                    return False
                continue
            pairs.append((abs(Fraction(a) - Fraction(g)), abs(Fraction(g))))
        if standard == "stat_rel_err":
            limit = Fraction(MEANS[dtype])
            rel = [error / (magnitude + Fraction(1, 10**7)) for error, magnitude in pairs]
            return not rel or (sum(rel) / len(rel) < limit and max(rel) < 10 * limit)
        if standard == "mixed":
            rtol, atol, floor = map(Fraction, THRESHOLDS[edition, dtype])
            good -= sum(error > atol + rtol * magnitude for error, magnitude in pairs)
            if not pairs:
                return True
            error, magnitude = max(pairs, key=lambda pair: pair[0])
            limit = max(floor, 32 * self.ulp(float(magnitude), dtype))
            return Fraction(good, len(actual)) >= Fraction(99, 100) and error <= limit
        rtol, ptol, atol = map(Fraction, close)
        missing = sum(error > atol + rtol * magnitude for error, magnitude in pairs)
        return Fraction(missing, len(actual)) <= ptol


@pytest.fixture(scope="session")
def judge() -> ExactJudge:
    """The exact judge."""
    return ExactJudge()
