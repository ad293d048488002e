"""Layouts by number, by name, and what is neither."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pytest

from opferry.core.layouts import Layout, layout_number
from opferry.core.problems import Problem, Reason


class _Other(IntEnum):
    TWO = 2


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (1, 1),
        ("BSND", 1),
        (" sbnd ", 2),
        ("Tnd", 4),
        ("BNSD", 3),
        (Layout.TND, 4),
        (_Other.TWO, 2),
        (np.int64(4), 4),
        (np.array(2), 2),
        (0, 0),
        (-1, -1),
        (99, 99),
    ],
)
def test_layouts_by_number_and_name(given: object, number: int) -> None:
    """Names in any case and all kinds of integers give the number; the contract judges it."""
    result = layout_number(given)  # type: ignore[arg-type]
    assert (result, isinstance(result, int)) == (number, True)


@pytest.mark.parametrize("given", ["", "BSH", "1", "half", "B" * 1000])
def test_other_names_are_refused(given: str) -> None:
    """A name that is no layout is refused, listing those that are."""
    with pytest.raises(Problem, match="known are BSND, SBND, BNSD, TND and their") as caught:
        layout_number(given)
    assert (caught.value.reason, caught.value.argument) == (Reason.ENUM_UNKNOWN, "layout")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    "given", [True, np.True_, 1.0, np.float32(1), np.array(1.0), np.array([1, 2]), None, b"BSND"]
)
def test_other_types_are_refused(given: object) -> None:
    """What is neither number nor name is refused by its type."""
    with pytest.raises(Problem, match=r"^layout is a \w+; give a number or a name") as caught:
        layout_number(given)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.ATTRIBUTE_INVALID
    assert caught.value.aclnn_status == 161002


def test_axes_are_the_letters_of_the_name() -> None:
    """A layout names its axes by letter, in order."""
    assert [layout.axes for layout in Layout] == ["BSND", "SBND", "BNSD", "TND"]
