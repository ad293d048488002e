"""Runs: verdicts on cases, what stops a run, and what it amounts to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem
from opferry.core.tensors import view_array
from opferry.errors import (
    AccessError,
    CallCancelledError,
    ContractError,
    DeadlineError,
    DeviceFaultError,
    OpFerryError,
    ServerBusyError,
    TooLargeError,
    TransportError,
)
from opferry.validation import (
    CaseResult,
    CaseStatus,
    GoldenMode,
    OutputStatus,
    exit_code,
    run_cases,
)

Execute = Callable[..., Any]


def statuses(results: Iterable[CaseResult]) -> list[str]:
    """The verdicts' words."""
    return [result.status.value for result in results]


def test_a_right_execution_passes(make_file: Any, reference_call: Execute) -> None:
    """Every output passes, and the result carries execution, settings and times."""
    file = make_file({}, {"tensor_dtypes": "('bf16',)"}, {"tensor_dtypes": "('fp16',)"})
    results = list(run_cases(file.cases, reference_call, seed=3, repeat=2))
    assert statuses(results) == ["PASS"] * 3
    assert exit_code(results) == 0
    first = results[0]
    assert [(output.name, output.short_name, output.status) for output in first.outputs] == [
        ("grad_query", "dq", OutputStatus.PASS),
        ("grad_key", "dk", OutputStatus.PASS),
        ("grad_cos", "dcos", OutputStatus.PASS),
        ("grad_sin", "dsin", OutputStatus.PASS),
    ]
    assert first.execution is not None
    assert first.execution.timings.kernel_ns == (1000, 2000)
    assert first.request_id == "request-1"
    assert (first.settings.seed, first.settings.options.repeat) == (3, 2)
    assert min(first.times.generate_ns, first.times.execute_ns, first.times.golden_ns) > 0
    assert first.reason == ""


def test_a_row_chooses_its_distribution(make_file: Any, reference_call: Execute) -> None:
    """Inputs of a row of the normal distribution lie about the middle, others evenly."""
    spreads: list[float] = []

    def execute(call: Any, inputs: Any) -> Any:
        tensor = inputs["query"]
        spreads.append(float(view_array(tensor.spec, tensor.data).std()))
        return reference_call(call, inputs)

    cases = make_file({}, {"normal_distribution": "True"}).cases
    assert statuses(run_cases(cases, execute)) == ["PASS", "PASS"]
    # 4 / sqrt(12) and 4 / 8 from 192 elements, with seven standard errors
    assert 0.9 < spreads[0] < 1.4
    assert 0.3 < spreads[1] < 0.7


def test_results_come_one_by_one(make_file: Any, reference_call: Execute) -> None:
    """The second case is not begun before its result is asked for."""
    begun: list[str] = []

    def execute(call: Any, inputs: Any) -> Any:
        begun.append("case")
        return reference_call(call, inputs)

    results = run_cases(make_file({}, {}).cases, execute)
    assert begun == []
    next(results)
    assert begun == ["case"]


@pytest.mark.parametrize("mode", [GoldenMode.ENABLE, GoldenMode.PROMOTE])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_both_golden_modes(
    make_file: Any, reference_call: Execute, mode: GoldenMode, dtype: str
) -> None:
    """A right execution passes against the rounded golden and against the one in float64."""
    file = make_file({"tensor_dtypes": f"('{dtype}',)"})
    (result,) = run_cases(file.cases, reference_call, golden_mode=mode)
    assert result.status is CaseStatus.PASS
    comparison = result.outputs[0].comparison
    assert comparison is not None
    assert (comparison.max_abs_error == 0) == (mode is GoldenMode.ENABLE)


def test_without_a_golden_nothing_is_compared(make_file: Any, reference_call: Execute) -> None:
    """The row is neither passed nor failed, the outputs have digests, and the run is no failure."""
    file = make_file({})
    (result,) = run_cases(file.cases, reference_call, golden_mode=GoldenMode.DISABLE)
    assert result.status is CaseStatus.EXECUTED
    assert exit_code([result]) == 0
    assert {output.status for output in result.outputs} == {OutputStatus.NOT_COMPARED}
    assert all(len(output.digest) == 8 and not output.comparison for output in result.outputs)


