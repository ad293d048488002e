"""Inputs for the reference of ApplyRotaryPosEmbGrad, and its call in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.operators import operator_named

Array = NDArray[Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Sizes:
    """The extents of a call; TND reads batch * length as T."""

    layout: int
    batch: int
    length: int
    query_heads: int
    key_heads: int
    width: int
    cos_batch: int = 0
    """0: as batch."""
    optional: bool = True
    """Whether query and key are given."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input."""
        table = name in ("cos", "sin")
        heads = 1 if table else self.key_heads if "key" in name else self.query_heads
        batch = self.cos_batch or self.batch if table else self.batch
        if self.layout == 4:
            return (self.batch * self.length, heads, self.width)
        rows = (batch, self.length) if self.layout == 1 else (self.length, batch)
        return (*rows, heads, self.width)

    def arrays(self, seed: int, dtype: DType = DType.FLOAT32) -> Arrays:
        """Return normally distributed inputs; the halves of cos and sin are independent."""
        random = np.random.default_rng(seed)
        names = ["grad_query_embed", "grad_key_embed", "cos", "sin"]
        names += ["query", "key"] if self.optional else []
        return {
            name: random.standard_normal(self.shape(name), np.float32).astype(dtype.numpy)
            for name in names
        }


Compute = Callable[..., Arrays]


def _compute(
    arrays: Mapping[str, Array],
    layout: int,
    *,
    outputs: Mapping[str, Array] | None = None,
    promote: bool = False,
) -> Arrays:
    operator = operator_named("ApplyRotaryPosEmbGrad")
    specs = {
        name: TensorSpec(DType.of(array.dtype, name), array.shape) for name, array in arrays.items()
    }
    plan = operator.check(specs, operator.parse_attributes({"layout": layout}))
    return operator.reference(arrays, plan, outputs=outputs, promote=promote)


@pytest.fixture(scope="session")
def sizes() -> type[Sizes]:
    """The class that names a call's extents and makes its inputs."""
    return Sizes


@pytest.fixture(scope="session")
def compute() -> Compute:
    """A function that checks a call of arrays and returns the reference's outputs."""
    return _compute
