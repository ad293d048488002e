"""Sessions: work that goes over as many streams as it takes, and what ends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from opferry import errors
from opferry.core.problems import Reason

_T_co = TypeVar("_T_co", covariant=True)


class Session(Protocol[_T_co]):
    """Pieces of work on their way to their results, without any input or output of its own."""

    method: str
    """Which streams it goes over."""
    welcomed: bool
    """Whether a server has taken it at least once."""

    @property
    def finished(self) -> bool:
        """Whether every piece has its result, and every result has been taken."""

    @property
    def all_sent(self) -> bool:
        """Whether this stream needs no further piece."""

    @property
    def under_way(self) -> bool:
        """Whether a piece on this stream is without its result."""

    def header(self) -> bytes:
        """Return the first frame of a new stream."""

    def receive(self, frame: bytes) -> None:
        """Take in a frame.

        Raises:
            OpFerryError: if it is not as the schema says, or ends the stream.
            StopError: if it ends all.
        """

    def to_send(self) -> Iterator[Iterator[bytes]]:
        """Yield what can be sent now; each item makes its frames when they are needed."""

    def results(self) -> Iterator[_T_co]:
        """Yield the results that are there, in order."""

    def stop(self, error: errors.OpFerryError) -> None:
        """Give up: what has no result is left without one, because of *error*."""


class StopError(Exception):
    """What no further case can change; `error` says what."""

    def __init__(self, error: errors.OpFerryError) -> None:
        """Carry *error*."""
        super().__init__(str(error))
        self.error = error


def broken_off(error: errors.OpFerryError) -> errors.OpFerryError:
    """Return the error of what the server ended, as one to be tried again if it may be.

    One that found this side idle may have waited for a caller who took long over a result.
    """
    if error.reason != Reason.STREAM_IDLE.value:
        return error
    return errors.TransportError(error.message, status=error.status, may_retry=True)
