"""Naming operators, reading attributes, and the one check of a call that both sides make."""

from __future__ import annotations

from typing import Any

import pytest

from opferry.core.dtypes import DType
from opferry.core.execution import ExecutionOptions
from opferry.core.layouts import Layout, RotaryMode
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators import OPERATORS, operator_named
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGradAttributes
from opferry.operators.call import HOST_STEP_BYTES, Call, check_call

OPERATOR = operator_named("ApplyRotaryPosEmbGrad")


@pytest.mark.parametrize(
    "name",
    [
        "ApplyRotaryPosEmbGrad",
        "apply_rotary_pos_emb_grad",
        "aclnnApplyRotaryPosEmbGrad",
        "torch.ops.cann_ops_transformer.apply_rotary_pos_emb_grad",
    ],
)
def test_operators_have_all_the_users_spellings(name: str) -> None:
    """CANN's, aclnn's and Python's name and a dotted path find the operator."""
    assert operator_named(name) is OPERATOR


@pytest.mark.parametrize(
    "name",
    [
        "ApplyRotaryPosEmb",
        "apply_rotary_pos_emb",
        # both functions of aclnn run this operator
        "aclnnApplyRotaryPosEmb",
        "aclnnApplyRotaryPosEmbV2",
        "cann_ops_transformer.apply_rotary_pos_emb",
    ],
)
def test_a_function_of_another_name_than_its_operator(name: str) -> None:
    """The forward's aclnn function has a version behind its name."""
    assert operator_named(name) is OPERATORS["ApplyRotaryPosEmb"]


@pytest.mark.parametrize(
    "name",
    ["", "ApplyRotary", "ApplyRotaryPosEmbV2", "aclnn", "aclnnapply_rotary_pos_emb", "x" * 1000],
)
def test_unknown_operators_are_refused(name: str) -> None:
    """Another name is refused, cut short, listing what is known."""
    with pytest.raises(Problem, match="known are ApplyRotaryPosEmbGrad") as caught:
        operator_named(name)
    assert caught.value.reason is Reason.OPERATOR_NOT_SUPPORTED
    assert len(caught.value.message) < 200


def test_every_operator_is_described_consistently() -> None:
    """The table's names are the operators' own, and outputs refer to inputs that exist."""
    for name, operator in OPERATORS.items():
        inputs = {spec.name for spec in operator.inputs}
        assert operator.name == name
        for output in operator.outputs:
            assert {output.like, *output.requires} <= inputs
        assert set(operator.attribute_names.values()) <= set(operator.attribute_names)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("half", 1)),
        ({"rotary_mode": None, "layout": None}, ("half", 1)),
        ({"rotaryModeOptional": "half", "layout": 4}, ("half", 4)),
        ({"rotary_mode": "half", "rotaryModeOptional": "half"}, ("half", 1)),
        ({"rotary_mode": "half", "rotaryModeOptional": None}, ("half", 1)),
        ({"rotary_mode": RotaryMode.INTERLEAVE, "layout": Layout.SBND}, ("interleave", 2)),
        ({"layout": "tnd"}, ("half", 4)),
        ({"rotary_mode": "", "layout": -7}, ("", -7)),
    ],
)
def test_attributes_as_users_write_them(given: dict[str, Any], expected: tuple[str, int]) -> None:
    """C names and Python names, None for the default, layouts by number and name are understood."""
    attributes = OPERATOR.parse_attributes(given)
    assert attributes == ApplyRotaryPosEmbGradAttributes(*expected)
    assert type(attributes.rotary_mode) is str


