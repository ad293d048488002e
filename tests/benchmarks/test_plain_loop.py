"""The loop that a suite is measured against computes what the operator computes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.plain_loop import reference, spread
from opferry.core.tensors import spec_of_array
from opferry.operators import APPLY_ROTARY_POS_EMB_GRAD as OPERATOR
from opferry.validation import compare

SHAPES = {
    1: {"large": (2, 3, 4, 8), "key": (2, 3, 2, 8), "table": (1, 3, 1, 8)},
    2: {"large": (3, 2, 4, 8), "key": (3, 2, 1, 8), "table": (3, 2, 1, 8)},
    4: {"large": (5, 4, 8), "key": (5, 4, 8), "table": (5, 1, 8)},
}
"""Of each layout: the gradient's, the key's and cos' shape."""


@pytest.mark.parametrize("layout", SHAPES)
def test_whole_arrays_give_the_operators_results(layout: int) -> None:
    """In each layout, with and without sums over B, the results pass the mixed standard."""
    shapes, random = SHAPES[layout], np.random.default_rng(layout)
    names = {"key": "key", "grad_key_embed": "key", "cos": "table", "sin": "table"}
    arrays = {
        item.name: random.standard_normal(shapes[names.get(item.name, "large")], np.float32)
        for item in OPERATOR.inputs
    }
    specs = {name: spec_of_array(name, array) for name, array in arrays.items()}
    plan = OPERATOR.check(specs, OPERATOR.parse_attributes({"layout": layout}))
    found, wanted = reference(arrays, plan), OPERATOR.reference(arrays, plan)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert compare(found[name], array, dtype=plan.outputs[name].dtype).passed, name


def test_a_sample_is_spread_evenly() -> None:
    """The first row is in it, the others are equally far apart, and more than all are all."""
    rows = list(range(10))
    assert spread(rows, 3) == [0, 3, 6]
    assert spread(rows, 99) == spread(rows, None) == rows
