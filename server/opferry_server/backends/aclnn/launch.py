"""One request on one stream: copy in, two stages, copy out, and everything released on each path.

Memory lives until the stream was synchronised. After a fault nothing is released: free and destroy
may block for ever, and the process is about to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.execution import Timings
from opferry.core.tensors import TensorSpec
from opferry.operators.call import Call
from opferry_server.backends.aclnn.in_place import Overwritten, overwritten_of, storage_of
from opferry_server.backends.aclnn.library import Library
from opferry_server.backends.aclnn.memory import Block, Pool
from opferry_server.backends.aclnn.operators import Binding
from opferry_server.backends.aclnn.outputs import (
    POISONS,
    Arrays,
    OutputMemory,
    not_written,
    untouched,
)
from opferry_server.backends.aclnn.staging import PIECE_BYTES, Stager
from opferry_server.backends.aclnn.status import AclProblem
from opferry_server.backends.aclnn.two_stages import TwoStages
from opferry_server.backends.base import BackendSettings


class Launcher:
    """Runs calls on one stream, on the thread whose context it belongs to."""

    def __init__(
        self, library: Library, stream: int, device: Pool, pinned: Pool, settings: BackendSettings
    ) -> None:
        """Launch on *stream*.

        Args:
            library: the bound functions.
            stream: the stream's handle; nobody else uses it.
            device: the pool of device memory, for tensors and workspaces.
            pinned: the pool of pinned memory, for copies.
            settings: timeouts and hygiene.
        """
        self.library = library
        self.stream = stream
        self._device = device
        self._pinned = pinned
        self._sync_timeout_ms = settings.sync_timeout_ms
        self.hygiene = settings.hygiene
        self.stager = Stager(library, stream, self.synchronize)

    def synchronize(self, stage: str) -> None:
        """Wait until everything on the stream is done.

        Raises:
            AclProblem: whatever went wrong on the device since the last time, or a timeout.
        """
        function = "aclrtSynchronizeStreamWithTimeout"
        self.library.call(function, self.stream, self._sync_timeout_ms, stage=stage)

    def run(self, binding: Binding, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        """Run an operator, first to warm up, then `call.options.repeat` times; write its outputs.

        Raises:
            AclProblem: what CANN says against it.
            Problem: OPERATOR_FAILED for output elements that the operator did not write, or bytes
                outside of its outputs that it did.
        """
        produced = {name: TensorSpec(_dtype(array), array.shape) for name, array in outputs.items()}
        overwritten = overwritten_of(binding, call)
        with self.releasing() as held:
            pieces = [_lease(held, self._pinned, PIECE_BYTES) for _ in range(2)]
            addresses = {
                name: self.lease(held, spec.data_bytes, call.client).address
                for name, spec in call.inputs.items()
                if name not in binding.in_place.values()
            }
            memory = OutputMemory(
                self.library,
                self.stream,
                {
                    name: overwritten[name].spec.data_bytes if name in overwritten else array.nbytes
                    for name, array in outputs.items()
                },
                lambda size_bytes: self.lease(held, size_bytes, call.client),
                guarded=self.hygiene,
            )
            addresses |= memory.addresses
            addresses |= {item.name: addresses[item.output] for item in overwritten.values()}
            specs = _specs(binding, call, produced)
            stages = TwoStages(self, binding, call, specs, addresses)
            return _Run(self, call, stages, memory, pieces, overwritten).timings(inputs, outputs)

    def plan(self, binding: Binding, call: Call) -> int:
        """Run the first stage alone and return the workspace that it asks for, in bytes.

        Raises:
            AclProblem: what CANN says against it.
        """
        specs = _specs(binding, call, call.operator.infer_specs(call.inputs))
        with self.releasing() as held:
            # stage one looks at no data: one small block stands for every tensor
            address = self.lease(held, 1).address
            stages = TwoStages(self, binding, call, specs, dict.fromkeys(specs, address))
            return stages.workspace_bytes()

    @contextmanager
    def releasing(self) -> Iterator[ExitStack]:
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

    def lease(self, held: ExitStack, size_bytes: int, client: str = "") -> Block:
        """Return a block of device memory of at least *size_bytes* until *held* is released."""
        return _lease(held, self._device, size_bytes, client)


def _lease(held: ExitStack, pool: Pool, size_bytes: int, client: str = "") -> Block:
    block = pool.lease(size_bytes, client)
    held.callback(pool.release, block)
    return block


class _Run:
    """One request while it is on the device."""

    def __init__(
        self,
        launcher: Launcher,
        call: Call,
        stages: TwoStages,
        memory: OutputMemory,
        pieces: list[Block],
        overwritten: Mapping[str, Overwritten],
    ) -> None:
        self._launcher = launcher
        self._call = call
        self._stages = stages
        self._memory = memory
        self._pieces = pieces
        self._overwritten = overwritten

    def timings(self, inputs: Arrays, outputs: Arrays) -> Timings:
        options = self._call.options
        poisoned = options.poison_outputs or self._launcher.hygiene
        copied_ns = _timed(lambda: self._copy_in(inputs))
        if poisoned:
            self._memory.fill(POISONS[0])
        else:
            self._memory.clear_from_others(self._call.client)
        copied_ns += _timed(lambda: self._restore(inputs))
        times = [self._stages.run()]
        for _ in range(1, options.warmup + options.repeat):
            self._restore(inputs)
            times.append(self._stages.run())
        back_ns = _timed(lambda: self._copy_out(inputs, outputs))
        if poisoned:
            self._memory.check_guards(POISONS[0], self._copy_back)
            self._check_written(inputs, outputs)
        timed = times[options.warmup :]
        return Timings(
            host_to_device_ns=copied_ns,
            stage_one_ns=timed[0][0],
            kernel_ns=tuple(kernel_ns for _, kernel_ns in timed),
            device_to_host_ns=back_ns,
        )

    def _copy_in(self, inputs: Arrays) -> None:
        names = {item.name for item in self._overwritten.values()}
        for name, array in inputs.items():
            if name not in names:
                self._to_device(name, storage_of(array, self._call.inputs[name]))

    def _restore(self, inputs: Arrays) -> None:
        """Bring what the operator overwrites to the device, once more before each run."""
        for item in self._overwritten.values():
            self._to_device(item.name, item.storage(inputs[item.name]))

    def _to_device(self, name: str, storage: NDArray[np.uint8]) -> None:
        target = self._stages.addresses[name]
        self._launcher.stager.to_device(self._pieces, target, storage.ctypes.data, storage.nbytes)
        self._launcher.synchronize("copy_in")

    def _copy_out(self, inputs: Arrays, outputs: Arrays) -> None:
        for name, array in outputs.items():
            address, item = self._stages.addresses[name], self._overwritten.get(name)
            if item is None:
                self._copy_back(array, address)
                continue
            storage = item.take(array, address, self._copy_back)
            if storage is not None and self._launcher.hygiene:
                item.check_gaps(array, inputs[item.name], storage, self._launcher.library.soc_name)

    def _copy_back(self, array: NDArray[Any], address: int) -> None:
        self._launcher.stager.to_host(self._pieces, array.ctypes.data, address, array.nbytes)

    def _check_written(self, inputs: Arrays, outputs: Arrays) -> None:
        """Refuse outputs with elements that the operator did not write.

        What is overwritten has no pattern in it: an element that is not written is as it was.
        """
        filled = {name: outputs[name] for name in outputs if name not in self._overwritten}
        suspects = untouched(filled, POISONS[0])
        if not any(mask.any() for mask in suspects.values()):
            return
        again = {name: np.empty_like(array) for name, array in filled.items()}
        self._memory.fill(POISONS[1])
        self._restore(inputs)
        self._stages.run()
        self._copy_out(inputs, again)
        for name, mask in untouched(again, POISONS[1]).items():
            missed = mask & suspects[name]
            if missed.any():
                raise not_written(name, missed, self._launcher.library.soc_name)


def _specs(
    binding: Binding, call: Call, outputs: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Return the tensors among the arguments of a call, as they lie on the device."""
    on_device = {item.name: item.spec for item in overwritten_of(binding, call).values()}
    known = {**outputs, **call.inputs, **on_device}
    names = [item.name for item in binding.arguments if item.is_tensor]
    return {name: known[name] for name in names if name in known}


def _dtype(array: NDArray[Any]) -> DType:
    return DType.of(array.dtype, "an output")


def _timed(work: Callable[[], None]) -> int:
    started = perf_counter_ns()
    work()
    return perf_counter_ns() - started
