"""What operators' calls return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from opferry.core.execution import Execution
from opferry.errors import OpFerryError
from opferry.operators.call import CallResult

_Item = TypeVar("_Item")


class ProgressState(Enum):
    """Where a request is on the server."""

    QUEUED = "queued"
    UPLOADING = "uploading"
    RUNNING = "running"


@dataclass(frozen=True)
class Progress:
    """How far a request is, as `on_progress` is told."""

    state: ProgressState
    """Where it is."""
    position: int
    """The requests before it, while it is queued."""
    request_id: str
    """The server's id of it."""
    expected_wait_s: float = 0.0
    """How long it is expected to wait yet, in seconds, while it is queued."""


@dataclass(frozen=True)
class CallOutcome:
    """What came of one call of `execute_many`: a result or an error."""

    position: int
    """The call's position among those that were given, from 0."""
    value: CallResult | None = None
    """The outputs by name and the execution; None if the call failed."""
    error: OpFerryError | None = None
    """What went wrong; None if the call was executed."""

    def result(self) -> CallResult:
        """Return the result.

        Raises:
            OpFerryError: the error of a call that failed.
        """
        if self.error is not None:
            raise self.error
        assert self.value is not None  # noqa: S101 - one of the two is there
        return self.value


class _Unpacked(ABC, Generic[_Item]):
    """A result that unpacks as its outputs, in the operator's order."""

    @abstractmethod
    def _tuple(self) -> tuple[_Item, ...]:
        """Return the outputs."""

    def __iter__(self) -> Iterator[_Item]:
        return iter(self._tuple())

    def __len__(self) -> int:
        return len(self._tuple())

    def __getitem__(self, index: int) -> _Item:
        return self._tuple()[index]


@dataclass(frozen=True)
class ApplyRotaryPosEmbGradResult(_Unpacked[NDArray[Any] | None]):
    """The gradients of one call; unpacks as (grad_query, grad_key, grad_cos, grad_sin)."""

    grad_query: NDArray[Any]
    """The gradient of query: shape and dtype of grad_query_embed."""
    grad_key: NDArray[Any]
    """The gradient of key: shape and dtype of grad_key_embed."""
    grad_cos: NDArray[Any] | None
    """The gradient of cos: shape and dtype of cos; None without query and key."""
    grad_sin: NDArray[Any] | None
    """The gradient of sin: shape and dtype of sin; None without query and key."""
    execution: Execution
    """Where, by what and how fast."""

    @classmethod
    def of(cls, result: CallResult) -> ApplyRotaryPosEmbGradResult:
        """Return the result of a call of the operator."""
        outputs = result.outputs
        return cls(
            outputs["grad_query"],
            outputs["grad_key"],
            outputs.get("grad_cos"),
            outputs.get("grad_sin"),
            result.execution,
        )

    def _tuple(self) -> tuple[NDArray[Any] | None, ...]:
        return (self.grad_query, self.grad_key, self.grad_cos, self.grad_sin)

    @property
    def dq(self) -> NDArray[Any]:
        """The short name of `grad_query`."""
        return self.grad_query

    @property
    def dk(self) -> NDArray[Any]:
        """The short name of `grad_key`."""
        return self.grad_key

    @property
    def dcos(self) -> NDArray[Any] | None:
        """The short name of `grad_cos`."""
        return self.grad_cos

    @property
    def dsin(self) -> NDArray[Any] | None:
        """The short name of `grad_sin`."""
        return self.grad_sin


@dataclass(frozen=True)
class ApplyRotaryPosEmbResult(_Unpacked[NDArray[Any]]):
    """The rotated tensors of one call; unpacks as (query_out, key_out)."""

    query_out: NDArray[Any]
    """The rotated query: shape and dtype of query."""
    key_out: NDArray[Any]
    """The rotated key: shape and dtype of key."""
    execution: Execution
    """Where, by what and how fast."""

    @classmethod
    def of(cls, result: CallResult) -> ApplyRotaryPosEmbResult:
        """Return the result of a call of the operator."""
        return cls(result.outputs["query_out"], result.outputs["key_out"], result.execution)

    def _tuple(self) -> tuple[NDArray[Any], ...]:
        return (self.query_out, self.key_out)

    @property
    def q_embed(self) -> NDArray[Any]:
        """The short name of `query_out`."""
        return self.query_out

    @property
    def k_embed(self) -> NDArray[Any]:
        """The short name of `key_out`."""
        return self.key_out
