"""Validation on every kind of server: the same cases, the same verdicts, the same inputs."""

from __future__ import annotations

from pathlib import Path

import opferry
from opferry.validation import Case, CaseStatus, read_cases, run_cases
from tests.support.calls import Subject

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = {
    "apply_rotary_pos_emb_grad": "rotary_cases.csv",
    "apply_rotary_pos_emb": "forward_cases.csv",
}
"""Each operator's."""


def examples(subject: Subject) -> tuple[Case, ...]:
    """Return the cases of an operator's example."""
    return read_cases(EXAMPLES / FILES[subject.name]).cases


def test_the_examples_pass(any_client: opferry.Client, subject: Subject) -> None:
    """Every row passes, with the inputs' digests and the golden that the client itself has."""
    cases = examples(subject)
    there = list(any_client.validate_cases(cases, repeat=2, warmup=1))
    assert {result.status for result in there} == {CaseStatus.PASS}
    here = list(run_cases(cases, any_client.execute))
    for ours, theirs in zip(here, there, strict=True):
        assert theirs.input_digests == ours.input_digests
        assert [o.status for o in theirs.outputs] == [o.status for o in ours.outputs]
        assert [o.golden_digest for o in theirs.outputs] == [o.golden_digest for o in ours.outputs]
        assert theirs.execution is not None
        assert len(theirs.execution.timings.kernel_ns) == 2


def test_a_case_that_breaks_the_contract_harms_no_other(
    any_client: opferry.Client, subject: Subject
) -> None:
    """Its verdict is the refusal with CANN's status; those before and after it pass."""
    good = examples(subject)[0]
    wrong = {**good.inputs, "cos": opferry.TensorSpec(opferry.DType.FLOAT32, (1, 1, 1, 64))}
    bad = type(good)(**{**vars(good), "inputs": wrong})
    results = list(any_client.validate_cases([good, bad, good]))
    assert [result.status for result in results] == [
        CaseStatus.PASS,
        CaseStatus.ERROR,
        CaseStatus.PASS,
    ]
    assert results[1].error is not None
    assert results[1].error.aclnn_status == 161002
    assert results[1].error.request_id
