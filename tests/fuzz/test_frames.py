"""The fuzz of `make fuzz`, in short and in full, and that it finds what is wrong."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from opferry.wire import frames, varints
from tests.fuzz.frames import KINDS, fuzz

INPUTS = 20_000

IMPORTED = "from opferry.wire.varints import read_varint, varint\n"


def test_twenty_thousand_inputs_are_read_alike() -> None:
    """The hand-written reader and writer agree with the generated code, on frames of all kinds."""
    seen = fuzz(INPUTS, seed=1)
    assert {kind for kind, _ in seen} == set(KINDS)
    for what in ("refused", "message", "chunk, read by hand", "chunk, parsed"):
        assert sum(seen[kind, what] for kind in KINDS) > INPUTS / 200, (what, seen)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_million_inputs_are_read_alike() -> None:
    """The same, as often as the reader's speed is worth."""
    fuzz(1_000_000, seed=2)


MISTAKES = {
    "an overrun of the frame": ("if at + length != len(frame):", "if at + length < len(frame):"),
    "a cut payload": ("if at + size != len(frame) or", "if"),
    "a negative index": ("index >= 2**31 or ", ""),
    "a negative offset": (" or offset >= 2**63", ""),
    "an index of 64 bits": ("index >= 2**31", "index >= 2**63"),
    "numbers cut to 63 bits": (
        "value |= (byte & 0x7F) << shift",
        "value = (value | (byte & 0x7F) << shift) % 2**63",
    ),
    "other fields for the payload": ("if frame[at] != _DATA_TAG:", "if False:"),
    "the other direction's frames": ("if frame[0] != tag:", "if frame[0] not in (0x12, 0x1A):"),
    "refusals for what is unusual": ("except (IndexError, ValueError):", "except ValueError:"),
    "no index in the frame": ("if chunk.tensor_index:", "if chunk.tensor_index > 127:"),
    "a short length in the frame": ("varint(len(inner) + size)", "varint(len(inner))"),
}
"""Mistakes in the reader or the writer: a line's text, and another in its place.

None of them takes padded varints: there are releases of protobuf that do the same.
"""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake: str) -> None:
    """A reader or writer with one mistake is found out by the short run."""
    right, wrong = MISTAKES[mistake]
    # as one text: frames has the numbers' reader and writer from the other
    source = inspect.getsource(varints) + inspect.getsource(frames).replace(IMPORTED, "")
    source = source.replace("from __future__ import annotations", "")
    assert source.count(right) == 1
    mutant = ModuleType(frames.__name__)
    exec(compile(source.replace(right, wrong), "mutant", "exec"), vars(mutant))  # noqa: S102
    with pytest.raises((AssertionError, IndexError)):
        fuzz(INPUTS, seed=1, module=mutant)
