"""Calls the simulator's operators straight through ctypes, with no backend between.

Only what the simulator's own tests need. State is the process's: use it in one of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec


class Signature(NamedTuple):
    """An operator's first stage."""

    function: str
    """The second stage's name."""
    inputs: tuple[str, ...]
    """The inputs in their order."""
    outputs: Mapping[str, str]
    """The input that each output is shaped like."""
    in_place: bool
    """Whether the outputs lie where those inputs were."""
    layout_first: bool
    """Whether the layout comes before the mode."""
    requires: Mapping[str, str] = {}
    """The optional input without which an output is not computed."""


SIGNATURES = {
    "ApplyRotaryPosEmbGrad": Signature(
        "aclnnApplyRotaryPosEmbGrad",
        ("grad_query_embed", "grad_key_embed", "cos", "sin", "query", "key"),
        {
            "grad_query": "grad_query_embed",
            "grad_key": "grad_key_embed",
            "grad_cos": "cos",
            "grad_sin": "sin",
        },
        in_place=False,
        layout_first=False,
        requires={"grad_cos": "query", "grad_sin": "query"},
    ),
    "ApplyRotaryPosEmb": Signature(
        "aclnnApplyRotaryPosEmbV2",
        ("query", "key", "cos", "sin"),
        {"query_out": "query", "key_out": "key"},
        in_place=True,
        layout_first=True,
    ),
}
ACL_TYPES = {DType.FLOAT32: 0, DType.FLOAT16: 1, DType.BFLOAT16: 27}
TO_DEVICE, TO_HOST = 1, 2
FORMAT_ND = 2


class CallError(Exception):
    """A call returned a status; the first argument is that status, the second its text."""