def test_inputs_depend_on_seed_and_case(make_file: Any, reference_call: Execute) -> None:
    """The same seed sends the same bytes; another case or seed sends others."""
    sent: list[bytes] = []

    def execute(call: Any, inputs: Any) -> Any:
        sent.append(b"".join(bytes(tensor.data) for tensor in inputs.values()))
        return reference_call(call, inputs)

    file = make_file({}, {})
    for seed in (1, 1, 2):
        list(run_cases(file.cases, execute, seed=seed))
    assert sent[0:2] == sent[2:4]
    assert len(set(sent)) == 4


def test_the_view_of_the_storage_is_judged(make_file: Any, reference_call: Execute) -> None:
    """A strided input is sent as storage and view, and the golden is of the view."""
    change = {
        "tensor_view_strides": "((108,36,9,1),)" + "",
        "tensor_view_shapes": "((2,3,4,8),(2,3,4,8),(2,3,1,8),(2,3,1,8))",
        "tensor_storage_shapes": "((220,),(220,),(220,),(220,))",
        "tensor_view_offsets": "(0,4,0,1)",
        "output_tensor_indexes": "",
    }
    seen: list[Any] = []

    def execute(call: Any, inputs: Any) -> Any:
        seen.extend(inputs.values())
        return reference_call(call, inputs)

    (result,) = run_cases(make_file(change).cases, execute)
    assert result.status is CaseStatus.PASS
    assert [len(tensor.data) for tensor in seen] == [880] * 4
    assert all(not tensor.spec.is_contiguous for tensor in seen)
    assert len(np.unique(view_array(seen[1].spec, seen[1].data))) == 192


def test_outputs_that_are_not_computed_are_suppressed(
    make_file: Any, reference_call: Execute, without_optional: Mapping[str, str]
) -> None:
    """Listed outputs whose inputs are absent are neither passed nor failed."""
    (result,) = run_cases(make_file(without_optional).cases, reference_call)
    assert result.status is CaseStatus.PASS
    assert [output.status.value for output in result.outputs] == [
        "PASS",
        "PASS",
        "SUPPRESSED",
        "SUPPRESSED",
    ]
    assert result.outputs[2].reason == "not computed because query and key is absent"


def test_a_row_of_suppressed_outputs_only_is_no_pass(
    make_file: Any, reference_call: Execute, without_optional: Mapping[str, str]
) -> None:
    """Where nothing was compared there is no pass."""
    file = make_file({**without_optional, "output_tensor_indexes": "(8,9)"})
    results = list(run_cases(file.cases, reference_call))
    assert statuses(results) == ["FAIL"]
    assert "nothing was compared" in results[0].reason


@pytest.mark.parametrize("name", ["grad_query", "grad_key", "grad_cos", "grad_sin"])
def test_a_missing_output_is_never_a_pass(
    make_file: Any, reference_call: Execute, name: str
) -> None:
    """An output that was to come and did not is MISSING, and the case fails."""
    (result,) = run_cases(
        make_file({}).cases,
        lambda call, inputs: reference_call(call, inputs, None, lambda o: o.pop(name)),
    )
    assert result.status is CaseStatus.FAIL
    assert result.reason == f"{name}: was not returned"
    assert [o.status for o in result.outputs if o.name == name] == [OutputStatus.MISSING]


def test_an_output_that_must_not_come_fails(
    make_file: Any, reference_call: Execute, without_optional: Mapping[str, str]
) -> None:
    """A grad_cos that came without query and key cannot be right."""

    def add(outputs: dict[str, Any]) -> None:
        outputs["grad_cos"] = np.zeros((2, 3, 1, 8), np.float32)

    (result,) = run_cases(
        make_file(without_optional).cases,
        lambda call, inputs: reference_call(call, inputs, None, add),
    )
    assert result.status is CaseStatus.FAIL
    assert "grad_cos: was returned though query and key is absent" in result.reason


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda array: array[..., :4], "returned as [2, 3, 4, 4] float32"),
        (lambda array: array[None], "returned as [1, 2, 3, 4, 8] float32"),
        (lambda array: array.astype(np.float64), "returned as [2, 3, 4, 8] float64"),
        (lambda array: array.astype(np.float16), "returned as [2, 3, 4, 8] float16"),
    ],
)
def test_an_output_of_another_shape_or_dtype_fails(
    make_file: Any, reference_call: Execute, spoil: Any, said: str
) -> None:
    """An output is not broadcast or converted to fit."""

    def after(outputs: dict[str, Any]) -> None:
        outputs["grad_query"] = spoil(outputs["grad_query"])

    (result,) = run_cases(
        make_file({}).cases, lambda call, inputs: reference_call(call, inputs, None, after)
    )
    assert result.status is CaseStatus.FAIL
    assert said in result.reason
    assert "ApplyRotaryPosEmbGrad gives [2, 3, 4, 8] float32" in result.reason


