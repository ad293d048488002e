"""What the tests for every operator run with is every operator."""

from __future__ import annotations

from opferry.operators import OPERATORS
from tests.support.calls import SUBJECTS, reference


def test_no_operator_is_missing_among_the_subjects() -> None:
    """An operator in the table is one that the parametrised tests run with."""
    assert {subject.operator.name for subject in SUBJECTS.values()} == set(OPERATORS)
    assert all(SUBJECTS[name].name == name for name in SUBJECTS)


def test_the_call_of_each_subject_is_one_of_its_operator() -> None:
    """It keeps to the contract and has the operator's outputs."""
    for subject in SUBJECTS.values():
        assert tuple(reference(subject.tnd())) == subject.outputs
