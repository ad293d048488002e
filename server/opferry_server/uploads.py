"""The body of a request: chunks put at their final place, without gap or overlap."""

from __future__ import annotations

from opferry.core.problems import Problem, Reason
from opferry.wire import Chunk
from opferry_server.jobs import Job


class NoUpload:
    """In place of an `Upload`, for a request whose inputs lie in memory that its client leased."""

    def write(self, chunk: Chunk) -> None:
        """Refuse a chunk.

        Raises:
            Problem: STREAM_PROTOCOL.
        """
        text = "a chunk came although the header names an arena, in which the tensors lie"
        raise Problem(Reason.STREAM_PROTOCOL, text, argument="arena")

    def finish(self) -> None:
        """Do nothing: the inputs are there."""


class Upload:
    """Receives the inputs of one job into its arena."""

    def __init__(self, job: Job, only: frozenset[str] | None = None) -> None:
        """Receive for *job*, whose memory is reserved; *only* some of its inputs, or all."""
        assert job.arena is not None  # noqa: S101 - it is reserved
        self._view = job.arena.view
        specs = job.checked.call.inputs
        self._names = list(specs)
        self._sizes = [spec.data_bytes for spec in specs.values()]
        self._places = [job.placement.inputs[name] for name in specs]
        self._received = [
            0 if only is None or name in only else size
            for name, size in zip(self._names, self._sizes, strict=True)
        ]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return self._received == self._sizes

    def write(self, chunk: Chunk) -> None:
        """Put a chunk in its place.

        Raises:
            Problem: STREAM_PROTOCOL for a gap, an overlap, or a tensor or bytes too many.
        """
        index, size = chunk.tensor_index, chunk.data.nbytes
        if not 0 <= index < len(self._names):
            raise Problem(
                Reason.STREAM_PROTOCOL,
                f"a chunk names tensor {index}; the header has {len(self._names)}",
                argument="tensor_index",
                given=str(index),
            )
        name, received = self._names[index], self._received[index]
        if chunk.offset_bytes != received:
            kind = "gap" if chunk.offset_bytes > received else "overlap"
            raise self._problem(
                name, f"{kind}: a chunk at byte {chunk.offset_bytes} after {received} bytes"
            )
        if size == 0:
            raise self._problem(name, "a chunk is empty")
        if received + size > self._sizes[index]:
            raise self._problem(
                name, f"{received + size} bytes came; its header says {self._sizes[index]}"
            )
        at = self._places[index] + received
        self._view[at : at + size] = chunk.data
        self._received[index] = received + size

    def finish(self) -> None:
        """Check that nothing is missing.

        Raises:
            Problem: STREAM_PROTOCOL, naming the first tensor that is not complete.
        """
        for name, received, size in zip(self._names, self._received, self._sizes, strict=True):
            if received != size:
                raise self._problem(
                    name, f"the stream ended after {received} bytes; its header says {size}"
                )

    def _problem(self, name: str, said: str) -> Problem:
        return Problem(Reason.STREAM_PROTOCOL, f"{name}: {said}", argument=name)