def test_an_output_that_the_row_lists_otherwise_fails(
    make_file: Any, row: Mapping[str, str], reference_call: Execute
) -> None:
    """A shape in the file that the operator does not give is reported with both."""
    shapes = row["tensor_view_shapes"].rsplit("(2,3,1,8)", 1)
    file = make_file({"tensor_view_shapes": "(9,3,1,8)".join(shapes)})
    (result,) = run_cases(file.cases, reference_call)
    assert result.status is CaseStatus.FAIL
    assert result.reason == (
        "grad_sin: was returned as [2, 3, 1, 8] float32; row 2 lists [9, 3, 1, 8] float32"
    )


def test_close_takes_the_rows_own_tolerances(make_file: Any, reference_call: Execute) -> None:
    """Only under `close` do the row's tolerances count."""

    def after(outputs: dict[str, Any]) -> None:
        outputs["grad_query"] *= np.float32(1.01)

    def execute(call: Any, inputs: Any) -> Any:
        return reference_call(call, inputs, None, after)

    file = make_file({}, {"precision_tolerances": "((0.1,0),None,None,None)"})
    assert statuses(run_cases(file.cases, execute, standard="close")) == ["FAIL", "PASS"]
    assert statuses(run_cases(file.cases, execute, standard="mixed")) == ["FAIL", "FAIL"]


@pytest.mark.parametrize(
    ("change", "argument", "aclnn_status"),
    [
        ({"attributes": "{'layout': 3}"}, "layout", 161002),
        ({"attributes": "{'rotary_mode': 'interleave'}"}, "rotary_mode", 161002),
        ({"tensor_view_shapes": "((2,3,4,8),None,(2,3,1,8),(2,3,1,8))"}, "grad_key_embed", 161001),
        (
            {"tensor_dtypes": "('fp32','fp16',*)".replace("*", "'fp32'," * 8)},
            "grad_key_embed",
            161002,
        ),
        (
            {"tensor_view_shapes": "((2,3,4,8),(2,3,2,8),(0,3,1,8),(0,3,1,8))"},
            "cos",
            161002,
        ),
    ],
)
def test_a_row_that_breaks_the_contract_is_an_error(
    make_file: Any,
    reference_call: Execute,
    change: dict[str, str],
    argument: str,
    aclnn_status: int,
) -> None:
    """Such a row is an ERROR with the contract's words, and the next row runs."""
    file = make_file({"output_tensor_indexes": "", **change}, {})
    results = list(run_cases(file.cases, reference_call))
    assert statuses(results) == ["ERROR", "PASS"]
    error = results[0].error
    assert isinstance(error, ContractError)
    assert (error.argument, error.aclnn_status) == (argument, aclnn_status)
    assert str(error) == results[0].reason
    assert exit_code(results) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_view_strides": "((1000,32,8,1),None)"},
        {"tensor_view_strides": "((-96,32,8,1),None)"},
        {"tensor_view_offsets": "(1,0)"},
        {"tensor_storage_shapes": "((2,2),None)"},
        {"tensor_view_strides": "((8,1),None)"},
    ],
)
def test_a_malformed_view_is_an_error_before_anything_is_made(
    make_file: Any, reference_call: Execute, change: dict[str, str]
) -> None:
    """Strides and offsets that leave the storage never reach the execution."""
    (result,) = run_cases(make_file(change).cases, reference_call)
    assert result.status is CaseStatus.ERROR
    assert result.error is not None
    assert result.error.reason == "TENSOR_MALFORMED"
    assert result.error.argument == "grad_query_embed"


def test_a_tensor_over_the_limit_is_never_made(make_file: Any, reference_call: Execute) -> None:
    """Sizes that no memory holds are refused by the server's own limit."""
    wide = "(1048576,1048576,1,1024)"
    file = make_file(
        {"tensor_view_shapes": f"({wide},{wide},{wide},{wide})", "tensor_dtypes": "('bf16',)"}
    )
    (result,) = run_cases(file.cases, reference_call)
    assert isinstance(result.error, TooLargeError)
    small = LimitsConfig(tensor_bytes=100)
    (result,) = run_cases(make_file({}).cases, reference_call, limits=small)
    assert result.status is CaseStatus.ERROR
    assert "grad_query_embed takes 768 bytes; the limit is 100" in result.reason