@pytest.mark.parametrize(
    ("given", "argument", "text"),
    [
        ({"rotary-mode": "half"}, "rotary-mode", "known are layout, rotaryModeOptional, rotary_"),
        ({"rotaryMode": None}, "rotaryMode", "'rotaryMode' is unknown to ApplyRotaryPosEmbGrad"),
        ({"x" * 1000: 1}, "x" * 40, "is unknown to"),
        ({"rotary_mode": 1}, "rotary_mode", "rotary_mode is a int; give a word"),
        ({"layout": 1.0}, "layout", "layout is a float; give a number or a name"),
        (
            {"rotary_mode": "half", "rotaryModeOptional": "quarter"},
            "rotary_mode",
            "rotaryModeOptional and rotary_mode are one attribute and differ; give it once",
        ),
    ],
)
def test_attributes_that_are_refused(given: dict[str, Any], argument: str, text: str) -> None:
    """Unknown names, wrong types and contradictions are refused, never ignored."""
    with pytest.raises(Problem) as caught:
        OPERATOR.parse_attributes(given)
    assert (caught.value.reason, caught.value.argument) == (Reason.ATTRIBUTE_INVALID, argument)
    assert text in caught.value.message


def _call(shape: tuple[int, ...] = (3, 2, 4), **options: Any) -> Call:
    cos = TensorSpec(DType.FLOAT32, (shape[0], 1, shape[-1]))
    gradient = TensorSpec(DType.FLOAT32, shape)
    return Call(
        operator=OPERATOR,
        attributes=OPERATOR.parse_attributes({"layout": 4}),
        inputs={"grad_query_embed": gradient, "grad_key_embed": gradient, "cos": cos, "sin": cos},
        options=ExecutionOptions(**options),
    )


def test_a_checked_call_says_what_it_takes() -> None:
    """A call that passes has its plan, its outputs and its sizes."""
    checked = check_call(_call(), LimitsConfig())
    assert checked.plan is not None
    assert list(checked.outputs) == ["grad_query", "grad_key"]
    assert (checked.input_bytes, checked.output_bytes) == ((24 + 24 + 12 + 12) * 4, 48 * 4)


def test_an_unchecked_call_breaks_the_contract_but_not_memory() -> None:
    """With check=False the contract is the device's affair; storages and limits are still ours."""
    odd = _call((3, 2, 7), check=False)
    assert check_call(odd, LimitsConfig()).plan is None
    inputs = {**odd.inputs, "cos": TensorSpec(DType.FLOAT32, (3, 2), (2, 1), 1, (6,))}
    outside = Call(OPERATOR, odd.attributes, inputs, odd.options)
    with pytest.raises(Problem, match="cos addresses element 6 of a storage of 6"):
        check_call(outside, LimitsConfig())
    with pytest.raises(Problem, match="grad_query_embed takes 168 bytes; the limit is 100"):
        check_call(odd, LimitsConfig(tensor_bytes=100))


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (LimitsConfig(tensor_bytes=95), "grad_query_embed takes 96 bytes; the limit is 95"),
        # of the server's memory a request takes whole steps
        (LimitsConfig(memory_bytes=HOST_STEP_BYTES - 1), "(inputs and outputs) takes 65536 bytes"),
        (LimitsConfig(request_bytes=671), "and workspace) takes 672 bytes; the limit is 671"),
        (LimitsConfig(repeat_count=4), "repeat is 5; allowed is 1 to 4"),
    ],
)
def test_every_limit_is_checked(limits: LimitsConfig, text: str) -> None:
    """One byte or run over a limit is refused with both numbers."""
    call = _call(repeat=5)
    exact = LimitsConfig(
        tensor_bytes=96, memory_bytes=HOST_STEP_BYTES, request_bytes=672, repeat_count=5
    )
    check_call(call, exact)
    with pytest.raises(Problem) as caught:
        check_call(call, limits)
    assert text in caught.value.message


def test_a_broadcast_cos_cannot_hide_the_size_of_the_reply() -> None:
    """Stride-0 views of a few bytes whose outputs are large are refused by the outputs' size."""
    wide = TensorSpec(DType.FLOAT32, (2**20, 2**10, 1024), (0, 0, 1), 0, (1024,))
    cos = TensorSpec(DType.FLOAT32, (2**20, 1, 1024), (0, 0, 1), 0, (1024,))
    call = Call(
        OPERATOR,
        OPERATOR.parse_attributes({"layout": 4}),
        {"grad_query_embed": wide, "grad_key_embed": wide, "cos": cos, "sin": cos},
    )
    with pytest.raises(Problem, match=f"grad_query_embed takes {2**42} bytes"):
        check_call(call, LimitsConfig())
