"""One request on one stream: copy in, two stages, copy out, and everything released on each path.

The rules of the two stages bind the order here: an executor is used once; tensors, their memory and
the workspace live until the stream was synchronised; a workspace of size 0 is a null pointer; the
calling thread has the context set. After a fault nothing is released: free and destroy may block
for ever, and the process is about to end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ctypes import c_float, c_int64, c_uint64, c_void_p
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.execution import Timings
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators.call import Call
from opferry_server.backends.aclnn.library import Library
from opferry_server.backends.aclnn.memory import Block, Pool
from opferry_server.backends.aclnn.operators import Binding
from opferry_server.backends.aclnn.staging import PIECE_BYTES, Stager
from opferry_server.backends.aclnn.status import AclProblem
from opferry_server.backends.aclnn.symbols import VALUES

DATA_TYPES = {
    DType.FLOAT32: VALUES["ACL_FLOAT"],
    DType.FLOAT16: VALUES["ACL_FLOAT16"],
    DType.BFLOAT16: VALUES["ACL_BF16"],
}
"""aclDataType by dtype."""

POISONS = (0xA5, 0x5A)
"""What output memory is filled with before a run. An element that still holds it was not written,
or happens to look like it; the second poison tells which."""

Arrays = Mapping[str, NDArray[Any]]


class Launcher:
    """Runs calls on one stream, on the thread whose context it belongs to."""

    def __init__(
        self, library: Library, stream: int, device: Pool, pinned: Pool, sync_timeout_ms: int
    ) -> None:
        """Launch on *stream*.

        Args:
            library: the bound functions.
            stream: the stream's handle; nobody else uses it.
            device: the pool of device memory, for tensors and workspaces.
            pinned: the pool of pinned memory, for copies.
            sync_timeout_ms: how long a synchronisation may take.
        """
        self._library = library
        self._stream = stream
        self._device = device
        self._pinned = pinned
        self._sync_timeout_ms = sync_timeout_ms
        self._stager = Stager(library, stream, self.synchronize)

    def synchronize(self, stage: str) -> None:
        """Wait until everything on the stream is done.

        Raises:
            AclProblem: whatever went wrong on the device since the last time, or a timeout.
        """
        function = "aclrtSynchronizeStreamWithTimeout"
        self._library.call(function, self._stream, self._sync_timeout_ms, stage=stage)

    def run(self, binding: Binding, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        """Run an operator `call.options.repeat` times and write its outputs.

        Raises:
            AclProblem: what CANN says against it.
            Problem: OPERATOR_FAILED for output elements that the operator did not write.
        """
        specs = {
            **call.inputs,
            **{name: TensorSpec(_dtype(array), array.shape) for name, array in outputs.items()},
        }
        with self._releasing() as held:
            pieces = [self._lease(held, self._pinned, PIECE_BYTES) for _ in range(2)]
            blocks = {
                name: self._lease(held, self._device, spec.data_bytes)
                for name, spec in specs.items()
            }
            run = _Run(self, binding, call, specs, blocks, pieces)
            return run.timings(inputs, outputs)

    @contextmanager
    def _releasing(self) -> Iterator[ExitStack]:
        """Hold resources; release them at the end, but never while the stream may use them."""
        held = ExitStack()
        try:
            yield held
        except AclProblem as problem:
            if problem.ends_worker:
                held.pop_all()
                raise
            self._settle(held)
            raise
        except BaseException:
            self._settle(held)
            raise
        held.close()

    def _settle(self, held: ExitStack) -> None:
        try:
            self.synchronize("release")
        except AclProblem:
            held.pop_all()
            raise
        held.close()

    def _lease(self, held: ExitStack, pool: Pool, size_bytes: int) -> Block:
        block = pool.lease(size_bytes)
        held.callback(pool.release, block)
        return block


class _Run:
    """One request while it is on the device."""

    def __init__(
        self,
        launcher: Launcher,
        binding: Binding,
        call: Call,
        specs: Mapping[str, TensorSpec],
        blocks: Mapping[str, Block],
        pieces: list[Block],
    ) -> None:
        self._launcher = launcher
        self._library = launcher._library
        self._stager = launcher._stager
        self._stream = launcher._stream
        self._binding = binding
        self._call = call
        self._specs = specs
        self._blocks = blocks
        self._pieces = pieces

    def timings(self, inputs: Arrays, outputs: Arrays) -> Timings:
        copied_ns = _timed(lambda: self._copy_in(inputs))
        stage_one_ns, kernel_ns = self._repeat(outputs, POISONS[0], self._call.options.repeat)
        back_ns = _timed(lambda: self._copy_out(outputs))
        self._check_written(outputs)
        return Timings(
            host_to_device_ns=copied_ns,
            stage_one_ns=stage_one_ns,
            kernel_ns=kernel_ns,
            device_to_host_ns=back_ns,
        )

    def _copy_in(self, inputs: Arrays) -> None:
        for name, array in inputs.items():
            spec = self._specs[name]
            # the storage begins before the view's first element
            start = array.ctypes.data - spec.storage_offset * spec.dtype.itemsize
            self._stager.to_device(self._pieces, self._blocks[name].address, start, spec.data_bytes)
            self._launcher.synchronize("copy_in")

    def _copy_out(self, outputs: Arrays) -> None:
        for name, array in outputs.items():
            address = self._blocks[name].address
            self._stager.to_host(self._pieces, array.ctypes.data, address, array.nbytes)

    def _repeat(self, outputs: Arrays, poison: int, count: int) -> tuple[int, tuple[int, ...]]:
        """Fill the outputs with a poison and run; return the times of stage one and kernels."""
        for name, array in outputs.items():
            block = self._blocks[name]
            self._library.call(
                "aclrtMemsetAsync",
                *(block.address, block.capacity_bytes, poison, array.nbytes, self._stream),
                stage="copy_in",
            )
        times = [self._two_stages() for _ in range(count)]
        return times[0][0], tuple(kernel_ns for _, kernel_ns in times)

    def _two_stages(self) -> tuple[int, int]:
        """Run once; return the time of the first stage and of the kernel, in nanoseconds."""
        first, second = self._binding.stages
        checked = self._call.options.check
        with self._launcher._releasing() as held:
            tensors = {name: self._tensor(held, name) for name in self._specs}
            size, executor = c_uint64(), c_void_p()
            arguments = [
                *(
                    self._argument(item.kind, item.name, tensors)
                    for item in self._binding.arguments
                ),
                *(ctypes.byref(size), ctypes.byref(executor)),
            ]
            before, after = self._event(held), self._event(held)
            started = perf_counter_ns()
            self._library.call(first.name, *arguments, stage="stage_one", checked=checked)
            stage_one_ns = perf_counter_ns() - started
            workspace = self._workspace(held, size.value, executor)
            self._library.call("aclrtRecordEvent", before, self._stream, stage="stage_two")
            self._library.call(
                second.name,
                *(workspace, size.value, executor, self._stream),
                stage="stage_two",
                checked=checked,
            )
            self._library.call("aclrtRecordEvent", after, self._stream, stage="stage_two")
            self._launcher.synchronize("synchronize")
            elapsed_ms = c_float()
            self._library.call(
                "aclrtEventElapsedTime",
                *(ctypes.byref(elapsed_ms), before, after),
                stage="synchronize",
            )
        return stage_one_ns, round(elapsed_ms.value * 1e6)

    def _workspace(self, held: ExitStack, size_bytes: int, executor: c_void_p) -> int | None:
        """Return the workspace's address; None, as the call wants it, if none is needed."""
        if size_bytes == 0:
            return None
        try:
            return self._launcher._lease(held, self._launcher._device, size_bytes).address
        except Problem:
            # stage two would have freed the executor
            self._library.call("aclSetAclOpExecutorRepeatable", executor, stage="release")
            self._library.call("aclDestroyAclOpExecutor", executor, stage="release")
            raise

    def _tensor(self, held: ExitStack, name: str) -> int:
        spec = self._specs[name]
        storage = spec.shape if spec.storage_shape is None else spec.storage_shape
        handle: int | None = self._library.value(
            "aclCreateTensor",
            _int64s(spec.shape),
            len(spec.shape),
            DATA_TYPES[spec.dtype],
            _int64s(spec.full_strides),
            spec.storage_offset,
            VALUES["ACL_FORMAT_ND"],
            _int64s(storage),
            len(storage),
            self._blocks[name].address,
        )
        if not handle:
            said = f"aclCreateTensor returned null for {name}"
            raise Problem(Reason.OPERATOR_FAILED, said, argument=name, stage="stage_one")
        held.callback(self._library.call, "aclDestroyTensor", handle, stage="release")
        return handle

    def _event(self, held: ExitStack) -> c_void_p:
        event = c_void_p()
        flag = VALUES["ACL_EVENT_TIME_LINE"]
        self._library.call(
            "aclrtCreateEventExWithFlag", ctypes.byref(event), flag, stage="stage_two"
        )
        held.callback(self._library.call, "aclrtDestroyEvent", event, stage="release")
        return event

    def _argument(self, kind: str, name: str, tensors: Mapping[str, int]) -> Any:
        if kind in ("input", "output"):
            return tensors.get(name)
        value = getattr(self._call.attributes, name)
        return value.encode() if kind == "string" else value

    def _check_written(self, outputs: Arrays) -> None:
        """Refuse outputs with elements that the operator did not write."""
        suspects = {name: _untouched(array, POISONS[0]) for name, array in outputs.items()}
        if not any(mask.any() for mask in suspects.values()):
            return
        again = {name: np.empty_like(array) for name, array in outputs.items()}
        self._repeat(again, POISONS[1], 1)
        self._copy_out(again)
        for name, mask in suspects.items():
            missed = mask & _untouched(again[name], POISONS[1])
            if missed.any():
                first = [int(axis[0]) for axis in np.nonzero(missed)]
                raise Problem(
                    Reason.OPERATOR_FAILED,
                    f"{name}: {int(missed.sum())} of {missed.size} elements were not written by "
                    f"the operator, the first at {first}",
                    argument=name,
                    stage="copy_out",
                    soc=self._library.soc_name,
                )


def _dtype(array: NDArray[Any]) -> DType:
    return DType.of(array.dtype, "an output")


def _int64s(numbers: tuple[int, ...]) -> Any:
    return (c_int64 * len(numbers))(*numbers)


def _timed(work: Callable[[], None]) -> int:
    started = perf_counter_ns()
    work()
    return perf_counter_ns() - started


def _untouched(array: NDArray[Any], poison: int) -> NDArray[np.bool_]:
    """Return where an array still holds the poison."""
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    pattern = np.frombuffer(bytes([poison]) * array.dtype.itemsize, unsigned)[0]
    found: NDArray[np.bool_] = array.view(unsigned) == pattern
    return found