def test_a_call_that_was_let_through_against_the_contract_is_an_error(
    make_file: Any, reference_call: Execute
) -> None:
    """If the execution accepts what the contract forbids, there is no golden and no pass."""
    file = make_file({"attributes": "{'layout': 3}"})

    def execute(call: Any, inputs: Any) -> Any:
        attributes = replace(call.attributes, layout=1)
        return reference_call(replace(call, attributes=attributes), inputs)

    (result,) = run_cases(file.cases, execute)
    assert result.status is CaseStatus.ERROR
    assert "layout 3 (BNSD) is reserved" in result.reason


@pytest.mark.parametrize(
    "error",
    [
        DeviceFaultError("the worker died by signal 9", reason="DEVICE_FAULT", request_id="r-7"),
        DeadlineError("it ran too long", reason="RUN_DEADLINE", request_id="r-8"),
    ],
)
def test_a_fault_or_deadline_concerns_its_row_alone(
    make_file: Any, reference_call: Execute, error: OpFerryError
) -> None:
    """After a device fault or a deadline of the server's the next row runs."""
    results = list(run_cases(make_file({}, {}, {}).cases, _failing_at(reference_call, 1, error)))
    assert statuses(results) == ["PASS", "ERROR", "PASS"]
    assert results[1].error is error
    assert results[1].request_id == error.request_id
    assert exit_code(results) == 1


@pytest.mark.parametrize(
    "error",
    [
        TransportError("host:1: UNAVAILABLE", may_retry=True),
        ServerBusyError("the queue is full", reason="SERVER_BUSY"),
        AccessError("no credential", reason="UNAUTHENTICATED"),
        CallCancelledError("cancelled"),
    ],
)
def test_a_lost_server_stops_the_run(
    make_file: Any, reference_call: Execute, error: OpFerryError
) -> None:
    """The row at which the server was lost and all enabled ones after it are NOT RUN."""
    file = make_file({}, {}, {"is_enabled": "False"}, {}, {})
    calls: list[int] = []
    results = list(run_cases(file.cases, _failing_at(reference_call, 1, error, calls)))
    assert statuses(results) == ["PASS", "NOT RUN", "DISABLED", "NOT RUN", "NOT RUN"]
    assert len(calls) == 2
    assert results[1].error is error
    assert results[4].error is None
    assert results[4].reason == f"the run stopped at row 3 (case 1): {error}"
    assert exit_code(results) == 3


def test_a_defect_of_the_execution_is_not_swallowed(make_file: Any) -> None:
    """What is no OpFerryError is a defect and ends the run loudly."""

    def execute(call: Any, inputs: Any) -> Any:
        raise KeyError("x")

    with pytest.raises(KeyError):
        list(run_cases(make_file({}).cases, execute))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"standard": "closest"}, "compare is closest"),
        ({"standard": "close", "edition": "earlier"}, "only mixed has others"),
        ({"repeat": 0}, "repeat is 0"),
        ({"repeat": 1001}, "repeat is 1001"),
    ],
)
def test_wrong_words_are_refused_at_once(
    make_file: Any, reference_call: Execute, words: dict[str, Any], said: str
) -> None:
    """Unknown words are refused by the call itself, before any case runs."""
    with pytest.raises(Problem, match=said):
        run_cases(make_file({}).cases, reference_call, **words)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 3),
        (["DISABLED"], 3),
        (["PASS"], 0),
        (["PASS", "DISABLED"], 0),
        (["PASS", "FAIL"], 1),
        (["ERROR"], 1),
        (["PASS", "NOT RUN"], 3),
        (["FAIL", "ERROR", "NOT RUN"], 3),
    ],
)
def test_exit_codes(make_file: Any, reference_call: Execute, words: list[str], code: int) -> None:
    """0: all enabled passed and one ran; 1: one did not pass; 3: one or all were not run."""
    (result,) = run_cases(make_file({}).cases, reference_call)
    assert exit_code(replace(result, status=CaseStatus(word)) for word in words) == code


def _failing_at(
    reference_call: Execute, position: int, error: OpFerryError, calls: list[int] | None = None
) -> Execute:
    """An execution that raises at its call number *position*, counted from 0."""
    made = [] if calls is None else calls

    def execute(call: Any, inputs: Any) -> Any:
        made.append(1)
        if len(made) == position + 1:
            raise error
        return reference_call(call, inputs)

    return execute
