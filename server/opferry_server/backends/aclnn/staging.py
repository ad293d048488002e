"""Copies between host and device through pinned memory, piece by piece.

A copy is asynchronous only from or to pinned memory. Two pieces alternate: while one is on its way,
the other is filled or emptied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence

from opferry_server.backends.aclnn.library import Library
from opferry_server.backends.aclnn.memory import Block
from opferry_server.backends.aclnn.symbols import VALUES

PIECE_BYTES = 8 * 1024 * 1024
"""One pinned piece; each stream holds two while it copies."""


class Stager:
    """Copies for one stream, on its thread."""

    def __init__(self, library: Library, stream: int, synchronize: Callable[[str], None]) -> None:
        """Copy on *stream*.

        Args:
            library: the bound functions.
            stream: the stream's handle.
            synchronize: waits for the stream; called with the stage for its problems.
        """
        self._library = library
        self._stream = stream
        self._synchronize = synchronize

    def to_device(self, pieces: Sequence[Block], target: int, source: int, size_bytes: int) -> None:
        """Copy host data to the device; done when the stream is synchronised.

        Args:
            pieces: pinned pieces, none of them in use; the copy uses them until then.
            target: the device pointer.
            source: the host pointer.
            size_bytes: how much.
        """
        for turn, (at, size) in enumerate(_spans(size_bytes)):
            if turn and turn % len(pieces) == 0:
                # all pieces are on their way
                self._synchronize("copy_in")
            piece = pieces[turn % len(pieces)]
            ctypes.memmove(piece.address, source + at, size)
            self._copy(target + at, piece.address, size, "ACL_MEMCPY_HOST_TO_DEVICE", "copy_in")

    def to_host(self, pieces: Sequence[Block], target: int, source: int, size_bytes: int) -> None:
        """Copy device data to the host; done when this returns.

        Args:
            pieces: pinned pieces, none of them in use.
            target: the host pointer.
            source: the device pointer.
            size_bytes: how much.
        """
        spans = list(_spans(size_bytes))
        for first in range(0, len(spans), len(pieces)):
            group = list(zip(spans[first : first + len(pieces)], pieces, strict=False))
            for (at, size), piece in group:
                kind = "ACL_MEMCPY_DEVICE_TO_HOST"
                self._copy(piece.address, source + at, size, kind, "copy_out")
            self._synchronize("copy_out")
            for (at, size), piece in group:
                ctypes.memmove(target + at, piece.address, size)

    def _copy(self, target: int, source: int, size: int, kind: str, stage: str) -> None:
        self._library.call(
            "aclrtMemcpyAsync", target, size, source, size, VALUES[kind], self._stream, stage=stage
        )


def _spans(size_bytes: int) -> Iterator[tuple[int, int]]:
    for at in range(0, size_bytes, PIECE_BYTES):
        yield at, min(PIECE_BYTES, size_bytes - at)
