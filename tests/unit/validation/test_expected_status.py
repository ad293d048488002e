"""Rows with expected_status: how they are read, and when they pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opferry.core.problems import Problem, Reason
from opferry.errors import OpFerryError, TransportError, from_problem
from opferry.operators.call import Call, CallResult
from opferry.validation import CaseFileError, CaseStatus, run_cases

REFUSED = {"expected_status": "161002", "attributes": "{'layout': 3}"}


def raising(error: OpFerryError) -> Callable[..., CallResult]:
    def execute(call: Call, inputs: Any) -> CallResult:
        raise error

    return execute


def device_error(aclnn: int | None = None, acl: int | None = None) -> OpFerryError:
    reason = Reason.DEVICE_FAULT if acl else Reason.REFUSED_BY_DEVICE
    return from_problem(
        Problem(reason, "the device said no", aclnn_status=aclnn, acl_error=acl, stage="stage_one")
    )


def one(file: Any, execute: Any, **words: Any) -> Any:
    (result,) = run_cases(file.cases, execute, **words)
    return result


def test_the_contract_gives_just_that_status(make_file: Any, reference_call: Any) -> None:
    """PASS, and the reason says by which rule."""
    result = one(make_file(REFUSED), reference_call)
    assert result.status is CaseStatus.PASS
    assert result.reason.startswith("refused with 161002, expected 161002: layout 3 (BNSD)")
    assert result.error.aclnn_status == 161002


def test_another_status_of_the_contract_fails(make_file: Any, reference_call: Any) -> None:
    """161001 is for tensors that are missing."""
    result = one(make_file({**REFUSED, "expected_status": "161001"}), reference_call)
    assert result.status is CaseStatus.FAIL
    assert "was to be refused with 161001: layout 3" in result.reason


@pytest.mark.parametrize("check", [True, False])
def test_success_fails(make_file: Any, reference_call: Any, check: bool) -> None:
    """Nothing is compared: there is nothing that could be right."""
    result = one(make_file({"expected_status": "161002"}), reference_call, check=check)
    assert result.status is CaseStatus.FAIL
    assert result.reason == "succeeded; it was to be refused with 161002"
    assert result.outputs == ()
    assert result.execution is not None


@pytest.mark.parametrize("native", [161001, 161002, 561001, 561002])
def test_without_check_a_device_may_refuse_in_its_own_way(make_file: Any, native: int) -> None:
    """PASS with the native code in the reason; with the check that code would be wrong."""
    execute = raising(device_error(aclnn=native))
    result = one(make_file(REFUSED), execute, check=False)
    assert result.status is CaseStatus.PASS
    assert result.reason == f"refused with {native}, expected 161002: the device said no"
    checked = one(make_file(REFUSED), execute)
    assert checked.status is (CaseStatus.PASS if native == 161002 else CaseStatus.FAIL)


@pytest.mark.parametrize("codes", [{"acl": 507015}, {"aclnn": 361001}, {"aclnn": 561103}, {}])
def test_without_check_anything_else_fails(make_file: Any, codes: dict[str, int]) -> None:
    """A fault is no refusal."""
    result = one(make_file(REFUSED), raising(device_error(**codes)), check=False)
    assert result.status is CaseStatus.FAIL
    for code in codes.values():
        assert str(code) in result.reason


def test_a_server_that_is_gone_is_no_refusal(make_file: Any) -> None:
    """NOT RUN, also for the rows after it."""
    file = make_file(REFUSED, REFUSED)
    results = list(run_cases(file.cases, raising(TransportError("gone"))))
    assert [result.status for result in results] == [CaseStatus.NOT_RUN] * 2


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        ({"tensor_dtypes": "('float64',)"}, "float64"),
        ({"attributes": "{'layout': 'NSBD'}"}, "NSBD"),
        ({"tensor_view_shapes": "((0,4,8),(0,2,8),(0,1,8),(0,1,8))"}, "no axis may be 0"),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_what_nobody_could_send(
    make_file: Any, cells: dict[str, str], rule: str, check: bool
) -> None:
    """The contract's word counts; nothing is executed, and the reason says so."""
    cells = {"attributes": "{'layout': 4}", **cells, "expected_status": "161002"}
    result = one(make_file(cells), raising(device_error(aclnn=561002)), check=check)
    assert result.status is CaseStatus.PASS
    assert rule in result.reason
    assert ("before anything could be sent" in result.reason) is not check


def test_an_ordinary_row_with_such_a_word_is_still_refused(make_file: Any) -> None:
    """An empty expected_status changes nothing."""
    with pytest.raises(CaseFileError, match="float64"):
        make_file({"tensor_dtypes": "('float64',)", "expected_status": ""})


@pytest.mark.parametrize("word", ["0", "561002", "True", "'161002'", "(161002,)"])
def test_other_statuses_are_refused(make_file: Any, word: str) -> None:
    """With row, column and what is allowed."""
    with pytest.raises(
        CaseFileError, match=r"row 2, column expected_status: .* give 161001 or 161"
    ):
        make_file({"expected_status": word})


def test_attributes_that_no_operator_has_are_no_case(make_file: Any) -> None:
    """They carry no status of CANN's: the file is at fault."""
    with pytest.raises(CaseFileError, match="'colour' is unknown"):
        make_file({"attributes": "{'colour': 1}", "expected_status": "161002"})


def test_a_disabled_row_is_not_run(make_file: Any, reference_call: Any) -> None:
    """Also one whose words have no spec."""
    cells = {"tensor_dtypes": "('float64',)", "expected_status": "161002", "is_enabled": "False"}
    assert one(make_file(cells), reference_call).status is CaseStatus.DISABLED
