"""Problems: the table of reasons is whole, and a problem crosses a process boundary unharmed."""

from __future__ import annotations

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opferry import errors
from opferry.core.problems import RULES, Problem, Reason, StatusCode

TEXT = st.none() | st.text(max_size=20)
NUMBER = st.none() | st.integers(-(2**31), 2**31)

PROBLEMS = st.builds(
    Problem,
    st.sampled_from(Reason),
    st.text(max_size=40),
    argument=TEXT,
    given=TEXT,
    allowed=TEXT,
    aclnn_status=NUMBER,
    acl_error=NUMBER,
    stage=TEXT,
    soc=TEXT,
    cann_version=TEXT,
    operator_package=TEXT,
    library_file=TEXT,
    status=st.none() | st.sampled_from(StatusCode),
    retry_after_s=st.none() | st.floats(0, 1e6),
)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_rule_that_names_an_error(reason: Reason) -> None:
    """Each reason has a row in the table, whose error class is public and exists."""
    rule = RULES[reason]
    error = getattr(errors, rule.error)
    assert issubclass(error, errors.OpFerryError)
    assert rule.error in errors.__all__
    assert rule.status is not StatusCode.OK


def test_the_table_has_no_other_rows() -> None:
    """The table and the list of reasons are the same, in one order."""
    assert list(RULES) == list(Reason)


@pytest.mark.parametrize("reason", list(Reason))
def test_reasons_fit_the_standard_for_error_info(reason: Reason) -> None:
    """A reason is its own name, in capitals, at most 63 characters."""
    assert reason.value == reason.name
    assert re.fullmatch(r"[A-Z][A-Z0-9_]{1,61}[A-Z0-9]", reason.value)


def test_only_a_busy_server_is_asked_again() -> None:
    """Retrying is safe for exactly the reasons that say the server has no room now."""
    may_retry = {reason for reason in Reason if RULES[reason].may_retry}
    assert may_retry == {Reason.SERVER_BUSY, Reason.SHUTTING_DOWN, Reason.QUOTA_EXCEEDED}


def test_whoever_is_at_fault_agrees_with_the_status() -> None:
    """The caller's faults have the caller's statuses, the server's have the server's."""
    callers = {
        StatusCode.INVALID_ARGUMENT,
        StatusCode.UNIMPLEMENTED,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.DATA_LOSS,
        StatusCode.NOT_FOUND,
        StatusCode.UNAUTHENTICATED,
        StatusCode.PERMISSION_DENIED,
    }
    for rule in RULES.values():
        if issubclass(getattr(errors, rule.error), errors.RequestError):
            assert rule.status in callers, rule


@given(PROBLEMS)
def test_fields_say_everything(problem: Problem) -> None:
    """A problem rebuilt from its plain fields is the same, and the fields are plain values."""
    fields = problem.to_fields()
    assert vars(Problem.from_fields(fields)) == vars(problem)
    assert vars(Problem.from_fields(json.loads(json.dumps(fields)))) == vars(problem)


@given(PROBLEMS)
def test_pickling_keeps_everything(problem: Problem) -> None:
    """A pickled problem comes back the same."""
    back = pickle.loads(pickle.dumps(problem))  # noqa: S301 - pickled on the line before
    assert isinstance(back, Problem)
    assert (vars(back), str(back)) == (vars(problem), str(problem))


def test_notes_do_not_hinder_a_problem() -> None:
    """A note that a debugger or test tool added is no field and breaks nothing."""
    problem = Problem(Reason.SERVER_BUSY, "the queue is full", retry_after_s=0.5)
    problem.__notes__ = ["seen in the nightly run"]  # add_note is new in Python 3.11
    assert Problem.from_fields(problem.to_fields()).retry_after_s == 0.5
    assert str(pickle.loads(pickle.dumps(problem))) == "the queue is full"  # noqa: S301


def test_the_status_may_differ_from_the_table() -> None:
    """A problem that knows better says which status it has, also across a process boundary."""
    problem = Problem(Reason.OPERATOR_FAILED, "no kernel", status=StatusCode.FAILED_PRECONDITION)
    assert problem.status is StatusCode.FAILED_PRECONDITION
    assert Problem.from_fields(problem.to_fields()).status is StatusCode.FAILED_PRECONDITION
    assert Problem(Reason.OPERATOR_FAILED, "it failed").status is StatusCode.INTERNAL
