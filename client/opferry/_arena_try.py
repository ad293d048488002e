"""One try of a call whose tensors lie in memory that the server shares, in place of chunks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry import errors, wire
from opferry._calls import PreparedCall, most_in_a_message
from opferry._leased_arena import LeasedArena
from opferry._result_buffers import ResultBuffers
from opferry._tries import OnProgress, StreamTry
from opferry.core.leases import ArenaRegion
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem
from opferry.core.tensors import TensorSpec, copy_bytes, raw_bytes
from opferry.errors import CallCancelledError, OpFerryError
from opferry.operators.call import CallResult, CheckedCall, place
from opferry.v1 import operator_service_pb2 as pb


class ArenaTry(StreamTry):
    """A try as one ExecuteShared, or, with progress, as an Execute stream without chunks.

    Use it in a `with` statement: if the try fails, the memory is given back or, where the server
    may still be writing to it, dropped. After `result` it belongs to the outputs: when the last
    view of them dies, it is given back.
    """

    def __init__(
        self,
        prepared: PreparedCall,
        limits: LimitsConfig,
        on_progress: OnProgress | None,
        buffers: ResultBuffers,
        arena: LeasedArena,
    ) -> None:
        """Begin a try, and write the inputs to *arena*, which has at least `size_bytes`."""
        super().__init__(prepared, limits, on_progress, buffers)
        # there are no chunks to wait with
        self.admitted = True
        self._arena = arena
        self._handed_over = False
        inputs = prepared.checked.call.inputs
        offsets, self._size_bytes = _placed(prepared.checked)
        prepared.store(
            {
                name: arena.view[at : at + spec.data_bytes]
                for at, (name, spec) in zip(offsets, inputs.items(), strict=False)
            }
        )
        self._output_offsets = dict(
            zip(prepared.checked.outputs, offsets[len(inputs) :], strict=True)
        )
        # results that a message could hold are always the caller's own
        most_bytes = most_in_a_message(limits)
        self._copies = prepared.copy or prepared.checked.output_bytes <= most_bytes
        # all views are of this array, however they are made, and it dies with the last of them
        self._root: NDArray[Any] = np.frombuffer(arena.view.toreadonly(), np.uint8)

    @staticmethod
    def size_bytes(prepared: PreparedCall) -> int:
        """Return how much memory a call takes."""
        return _placed(prepared.checked)[1]

    def __enter__(self) -> ArenaTry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or self._handed_over:
            return
        # A server that says itself what is wrong is done with the request. Otherwise, and where
        # somebody has ended it, a run that has begun goes on, for nobody.
        ended = isinstance(error, CallCancelledError)
        if isinstance(error, OpFerryError) and error.request_id and not ended:
            self.give_back()
        else:
            self._arena.drop()

    def give_back(self) -> None:
        """Give the memory back, as if the try had never been made."""
        self._arena.give_back()

    def request(self) -> pb.ExecuteSharedRequest:
        """Return the request of ExecuteShared."""
        return pb.ExecuteSharedRequest(header=self._header())

    def result_of(self, response: pb.ExecuteSharedResponse) -> CallResult:
        """Return the result of the response of ExecuteShared; see `result`."""
        try:
            self._begin(response.result)
        except Problem as problem:
            raise errors.unreadable(problem) from problem
        return self.result()

    def header(self) -> bytes:
        """Return the only frame of a stream."""
        return pb.ExecuteRequest(header=self._header()).SerializeToString()

    def chunks(self) -> Iterator[bytes]:
        """Yield nothing."""
        return iter(())

    def result(self) -> CallResult:
        """Return the result: read-only views, or copies, if asked for or small.

        Raises:
            OpFerryError: if something is missing or was changed on the way.
        """
        found = super().result()
        self._handed_over = True
        # gRPC's threads may hold this try for a while; the views are the caller's alone
        root, self._root = self._root, np.empty(0, np.uint8)
        # not when the interpreter ends: the socket's end does it
        weakref.finalize(root, self._arena.give_back).atexit = False
        if self._copies:
            return replace(found, outputs={n: self._copied(n, a) for n, a in found.outputs.items()})
        return found

    def _header(self) -> pb.ExecuteHeader:
        region = ArenaRegion(self._arena.token, 0, self._size_bytes)
        return wire.header_message(self._prepared.call, region)

    def _output(self, name: str, spec: TensorSpec) -> tuple[NDArray[Any], int]:
        at = self._output_offsets[name]
        array: NDArray[Any] = np.ndarray(spec.shape, spec.dtype.numpy, self._root, at)
        return array, spec.data_bytes

    def _copied(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        own = self._buffers.array(self._prepared.checked.outputs[name])
        copy_bytes(raw_bytes(array), raw_bytes(own))
        return own


def _placed(checked: CheckedCall) -> tuple[list[int], int]:
    specs = (*checked.call.inputs.values(), *checked.outputs.values())
    return place(spec.data_bytes for spec in specs)