class Direct:
    """The libraries of a build, initialised, with device 0 for this thread."""

    def __init__(self, build: Path, operator_library: Path | None = None) -> None:
        """Load the libraries by their paths, the runtime for all to see."""
        library = operator_library or build / "libopapi_transformer.so"
        self.acl = ctypes.CDLL(str(build / "libascendcl.so"), mode=ctypes.RTLD_GLOBAL)
        self.meta = ctypes.CDLL(str(build / "libnnopbase.so"), mode=ctypes.RTLD_GLOBAL)
        self.operator = ctypes.CDLL(str(library))
        self._declare()
        self.check(self.acl.aclInit(None))
        self.check(self.acl.aclrtSetDevice(0))

    def close(self) -> int:
        """Give the device back and return how many rules were broken."""
        self.check(self.acl.aclrtResetDevice(0))
        self.check(self.acl.aclFinalize())
        return int(self.acl.opferrySimCounter(b"violations"))

    def check(self, status: int) -> None:
        """Raise CallError for a status that is not 0."""
        if status:
            raise CallError(status, (self.acl.aclGetRecentErrMsg() or b"").decode())

    def plan(
        self, operator: str, specs: Mapping[str, TensorSpec], layout: int, mode: str = "half"
    ) -> int:
        """Run stage one only, on tensors without memory; return the workspace's size in bytes."""
        wanted = self._with_outputs(SIGNATURES[operator], specs)
        tensors = {name: self._tensor(spec, None) for name, spec in wanted.items()}
        try:
            size, executor = self._stage_one(SIGNATURES[operator], tensors, layout, mode)
            self.check(self.meta.aclSetAclOpExecutorRepeatable(executor))
            self.check(self.meta.aclDestroyAclOpExecutor(executor))
        finally:
            for tensor in tensors.values():
                self.check(self.meta.aclDestroyTensor(tensor))
        return size

    def run(
        self,
        operator: str,
        specs: Mapping[str, TensorSpec],
        storages: Mapping[str, NDArray[Any]],
        layout: int,
        mode: str = "half",
    ) -> dict[str, NDArray[Any]]:
        """Run an operator on inputs given as specs and storages.

        Returns:
            The outputs by name; of an operator that overwrites its inputs their whole storages.
        """
        signature = SIGNATURES[operator]
        wanted = self._with_outputs(signature, specs)
        memory = {name: self._allocate(spec.data_bytes) for name, spec in wanted.items()}
        for name, storage in storages.items():
            data = np.ascontiguousarray(storage)
            self.check(
                self.acl.aclrtMemcpy(
                    memory[name], data.nbytes, data.ctypes.data, data.nbytes, TO_DEVICE
                )
            )
        tensors = {name: self._tensor(spec, memory[name]) for name, spec in wanted.items()}
        size, executor = self._stage_one(signature, tensors, layout, mode)
        memory["workspace"] = self._allocate(size)
        second = getattr(self.operator, signature.function)
        self.check(second(memory["workspace"], size, executor, None))
        self.check(self.acl.aclrtSynchronizeStream(None))
        results = {}
        for name, like in signature.outputs.items():
            place = like if signature.in_place else name
            if place not in wanted:
                continue
            spec = wanted[place]
            shape = (spec.storage_count,) if signature.in_place else spec.shape
            out = np.empty(shape, spec.dtype.numpy)
            self.check(
                self.acl.aclrtMemcpy(
                    out.ctypes.data, out.nbytes, memory[place], out.nbytes, TO_HOST
                )
            )
            results[name] = out
        for tensor in tensors.values():
            self.check(self.meta.aclDestroyTensor(tensor))
        for pointer in memory.values():
            self.check(self.acl.aclrtFree(pointer))
        return results

    def _with_outputs(
        self, signature: Signature, specs: Mapping[str, TensorSpec]
    ) -> dict[str, TensorSpec]:
        wanted = dict(specs)
        for name, like in () if signature.in_place else signature.outputs.items():
            if like in specs and signature.requires.get(name, like) in specs:
                wanted[name] = TensorSpec(specs[like].dtype, specs[like].shape)
        return wanted

    def _allocate(self, size: int) -> c_void_p:
        pointer = c_void_p()
        self.check(self.acl.aclrtMalloc(byref(pointer), size, 0))
        return pointer

    def _tensor(self, spec: TensorSpec, address: c_void_p | None) -> c_void_p:
        def numbers(values: tuple[int, ...]) -> Any:
            return (c_int64 * len(values))(*values)

        storage = spec.shape if spec.storage_shape is None else spec.storage_shape
        tensor = self.meta.aclCreateTensor(
            numbers(spec.shape), len(spec.shape), ACL_TYPES[spec.dtype],
            numbers(spec.full_strides), spec.storage_offset, FORMAT_ND,
            numbers(storage), len(storage), address,
        )  # fmt: skip
        if not tensor:
            raise CallError(-1, (self.acl.aclGetRecentErrMsg() or b"").decode())
        return c_void_p(tensor)

    def _stage_one(
        self, signature: Signature, tensors: Mapping[str, c_void_p], layout: int, mode: str
    ) -> tuple[int, c_void_p]:
        size, executor = c_uint64(), c_void_p()
        attributes = (layout, mode.encode()) if signature.layout_first else (mode.encode(), layout)
        outputs = () if signature.in_place else signature.outputs
        self.check(
            getattr(self.operator, f"{signature.function}GetWorkspaceSize")(
                *(tensors.get(name) for name in signature.inputs), *attributes,
                *(tensors.get(name) for name in outputs), byref(size), byref(executor),
            )
        )  # fmt: skip
        return size.value, executor

    def _declare(self) -> None:
        pointer, numbers = c_void_p, POINTER(c_int64)
        acl, meta, operator = self.acl, self.meta, self.operator
        signatures = [
            (acl.aclInit, c_int, [c_char_p]),
            (acl.aclFinalize, c_int, []),
            (acl.aclGetRecentErrMsg, c_char_p, []),
            (acl.aclrtSetDevice, c_int, [c_int32]),
            (acl.aclrtResetDevice, c_int, [c_int32]),
            (acl.aclrtMalloc, c_int, [POINTER(pointer), c_size_t, c_int]),
            (acl.aclrtFree, c_int, [pointer]),
            (acl.aclrtMemcpy, c_int, [pointer, c_size_t, pointer, c_size_t, c_int]),
            (acl.aclrtSynchronizeStream, c_int, [pointer]),
            (acl.opferrySimCounter, c_int64, [c_char_p]),
            (
                meta.aclCreateTensor,
                pointer,
                [numbers, c_uint64, c_int, numbers, c_int64, c_int, numbers, c_uint64, pointer],
            ),
            (meta.aclDestroyTensor, c_int, [pointer]),
            (meta.aclSetAclOpExecutorRepeatable, c_int, [pointer]),
            (meta.aclDestroyAclOpExecutor, c_int, [pointer]),
        ]  # fmt: skip
        for item in SIGNATURES.values():
            first = getattr(operator, f"{item.function}GetWorkspaceSize")
            second = getattr(operator, item.function)
            attributes = [c_char_p, c_int64][:: -1 if item.layout_first else 1]
            outputs = [] if item.in_place else [pointer] * len(item.outputs)
            ends = [POINTER(c_uint64), POINTER(pointer)]
            given = [pointer] * len(item.inputs)
            signatures.append((first, c_int, [*given, *attributes, *outputs, *ends]))
            signatures.append((second, c_int, [pointer, c_uint64, pointer, pointer]))
        for function, result, arguments in signatures:
            function.restype = result
            function.argtypes = arguments
