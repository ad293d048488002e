"""The parser of cells."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opferry.validation import CellError, parse_literal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("((8,20,24,2,),None,)", ((8, 20, 24, 2), None)),
        ("[[1, 2], [3]]", ((1, 2), (3,))),
        ("('float32', \"ND\",)", ("float32", "ND")),
        ("()", ()),
        ("(inf,-inf,+inf)", (math.inf, -math.inf, math.inf)),
        ("(-3.0517578125e-05, 3.3895313892515355e+38)", (-(2.0**-15), 3.3895313892515355e38)),
        ("1.00E-05", 1e-05),
        ("- 2", -2),
        (".5", 0.5),
        ("1_000", 1000),
        ("(True, False, None)", (True, False, None)),
        ("  ( 1 ,\n 2 )  ", (1, 2)),
        ("'a - b'", "a - b"),
    ],
)
def test_reads_what_files_hold(text: str, value: object) -> None:
    """Tuples, lists, numbers, strings, words and trailing commas have Python's meaning."""
    assert parse_literal(text) == value


def test_reads_nan() -> None:
    """The bare word nan is the float NaN, with or without a sign."""
    assert all(math.isnan(value) for value in parse_literal("(nan,-nan,)"))


def test_a_dict_is_read_only() -> None:
    """A dict cannot be changed, because cells that repeat share one value."""
    value = parse_literal("{'layout': 4, 'rotaryModeOptional': 'half',}")
    assert dict(value) == {"layout": 4, "rotaryModeOptional": "half"}
    with pytest.raises(TypeError):
        value["layout"] = 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').system('true')", "character 1"),
        ("(1, np.inf)", "character 5"),
        ("float('inf')", "character 1"),
        ("infinity", "character 1"),
        ("lambda: 1", "character 1"),
        ("(1).real", "character 4"),
        ("f'{1}'", "character 1"),
        ("b'1'", "character 1"),
        ("1 + 1", "BinOp"),
        ("2 ** 9", "character 3"),
        ("1j", "character 1"),
        ("- -1", "character 1"),
        ("-True", "UnaryOp"),
        ("-'a'", "character 1"),
        ("not 1", "character 1"),
        ("(1)(2)", "Call"),
        ("(1,2)[0]", "Subscript"),
        ("{1, 2}", "Set"),
        ("{1: 2}", "key 1"),
        ("{'a': 1, 'a': 2}", "'a' twice"),
        ("...", "character 1"),
        ("'a\\x41'", "character 1"),
        ("1e999", "write inf"),
        ("(1, 2", "not a literal"),
        ("(1 2)", "not a literal"),
        ("1 if 1 else 2", "character 3"),
        ("(1,) # note", "character 6"),
        ("[1 for x in y]", "character 4"),
        ("(" * 9 + "1" + ",)" * 9, "deeper than 8"),
        ("(" * 3000 + ")" * 3000, "not a literal"),
        ("-" * 5000 + "1", "character 1"),
        # how deep the interpreter can parse differs between its releases
        ("()" * 8000, "not a literal|character 1"),
        ("1," * 9000, "18000 characters"),
        ("1" * 5000 + "x", "character 1"),
    ],
)
def test_refuses_what_is_no_literal(text: str, said: str) -> None:
    """Calls, names, operators, duplicates and excess are refused, with their place."""
    with pytest.raises(CellError, match=said):
        parse_literal(text)


_plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(
        st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\\'\""), max_size=8
    )
)
_values: st.SearchStrategy[object] = st.deferred(
    lambda: _plain | st.lists(_values, max_size=4).map(tuple)
)


@given(_values)
def test_reads_back_what_python_writes(value: object) -> None:
    """For values of the allowed kinds, reading undoes repr, inf included."""
    text = repr(value)
    if text.count("(") <= 8:
        assert parse_literal(text) == value


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text raises anything but CellError, and none is executed."""
    with contextlib.suppress(CellError):
        parse_literal(text)
