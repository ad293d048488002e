"""The two stages of one call: tensors, executor, workspace, events.

The rules of the two stages bind the order here: an executor is used once; tensors, their memory and
the workspace live until the stream was synchronised; a workspace of size 0 is a null pointer; the
calling thread has the context set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import ExitStack
from ctypes import c_float, c_int64, c_uint64, c_void_p
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators.call import Call
from opferry_server.backends.aclnn.operators import Argument, Binding
from opferry_server.backends.aclnn.outputs import POISONS
from opferry_server.backends.aclnn.status import AclProblem
from opferry_server.backends.aclnn.symbols import VALUES

if TYPE_CHECKING:
    from opferry_server.backends.aclnn.launch import Launcher

DATA_TYPES = {
    DType.FLOAT32: VALUES["ACL_FLOAT"],
    DType.FLOAT16: VALUES["ACL_FLOAT16"],
    DType.BFLOAT16: VALUES["ACL_BF16"],
}
"""aclDataType by dtype."""


class TwoStages:
    """One call, whose tensors are on the device."""

    def __init__(
        self,
        launcher: Launcher,
        binding: Binding,
        call: Call,
        specs: Mapping[str, TensorSpec],
        addresses: Mapping[str, int],
    ) -> None:
        """Describe a call.

        Args:
            launcher: the stream, its functions and its memory.
            binding: the operator's C functions.
            call: attributes and options.
            specs: the tensors among the arguments, by name.
            addresses: where the storage of each begins on the device.
        """
        self.addresses = addresses
        """Where the storage of each tensor begins on the device."""
        self._launcher = launcher
        self._library = launcher.library
        self._stream = launcher.stream
        self._binding = binding
        self._call = call
        self._specs = specs

    def workspace_bytes(self) -> int:
        """Run the first stage alone; return the size of the workspace that it asks for."""
        with self._launcher.releasing() as held:
            size, executor, _ = self._stage_one(held)
            self._discard(executor)
        return size

    def run(self) -> tuple[int, int]:
        """Run once; return the time of the first stage and of the kernel, in nanoseconds."""
        second = self._binding.stages[1]
        with self._launcher.releasing() as held:
            before, after = self._event(held), self._event(held)
            size, executor, stage_one_ns = self._stage_one(held)
            try:
                workspace = self._workspace(held, size)
                self._library.call("aclrtRecordEvent", before, self._stream, stage="stage_two")
            except Problem as problem:
                if not (isinstance(problem, AclProblem) and problem.ends_worker):
                    self._discard(executor)
                raise
            self._library.call(
                second.name,
                *(workspace, size, executor, self._stream),
                stage="stage_two",
                checked=self._call.options.check,
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

    def _stage_one(self, held: ExitStack) -> tuple[int, c_void_p, int]:
        """Return the workspace's size in bytes, the executor, and the time it took in ns."""
        tensors = {name: self._tensor(held, name) for name in self._specs}
        size, executor = c_uint64(), c_void_p()
        arguments = [
            *(self._argument(item, tensors) for item in self._binding.arguments),
            *(ctypes.byref(size), ctypes.byref(executor)),
        ]
        started = perf_counter_ns()
        self._library.call(
            self._binding.stages[0].name,
            *arguments,
            stage="stage_one",
            checked=self._call.options.check,
        )
        return size.value, executor, perf_counter_ns() - started

    def _discard(self, executor: c_void_p) -> None:
        """Destroy an executor that stage two, which would have freed it, will not see."""
        self._library.call("aclSetAclOpExecutorRepeatable", executor, stage="release")
        self._library.call("aclDestroyAclOpExecutor", executor, stage="release")

    def _workspace(self, held: ExitStack, size_bytes: int) -> int | None:
        """Return the workspace's address; None, as the call wants it, if none is needed."""
        if size_bytes == 0:
            return None
        launcher = self._launcher
        block = launcher.lease(held, size_bytes, self._call.client)
        if launcher.hygiene:
            # what an operator finds there is nobody's promise
            self._library.call(
                "aclrtMemsetAsync",
                *(block.address, block.capacity_bytes, POISONS[0], size_bytes, self._stream),
                stage="stage_two",
            )
        return block.address

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
            self.addresses[name],
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

    def _argument(self, item: Argument, tensors: Mapping[str, int]) -> Any:
        if item.is_tensor:
            return tensors.get(item.name)
        value = getattr(self._call.attributes, item.name)
        return value.encode() if item.kind == "string" else value


def _int64s(numbers: tuple[int, ...]) -> Any:
    return (c_int64 * len(numbers))(*numbers)
