"""Calls that break the contract, through a real server: who refuses them, in which words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opferry
from opferry import errors
from tests.support.calls import FORWARD, GRAD, SUBJECTS, Subject

Shapes = Mapping[str, tuple[int, ...]]


def arguments_of(subject: Subject, shapes: Shapes, **attributes: Any) -> dict[str, Any]:
    """Return a BSND call, B 3, S 4, N 2, D 8, in which some shapes and attributes differ."""
    query, key = subject.vectors
    usual = {query: (3, 4, 2, 8), key: (3, 4, 2, 8), "cos": (3, 4, 1, 8), "sin": (3, 4, 1, 8)}
    arrays = {name: np.ones(shapes.get(name, shape), np.float32) for name, shape in usual.items()}
    return {**arrays, "layout": 1, **attributes}


Refused = tuple[Shapes, dict[str, Any], str, str]
"""Shapes and attributes that differ, the argument that is named, and words of the text."""


def _of_both(subject: Subject) -> dict[str, Refused]:
    """What is refused by the rules that the operators share."""
    query, key = subject.vectors

    def all_of(*shape: int) -> Shapes:
        one = (*shape[:-2], 1, shape[-1])
        return {query: shape, key: shape, "cos": one, "sin": one}

    axis = "head axis" if subject is GRAD else "sequence axis S"
    return {
        "D too large": (all_of(3, 4, 2, 1026), {}, query, "at most 1024"),
        "D odd": (all_of(3, 4, 2, 3), {}, query, "even"),
        "layout 0": ({}, {"layout": 0}, "layout", "not set"),
        "layout 5": ({}, {"layout": 5}, "layout", "unknown"),
        "layout -1": ({}, {"layout": -1}, "layout", "unknown"),
        "HALF": ({}, {"rotary_mode": "HALF"}, "rotary_mode", "half.* supported"),
        "empty mode": ({}, {"rotary_mode": ""}, "rotary_mode", "not set"),
        "TND with four axes": ({}, {"layout": 4}, query, "layout TND needs 3"),
        "BSND with three axes": (all_of(4, 2, 8), {}, query, "layout BSND needs 4"),
        "sin unlike cos": ({"sin": (1, 4, 1, 8)}, {}, "sin", "must be equal"),
        "Bc neither 1 nor B": (
            {"cos": (2, 4, 1, 8), "sin": (2, 4, 1, 8)},
            {},
            "cos",
            "batch axis B",
        ),
        "S of cos": ({"cos": (3, 5, 1, 8), "sin": (3, 5, 1, 8)}, {}, "cos", "sequence axis S"),
        "S of the key": ({key: (3, 5, 2, 8)}, {}, key, axis),
        "N of cos": ({"cos": (3, 4, 2, 8), "sin": (3, 4, 2, 8)}, {}, "cos", "head axis N"),
    }


OF_ONE: dict[str, dict[str, Refused]] = {
    GRAD.name: {
        "layout 3": ({}, {"layout": 3}, "layout", "reserved"),
        "interleave": ({}, {"rotary_mode": "interleave"}, "rotary_mode", "only half"),
        "D of cos smaller": (
            {"cos": (3, 4, 1, 6), "sin": (3, 4, 1, 6)},
            {},
            "cos",
            "width D",
        ),
    },
    FORWARD.name: {
        "D of cos larger": (
            {"cos": (3, 4, 1, 10), "sin": (3, 4, 1, 10)},
            {},
            "cos",
            "at most those of query",
        ),
        "D of cos odd": ({"cos": (3, 4, 1, 3), "sin": (3, 4, 1, 3)}, {}, "cos", "even"),
        "D of the key smaller": ({"key": (3, 4, 2, 6)}, {}, "key", "same in both"),
        "B of the key": ({"key": (1, 4, 2, 8)}, {}, "key", "batch axis B"),
        "D no multiple of 4": (
            dict.fromkeys(("query", "key"), (3, 4, 2, 6)),
            {"rotary_mode": "quarter"},
            "cos",
            "D = 8",
        ),
        "width of cos no multiple of 4": (
            {"cos": (3, 4, 1, 6), "sin": (3, 4, 1, 6)},
            {"rotary_mode": "quarter"},
            "cos",
            "multiple of 4",
        ),
    },
}
"""What is refused by the rules of one operator alone."""

REFUSED = {name: _of_both(subject) | OF_ONE[name] for name, subject in SUBJECTS.items()}


@pytest.mark.parametrize(
    ("operator", "name"),
    [(operator, name) for operator, table in REFUSED.items() for name in table],
)
def test_a_broken_rule_is_named_and_nothing_is_run(
    any_client: opferry.Client, operator: str, name: str
) -> None:
    """The SDK refuses before it sends; the backend, asked for its own word, with 161002 too."""
    subject = SUBJECTS[operator]
    shapes, attributes, argument, words = REFUSED[operator][name]
    arguments = arguments_of(subject, shapes, **attributes)
    with pytest.raises(errors.ContractError, match=words) as here:
        subject.call(any_client, **arguments)
    assert here.value.argument == argument
    assert here.value.aclnn_status == 161002
    assert here.value.status.name == "INVALID_ARGUMENT"
    assert here.value.request_id == ""
    if name in ("HALF", "empty mode"):  # words that the schema has no number for
        return
    with pytest.raises(errors.ContractError) as there:
        subject.call(any_client, **arguments, check=False)
    assert there.value.aclnn_status == 161002
    if there.value.reason != "REFUSED_BY_DEVICE":  # a device has words of its own
        assert there.value.argument == argument
        assert re.search(words, there.value.message)
    assert there.value.request_id


@pytest.mark.parametrize("axis", range(4))
def test_an_empty_axis_is_refused(any_client: opferry.Client, subject: Subject, axis: int) -> None:
    """No dimension may be 0."""
    query, _ = subject.vectors
    shape = [3, 4, 2, 8]
    shape[axis] = 0
    with pytest.raises(errors.InvalidTensorError, match="no axis may be 0"):
        subject.call(any_client, **arguments_of(subject, {query: tuple(shape)}))
    spec = opferry.TensorSpec(opferry.DType.FLOAT32, tuple(shape))
    with pytest.raises(errors.RequestError):
        subject.plan(any_client, **{**arguments_of(subject, {}), query: spec})


def test_mixed_dtypes_are_refused_with_a_hint(any_client: opferry.Client, subject: Subject) -> None:
    """Cos in float32 beside bfloat16 vectors is common in models, and refused here."""
    arguments = subject.tnd(dtype=ml_dtypes.bfloat16)
    arguments["cos"] = arguments["cos"].astype(np.float32)
    with pytest.raises(errors.ContractError, match="convert cos") as caught:
        subject.call(any_client, **arguments)
    assert caught.value.reason == "DTYPE_NOT_ALLOWED"


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.complex64, object])
def test_other_dtypes_are_refused(any_client: opferry.Client, subject: Subject, dtype: Any) -> None:
    """Only float32, float16 and bfloat16 are allowed, and the text says so."""
    arguments = subject.tnd()
    arguments["sin"] = arguments["sin"].astype(dtype)
    with pytest.raises(errors.ContractError, match="float32, float16 or bfloat16") as caught:
        subject.call(any_client, **arguments)
    assert caught.value.argument == "sin"
