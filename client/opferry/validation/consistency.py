"""Batch consistency (TTK's --dl 3): slices that are parts of one computation have the same bytes.

Samples of one operator with the same axes, seed and extents make a group, whatever rows they are
in. Of every output that is as long as the first on the sliced axes, their slices are compared by
digest, every NaN replaced by the canonical one. A group of one sample is not judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from opferry.core.dtypes import canonical_nan
from opferry.core.tensors import raw_bytes
from opferry.validation._batches import place_of, sliced_alike
from opferry.validation.outcome import CaseResult, CaseStatus

Group = tuple[str, tuple[int, ...], int, tuple[int, ...]]
"""Operator, axes, seed, extents."""


class BatchConsistency:
    """Compares the slices of results as they come."""

    def __init__(self) -> None:
        """Know no slices yet."""
        self._first: dict[tuple[Group, str], tuple[bytes, str]] = {}
        self._members: Counter[Group] = Counter()
        self._broken: set[Group] = set()

    def check(self, result: CaseResult) -> CaseResult:
        """Return a result, FAIL if a slice of it differs from an earlier one of its group.

        Args:
            result: of a case; if it has slices and ran, with its outputs in *dumped*.
        """
        case, batch = result.case, result.case.batch
        ran = result.status in (CaseStatus.PASS, CaseStatus.FAIL, CaseStatus.EXECUTED)
        if batch is None or not ran:
            return result
        faults: list[str] = []
        for sample in batch.samples:
            group = (case.operator.name, batch.axes, sample.seed, sample.extents)
            self._members[group] += 1
            for output in case.operator.present_outputs(case.inputs):
                array = result.dumped.get(output.name)
                if array is None or not sliced_alike(case, batch, array.shape):
                    continue
                found = _digest(array[place_of(batch, sample, array.ndim)])
                where = f"{case.name} at {[[r.start, r.stop, r.step] for r in sample.slices]}"
                digest, place = self._first.setdefault((group, output.name), (found, where))
                if digest != found:
                    self._broken.add(group)
                    faults.append(
                        f"batch consistency: {output.name} of seed {sample.seed}, {where}, has "
                        f"other bits than {place}"
                    )
        if not faults:
            return result
        reason = "; ".join([*([result.reason] if result.reason else []), *faults])
        return replace(result, status=CaseStatus.FAIL, reason=reason)

    def summary(self) -> str:
        """Return in words how many groups agree."""
        judged = {group for group, count in self._members.items() if count > 1}
        alone = len(self._members) - len(judged)
        told = f"batch consistency: {len(judged - self._broken)} of {len(judged)} groups agree"
        return told + (f"; {alone} have but one slice and are not judged" if alone else "")


def _digest(array: NDArray[np.generic]) -> bytes:
    return xxhash.xxh3_128_digest(raw_bytes(np.ascontiguousarray(canonical_nan(array))))
