"""Choosing cases by TTK's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opferry.validation import Case, CaseFile, CaseFileError, parse_ranges, select

ACLNN = "aclnnApplyRotaryPosEmbGrad"
E2E = "torch.ops.cann_ops_transformer.apply_rotary_pos_emb_grad"


@pytest.fixture
def file(make_file: Callable[..., CaseFile]) -> CaseFile:
    """Six rows that differ in all that can be chosen by."""
    return make_file(
        {"testcase_name": "a", "priority": "1", "precision_status": "PASS"},
        {"testcase_name": "b", "priority": "2", "precision_status": "FAIL", "api_name": E2E},
        {"testcase_name": "c", "soc_series": "('Ascend910B',)", "precision_status": "ERROR"},
        {"testcase_name": "d", "soc_series": "-Ascend910B", "priority": "3", "api_name": E2E},
        {"testcase_name": "e", "is_enabled": "False", "precision_status": "DISABLED"},
        {"testcase_name": "f", "soc_series": "Ascend910_93, ascend950", "precision_status": "PASS"},
    )


def names(cases: tuple[Case, ...]) -> str:
    return "".join(case.name for case in cases)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ({}, "abcdef"),
        ({"names": ["c", "a", "c"]}, "ac"),
        ({"indexes": [0, 5]}, "af"),
        ({"indexes": parse_ranges("1-3")}, "bcd"),
        ({"indexes": parse_ranges("4-")}, "ef"),
        ({"operators": ["aclnnApplyRotaryPosEmbGrad"]}, "acef"),
        ({"operators": [E2E]}, "bd"),
        ({"operators": [" ApplyRotaryPosEmbGrad"]}, "abcdef"),
        ({"operators": ["apply_rotary_pos_emb_grad", ACLNN]}, "abcdef"),
        ({"priorities": [1, 3]}, "ad"),
        ({"priorities": parse_ranges("2-")}, "bd"),
        ({"priorities": parse_ranges("0")}, "cef"),
        ({"priorities": parse_ranges("-1,3")}, "acdef"),
        ({"soc": "Ascend910B"}, "abce"),
        ({"soc": "ASCEND950"}, "abdef"),
        ({"soc": "Ascend310P"}, "abde"),
        ({"rerun": "precision_status"}, "bcd"),
        ({"rerun": " Precision_Status ,"}, "bcd"),
        ({"count": 6}, "abcdef"),
        ({"count": 100}, "abcdef"),
        ({"names": "abc", "priorities": parse_ranges("1-2"), "soc": "Ascend910B"}, "ab"),
        ({"indexes": parse_ranges("1-5"), "rerun": "precision_status", "operators": [E2E]}, "bd"),
    ],
)
def test_what_is_chosen(file: CaseFile, words: dict[str, Any], wanted: str) -> None:
    """Each word is a condition; all of them hold; the order is the file's."""
    assert names(select(file, **words)) == wanted


def test_a_number_of_cases(file: CaseFile) -> None:
    """So many of those that the other words leave; a seed always chooses the same ones."""
    chosen = {names(select(file, count=2, seed=seed)) for seed in range(30)}
    assert all(len(found) == 2 and list(found) == sorted(found) for found in chosen)
    assert len(chosen) > 5
    assert names(select(file, count=2, seed=7)) == names(select(file, count=2, seed=7))
    assert names(select(file, count=3)) == "bef"
    assert names(select(file, names="def", count=2, seed=1)) in ("de", "df", "ef")
    with pytest.raises(ValueError, match="count is 0; give 1 or more"):
        select(file, count=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"names": ["y", "a", "x"]}, "has no case named x, y"),
        ({"names": []}, "has no case that satisfies what was chosen by: names"),
        ({"indexes": [6]}, "has no row at position 6; its 6 rows are at 0 to 5"),
        ({"indexes": parse_ranges("0,3-1000000000000")}, "has no row at position 1000000000000"),
        ({"indexes": parse_ranges("9-")}, "has no row at position 9"),
        ({"indexes": [-1]}, "has no row at position -1"),
        ({"operators": ["aclnnAdd"]}, "has no case for 'aclnnAdd'; it has cases for ApplyRotary"),
        ({"operators": [""]}, "has no case for ''"),
        ({"priorities": [9]}, "has no case that satisfies what was chosen by: priorities"),
        ({"rerun": "perf_status"}, "has no column perf_status; give the result file of an"),
        ({"rerun": "grad_query_status"}, "by 'grad_query_status'; give precision_status or"),
        ({"rerun": ""}, "cannot be chosen from by ''"),
        (
            {"names": ["a"], "soc": "x", "rerun": "precision_status"},
            "chosen by: names, SoC 'x', not PASS in precision_status",
        ),
    ],
)
def test_what_cannot_be_chosen(file: CaseFile, words: dict[str, Any], said: str) -> None:
    """What a word names and the file does not have, and a choice that leaves nothing."""
    with pytest.raises(CaseFileError) as caught:
        select(file, **words)
    assert said in caught.value.message
    assert str(caught.value).startswith(str(file.path))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3", (range(3, 4),)),
        ("1-10", (range(1, 11),)),
        (" 1, 3 , 7 - 9 ", (range(1, 2), range(3, 4), range(7, 10))),
        ("-2", (range(3),)),
    ],
)
def test_ranges(text: str, wanted: tuple[range, ...]) -> None:
    """Ends are included."""
    assert parse_ranges(text) == wanted


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "1.5", "1--2", "-", "0x1", "²", "1-2-3"])
def test_what_is_no_range(text: str) -> None:
    """One line says what may be given."""
    with pytest.raises(ValueError, match="is no number and no range; give 3, 1-10"):
        parse_ranges(text)
    with pytest.raises(ValueError, match="'5-2' ends before it starts"):
        parse_ranges("5-2")


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ("", ()),
        ("None", ()),
        ("()", ()),
        ("Ascend950PR", ("Ascend950PR",)),
        ("'Ascend910B'", ("Ascend910B",)),
        ("('Ascend910B', '-Ascend950',)", ("Ascend910B", "-Ascend950")),
    ],
)
def test_soc_series(make_file: Callable[..., CaseFile], cell: str, wanted: tuple[str, ...]) -> None:
    """TTK takes a tuple of words, a word in quotes, and a bare word."""
    assert make_file({"soc_series": cell}).cases[0].soc_series == wanted


def test_priority(make_file: Callable[..., CaseFile]) -> None:
    """A row with an expected status that breaks the contract in its words has one, too."""
    refused = {"tensor_dtypes": "('int8',)", "expected_status": "161002", "priority": "4"}
    cases = make_file({"priority": " 2 "}, {"priority": ""}, refused).cases
    assert [case.priority for case in cases] == [2, None, 4]
    assert cases[2].problem is not None
