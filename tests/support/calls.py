"""Inputs for calls of any operator, and what its reference says to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opferry.core.dtypes import DType, canonical_nan
from opferry.core.tensors import from_array
from opferry.operators import OPERATORS
from opferry.operators.base import Operator
from opferry.validation import compare

EXACT, SUMS = ("grad_query", "grad_key"), ("grad_cos", "grad_sin")
"""The backward's outputs that are computed element by element, and those that are summed."""


@dataclass(frozen=True)
class Subject:
    """An operator, for tests that are the same for each."""

    operator: Operator
    """The operator."""
    vectors: tuple[str, str]
    """Its first two inputs, with the query's heads and with the key's."""

    @property
    def name(self) -> str:
        """Its name in Python."""
        return self.operator.python_name

    @property
    def stages(self) -> tuple[str, str]:
        """The names of its two functions in C."""
        return f"{self.operator.aclnn_name}GetWorkspaceSize", self.operator.aclnn_name

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs."""
        return tuple(output.name for output in self.operator.outputs)

    def call(self, client: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call the client's method of the operator; an asynchronous one is to be awaited."""
        return getattr(client, self.name)(*arguments, **named)

    def plan(self, client: Any, /, **named: Any) -> Any:
        """Ask for a plan by the client's method."""
        return getattr(client, f"plan_{self.name}")(**named)

    def tnd(
        self,
        tokens: int = 2,
        query_heads: int = 3,
        key_heads: int = 2,
        width: int = 8,
        *,
        dtype: Any = np.float32,
        with_query: bool = True,
        cos: float | None = None,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Return the arguments of a call with layout TND.

        Args:
            tokens: T.
            query_heads: Nq.
            key_heads: Nk.
            width: D.
            dtype: of all arrays.
            with_query: whether the backward is given query and key.
            cos: what fills cos, if given.
            seed: another seed, other values.
        """
        rng = np.random.default_rng(seed)

        def draw(heads: int) -> NDArray[Any]:
            return rng.standard_normal((tokens, heads, width), np.float32).astype(dtype)

        query, key = self.vectors
        arguments: dict[str, Any] = {
            query: draw(query_heads),
            key: draw(key_heads),
            "cos": draw(1),
            "sin": draw(1),
        }
        if cos is not None:
            arguments["cos"][...] = cos
        if with_query and self is GRAD:
            arguments |= {"query": draw(query_heads), "key": draw(key_heads)}
        return {**arguments, "layout": 4}


GRAD = Subject(OPERATORS["ApplyRotaryPosEmbGrad"], ("grad_query_embed", "grad_key_embed"))
FORWARD = Subject(OPERATORS["ApplyRotaryPosEmb"], ("query", "key"))

SUBJECTS = {subject.name: subject for subject in (GRAD, FORWARD)}
"""Every operator; a test of the table of operators says that none is missing."""

EACH = [pytest.param(subject, id=name) for name, subject in SUBJECTS.items()]
"""Every operator as a parameter."""

HEAVY = [
    EACH[0],
    *(pytest.param(*each.values, id=each.id, marks=pytest.mark.full) for each in EACH[1:]),
]
"""The same, of which only the first is among the quick tests: for those that take long."""

ROTARY_GRAD = GRAD.operator

tnd = GRAD.tnd
"""The arguments of a call of the backward, for tests for which any operator is as good."""


def forward_arrays(*, rotated: int = 16) -> dict[str, NDArray[Any]]:
    """Return the forward's inputs in BSND: two batches that share cos, of three and two heads.

    Args:
        rotated: the width of cos; D is 16.
    """
    random = np.random.default_rng(0)
    table = (1, 5, 1, rotated)
    shapes = {"query": (2, 5, 3, 16), "key": (2, 5, 2, 16), "cos": table, "sin": table}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def subject_of(named: dict[str, Any]) -> Subject:
    """Return whose arguments, or outputs, these are."""
    for subject in SUBJECTS.values():
        # the forward's inputs are the backward's optional ones, so the backward comes first
        if subject.vectors[0] in named or subject.outputs[0] in named:
            return subject
    raise AssertionError(f"{sorted(named)} are no operator's")


def reference(arguments: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the reference's outputs for the arguments of a call."""
    operator = subject_of(arguments).operator
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    attributes = {name: arguments[name] for name in ("layout", "rotary_mode") if name in arguments}
    specs = {name: from_array(name, array).spec for name, array in arrays.items()}
    plan = operator.check(specs, operator.parse_attributes(attributes))
    return operator.reference(arrays, plan)


def assert_same_bits(actual: Any, expected: dict[str, NDArray[Any]]) -> None:
    """Assert that a result has the expected outputs, bit for bit, NaN equal to NaN."""
    found = {name: getattr(actual, name) for name in subject_of(expected).outputs}
    assert {name for name, array in found.items() if array is not None} == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert canonical_nan(found[name]).tobytes() == canonical_nan(array).tobytes(), name


def assert_agrees(actual: Any, expected: dict[str, NDArray[Any]]) -> None:
    """Assert that a backend's result agrees with the reference.

    What is computed element by element has the reference's bits on every backend; sums, whose order
    is a backend's own, have them on the CPU, and elsewhere pass the standard `mixed`.
    """
    sums = (
        {} if actual.execution.backend == "cpu" else {n: expected[n] for n in SUMS if n in expected}
    )
    for name in sums:
        found, golden = getattr(actual, name), expected[name]
        assert compare(found, golden, dtype=DType.of(golden.dtype, name)).passed, name
    same = {name: getattr(actual, name) for name in sums}
    assert_same_bits(actual, {**expected, **same})
