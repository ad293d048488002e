"""Operators with the classic mistakes: the L0 suite catches each, and says where it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import opferry
import opferry.embedded
from opferry.validation import Case, CaseResult, CaseStatus, Findings, OutputStatus, read_cases
from opferry.validation.generation import generated_rows, write_rows
from tests.support import seeded_bugs, seeded_forward_bugs
from tests.support.calls import FORWARD, GRAD, Subject
from tests.support.servers import PYTHONPATH

FEW = 150
"""The rows of the quick version, of those with small tensors; the L0 suite has 5,000."""

LARGEST_BYTES = 256 * 1024
"""The most that the inputs of a row take: every rule of the level holds for small tensors, too."""

SMALL_BYTES = 64 * 1024
"""The most that the inputs of a row with small tensors take."""


Suite = Callable[[Subject], tuple[Case, ...]]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """The L0 suite of an operator, all 5,000 rows of it, with a budget for its largest tensors."""

    @functools.cache
    def cases_of(subject: Subject) -> tuple[Case, ...]:
        file = tmp_path_factory.mktemp("suite") / "l0.csv"
        rows = generated_rows(subject.name, level="L0", largest_bytes=LARGEST_BYTES)
        write_rows(file, rows, "aclnn")
        return read_cases(file).cases

    return cases_of


def few(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Return the first rows with small tensors."""
    small = [
        case
        for case in cases
        if sum(spec.data_bytes for spec in case.inputs.values()) <= SMALL_BYTES
    ]
    return tuple(small[:FEW])


Found = dict[str, Findings]


def last_head_alone(case: Case, found: Found) -> None:
    """Every element that does not pass lies in the last head."""
    heat_map = found["grad_key"].heat_map
    assert heat_map is not None
    counts = np.array(heat_map.failing).reshape(heat_map.bins)
    assert counts[:, :-1].sum() == 0
    heads = case.inputs["grad_key_embed"].shape[-2]
    assert {worst.element.index[-2] for worst in found["grad_key"].worst} == {heads - 1}


def first_token_right(case: Case, found: Found) -> None:
    """The first token is right, others are not."""
    for findings in found.values():
        assert all(worst.element.index[0] > 0 for worst in findings.worst)


def in_the_sums(case: Case, found: Found) -> None:
    """Only grad_cos and grad_sin are wrong."""
    assert set(found) <= {"grad_cos", "grad_sin"}
    assert all(findings.worst for findings in found.values())


def shared_cos(case: Case, found: Found) -> None:
    """Only the sums of cases are wrong in which the batches share cos."""
    in_the_sums(case, found)
    axis = 1 if case.attributes.layout == 2 else 0
    assert case.inputs["cos"].shape[axis] == 1 < case.inputs["query"].shape[axis]


def one_query_head(case: Case, found: Found) -> None:
    """Only the sums of cases are wrong that have one query head and more key heads."""
    in_the_sums(case, found)
    assert case.inputs["query"].shape[-2] == 1 < case.inputs["key"].shape[-2]


def query_alone(case: Case, found: Found) -> None:
    """Only grad_query is wrong."""
    assert set(found) == {"grad_query"}


def rotated(case: Case, found: Found) -> None:
    """grad_query or grad_key is wrong, the sums are not."""
    assert set(found) <= {"grad_query", "grad_key"}


def interleave_or_quarter(case: Case, found: Found) -> None:
    """Only cases of another mode than half are wrong."""
    assert case.attributes.rotary_mode != "half"


def second_half(case: Case, found: Found) -> None:
    """Every element that does not pass is turned by the second half of cos."""
    width = case.inputs["cos"].shape[-1]
    for findings in found.values():
        assert all(width // 2 <= worst.element.index[-1] < width for worst in findings.worst)


def tail_alone(case: Case, found: Found) -> None:
    """Every element that does not pass is one that cos does not reach."""
    for findings in found.values():
        width = case.inputs["cos"].shape[-1]
        assert all(worst.element.index[-1] >= width for worst in findings.worst)


Bug = tuple[Subject, type, Callable[[Case, Found], None]]

BUGS: list[Bug] = [
    (GRAD, seeded_bugs.HalvesSwapped, query_alone),
    (GRAD, seeded_bugs.SinSign, rotated),
    (GRAD, seeded_bugs.HalfPrecision, in_the_sums),
    (GRAD, seeded_bugs.FirstBatchOnly, shared_cos),
    (GRAD, seeded_bugs.KeyPartDropped, one_query_head),
    (GRAD, seeded_bugs.LastHeadUnwritten, last_head_alone),
    (GRAD, seeded_bugs.TndOffset, first_token_right),
    (FORWARD, seeded_bugs.TndOffset, first_token_right),
    (FORWARD, seeded_forward_bugs.ModeIgnored, interleave_or_quarter),
    (FORWARD, seeded_forward_bugs.HalvesTakenForEqual, second_half),
    (FORWARD, seeded_forward_bugs.TailDropped, tail_alone),
]


def caught(
    bug: type, cases: tuple[Case, ...], where: Callable[[Case, Found], None]
) -> list[CaseResult]:
    """Return the results that failed, having looked at where they say that it is wrong."""
    path = f"{bug.__module__}:{bug.__name__}"
    with (
        opferry.embedded.embedded_server(
            backend=path, environment={"PYTHONPATH": PYTHONPATH}
        ) as server,
        opferry.connect(server.address) as client,
    ):
        results = list(client.validate_cases(cases))
    assert len(results) == len(cases)
    assert {result.status for result in results} <= {CaseStatus.PASS, CaseStatus.FAIL}
    failed = [result for result in results if result.status is CaseStatus.FAIL]
    for result in failed:
        findings = {
            output.name: output.findings
            for output in result.outputs
            if output.status is OutputStatus.FAIL and output.findings is not None
        }
        assert findings, result.case.name
        where(result.case, findings)
    return failed


def named(bugs: Sequence[Bug]) -> list[Any]:
    """Return bugs as parameters."""
    return [pytest.param(*bug, id=f"{bug[0].name}-{bug[1].__name__}") for bug in bugs]


@pytest.mark.parametrize(("subject", "bug", "where"), named(BUGS[5:7] + BUGS[-2:]))
def test_the_first_rows_catch_it(
    suite: Suite, subject: Subject, bug: type, where: Callable[[Case, Found], None]
) -> None:
    """A hundred and fifty rows are enough for some that show where; the others take longer."""
    assert caught(bug, few(suite(subject)), where)


@pytest.mark.full
@pytest.mark.parametrize(("subject", "bug", "where"), named(BUGS))
def test_the_whole_suite_catches_it(
    suite: Suite, subject: Subject, bug: type, where: Callable[[Case, Found], None]
) -> None:
    """And nothing else of the 5,000 rows is called wrong."""
    failed = caught(bug, suite(subject), where)
    print(f"{bug.__name__}: {len(failed)} of {len(suite(subject))} rows fail")
    assert failed


def test_the_honest_reference_passes(suite: Suite, subject: Subject) -> None:
    """The control: without a mistake nothing fails."""
    with (
        opferry.embedded.embedded_server() as server,
        opferry.connect(server.address) as client,
    ):
        results = list(client.validate_cases(few(suite(subject))))
    assert {result.status for result in results} == {CaseStatus.PASS}


def test_each_bug_is_of_the_list() -> None:
    """No backend of the modules is forgotten."""
    found = {
        value
        for module in (seeded_bugs, seeded_forward_bugs)
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    assert found == {bug for _, bug, _ in BUGS}
