"""Layouts and rotary modes: the words and numbers by which the vendor names them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum, IntEnum
from operator import index

from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason


class Layout(IntEnum):
    """The order of the axes: batch B, sequence S, head N, width D, tokens T."""

    BSND = 1
    SBND = 2
    BNSD = 3
    TND = 4

    @property
    def axes(self) -> str:
        """One letter for each axis, in order, for example "BSND"."""
        return self.name


class RotaryMode(str, Enum):
    """How the elements of the last axis pair up for the rotation."""

    HALF = "half"
    INTERLEAVE = "interleave"
    QUARTER = "quarter"


AXIS_NAMES = {"B": "batch", "S": "sequence", "N": "head", "D": "width", "T": "tokens"}
"""What the letters of a layout stand for, as error texts name them."""


def layout_number(layout: int | str, aliases: Mapping[str, Layout] | None = None) -> int:
    """Return the vendor's number of a layout given as number, name or `Layout`.

    A number that is no layout is returned as it is, so that the operator's contract refuses it in
    its own order and words.

    Args:
        layout: 1, "BSND" or `Layout.BSND`; names in any case.
        aliases: further names, and what they mean; None: none.

    Raises:
        Problem: ENUM_UNKNOWN for a name that is no layout, ATTRIBUTE_INVALID for another type.
    """
    if isinstance(layout, str):
        word, more = layout.strip().upper(), aliases or {}
        found = Layout.__members__.get(word) or more.get(word)
        if found is None:
            names = ", ".join((*Layout.__members__, *more))
            raise Problem(
                Reason.ENUM_UNKNOWN,
                f"layout {layout[:40]!r} is unknown; known are {names} and their numbers",
                argument="layout",
                given=layout[:40],
                allowed=names,
                aclnn_status=ACLNN_ERR_PARAM_INVALID,
            )
        return int(found)
    # older numpy gives its truth values an index as well
    kind = getattr(getattr(layout, "dtype", None), "kind", "")
    if not isinstance(layout, bool) and kind != "b":
        # an array of one integer has an index, any other array refuses only when asked for it
        with suppress(TypeError):
            return index(layout)
    raise Problem(
        Reason.ATTRIBUTE_INVALID,
        f"layout is a {type(layout).__name__}; give a number or a name, such as 1 or BSND",
        argument="layout",
        given=repr(layout)[:40],
        aclnn_status=ACLNN_ERR_PARAM_INVALID,
    )
