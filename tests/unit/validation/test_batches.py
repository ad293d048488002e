"""The columns of batch consistency, in the forms that are published."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opferry.validation import BatchSample, BatchSlice, CaseFile

Q = "grad_query_embed"
ONE = BatchSlice(Q, (0,), (BatchSample(100, (range(2),)),))


@pytest.mark.parametrize(
    ("seed", "axis", "slices", "wanted"),
    [
        ("", "", "", None),
        ("(100,)", "", "", None),
        ("(((100,),),)", "None", "()", None),
        ("(((100,),),)", "((0,),)", "((((0,2,1),),),)", ONE),
        ("[[[100]]]", "[[0]]", "[[[[0,2,1]]]]", ONE),
        # as in TTK's document, where the axis has brackets of its own and the seed none
        ("(100,)", "(([0],),)", "(([[0,2,1]],),)", ONE),
        # a single slice without brackets of its own
        ("(((100,),),)", "((0,),)", "(((0,2,1),),)", ONE),
        ("((100,),None)", "((0,),None,(1,))", "(((0,2,1),),None)", ONE),
        (
            "(((7,8),),)",
            "((1,),)",
            "((((0,1,1),(0,3,2)),),)",
            BatchSlice(Q, (1,), (BatchSample(7, (range(1),)), BatchSample(8, (range(0, 3, 2),)))),
        ),
        (
            "(None,((7,),(7,)))",
            "(None,(0,2))",
            "(None,(((1,2,1),),((0,2,1),)))",
            BatchSlice("grad_key_embed", (0, 2), (BatchSample(7, (range(1, 2), range(2))),)),
        ),
    ],
)
def test_forms(
    make_file: Callable[..., CaseFile],
    seed: str,
    axis: str,
    slices: str,
    wanted: BatchSlice | None,
) -> None:
    """One entry for each tensor; in it one for each axis; in that one for each slice."""
    row = {"batch_seed": seed, "batch_axis": axis, "batch_slice_info": slices}
    assert make_file(row).cases[0].batch == wanted


def test_extents(make_file: Callable[..., CaseFile]) -> None:
    """Slices compare where they have the same extents."""
    row = {"batch_seed": "(1,)", "batch_axis": "((1,),)", "batch_slice_info": "(((0,3,2),),)"}
    batch = make_file(row).cases[0].batch
    assert batch is not None
    assert batch.samples[0].extents == (2,)


def test_a_disabled_row_may_hold_anything(make_file: Callable[..., CaseFile]) -> None:
    """It is not to run."""
    assert make_file({"is_enabled": "False", "batch_axis": "x"}).cases[0].batch is None
