"""The PyTorch path: operators through torch_npu and the wrappers of cann_ops_transformer.

The packages are imported by the constructor, so only in a worker, after everything is set that they
read from the environment. Streams and device memory are torch's own.

What this path cannot do: the wrapper allocates the outputs itself, so they cannot be filled with a
poison beforehand, and an element that the operator did not write is not found out. In the
deterministic mode, which is on, torch fills memory that it hands out with NaN; where torch_npu
keeps to that, such an element is NaN, elsewhere it is whatever the device's memory held.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter_ns
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.execution import OperatorPackage, Timings
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators import OPERATORS
from opferry.operators.call import Call
from opferry_server.backends.ascend import (
    CUSTOM_PACKAGES,
    check_soc,
    hold_device,
    is_real,
    visible_device,
)
from opferry_server.backends.base import (
    Backend,
    BackendError,
    BackendInfo,
    BackendSettings,
    DeviceProblem,
)
from opferry_server.backends.torch_functions import FUNCTIONS, Function
from opferry_server.backends.torch_packages import (
    PACKAGES,
    custom_package,
    function_of,
    imported,
    mapped_files,
    set_environment,
    version_of,
)
from opferry_server.backends.torch_problems import problem_of_refusal, problem_of_text
from opferry_server.packages import file_digest

DEVICE = "npu:0"
"""The only device that the process sees."""

Arrays = Mapping[str, NDArray[Any]]


class TorchNpuBackend(Backend):
    """Runs operators through torch_npu, one request at a time.

    With more, every thread would need a stream of its own, the memory that torch keeps for one
    stream would not serve the others, and the times between events would hold others' work too.
    """

    # Whole tensors are copied to the outputs. What the operator itself left out of them, clearing
    # the outputs first would not show.
    writes_every_output: ClassVar[bool] = True

    def __init__(self, settings: BackendSettings) -> None:
        """Import the packages and take hold of the device.

        Raises:
            BackendError: a package, CANN's libraries or the custom package is missing.
            UnsupportedDeviceError: the device is none that has the operators.
            Problem: the runtime refused.
        """
        super().__init__(settings)
        self._custom = custom_package(settings)
        self._custom_ran = False
        self._soc = ""
        self._fault: RuntimeError | None = None
        self._number = visible_device(settings.device)
        hold_device(settings.lock_folder, self._number)
        set_environment(settings, self._number)
        packages = {name: imported(name) for name in PACKAGES}
        self._versions = {name: version_of(package) for name, package in packages.items()}
        self._torch = packages["torch"]
        ops = imported("cann_ops_transformer.ops")
        self._functions = self._found(ops)
        npu = self._torch.npu
        with self._translated("init", checked=True):
            npu.set_device(DEVICE)
            npu.set_op_timeout_ms(settings.operator_timeout_ms)
            self._soc = npu.get_device_name(0)
            self._stream = npu.current_stream()
        check_soc(self._soc, FUNCTIONS)
        self._torch.use_deterministic_algorithms(True)
        self._dtypes = {dtype: getattr(self._torch, dtype.value) for dtype in DType}

    def info(self) -> BackendInfo:
        """Say what this backend is."""
        packages = {}
        for name, function in self._functions.items():
            file = str(self._custom) if self._custom else self._wrapper_file(function)
            packages[name] = OperatorPackage(self.settings.package, file_digest(file), file)
        return BackendInfo(
            backend="torch-npu",
            device=f"npu:{self._number}",
            real_device=is_real(self._soc),
            soc_name=self._soc,
            # torch_npu adds it to torch's versions
            cann_version=getattr(self._torch.version, "cann", None) or "",
            operator_package=next(iter(packages.values())),
            own_packages=packages,
            # CANN itself looks into the environment's packages first
            may_be_wrong=tuple(self._functions) if os.environ.get(CUSTOM_PACKAGES) else (),
            operators=tuple(self._functions),
            versions=self._versions,
        )

    def execute(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        """Run an operator on torch's current stream."""
        function = FUNCTIONS.get(call.operator.name)
        if function is None or call.operator.name not in self._functions:
            raise Problem(
                Reason.OPERATOR_NOT_SUPPORTED,
                f"{call.operator.name} is not in operator package {self.settings.package}, or has "
                f"no function in cann_ops_transformer; there are {', '.join(self._functions)}",
                argument="operator_package",
                given=self.settings.package,
            )
        checked = call.options.check
        started = perf_counter_ns()
        with self._translated("copy_in", checked=checked):
            tensors = {name: self._to_device(inputs[name], call.inputs[name]) for name in inputs}
            self._stream.synchronize()
        copied_ns = perf_counter_ns() - started
        kernel_ns = []
        for _ in range(call.options.warmup + call.options.repeat):
            results, elapsed_ns = self._run(call, function, tensors)
            kernel_ns.append(elapsed_ns)
        self._check_custom()
        started = perf_counter_ns()
        with self._translated("copy_out", checked=checked):
            for name, result in zip(function.outputs, results, strict=True):
                if name in outputs:
                    self._to_host(name, result, outputs[name])
        return Timings(
            host_to_device_ns=copied_ns,
            kernel_ns=tuple(kernel_ns[call.options.warmup :]),
            device_to_host_ns=perf_counter_ns() - started,
        )

    def _found(self, ops: ModuleType) -> dict[str, Any]:
        """Return the functions that there are, of operators that the package to run names.

        Raises:
            BackendError: if there is none.
        """
        library = self._custom.read_bytes() if self._custom else None
        found, missing = {}, []
        for name, item in FUNCTIONS.items():
            symbol = OPERATORS[name].aclnn_name
            if library is not None and f"\0{symbol}\0".encode() not in library:
                missing.append(f"operator package {self.settings.package} has no {symbol}")
                continue
            try:
                found[name] = function_of(ops, item.name)
            except BackendError as err:
                missing.append(str(err))
        if not found:
            raise BackendError("; ".join(missing))
        return found

    def _run(
        self, call: Call, function: Function, tensors: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], int]:
        """Run once; return what the function returns, and the time between the events in ns."""
        event = self._torch.npu.Event
        required = [tensors.get(name) for name in function.positional]
        optional = {name: tensors.get(name) for name in function.optional}
        attributes = {
            name: function.word(name, getattr(call.attributes, name))
            for name in function.attributes
        }
        with self._translated("operator", checked=call.options.check):
            before, after = event(enable_timing=True), event(enable_timing=True)
            before.record()
            results = self._functions[call.operator.name](*required, **optional, **attributes)
            after.record()
        with self._translated("synchronize", checked=call.options.check):
            self._stream.synchronize()
            return results, round(before.elapsed_time(after) * 1e6)

    def _to_device(self, array: NDArray[Any], spec: TensorSpec) -> Any:
        """Return a view with the spec's strides over a copy of its storage on the device."""
        # the storage begins before the view's first element
        start = _address(array) - spec.storage_offset * spec.dtype.itemsize
        storage = self._host_tensor(start, spec.storage_count, spec.dtype).to(DEVICE)
        return self._torch.as_strided(storage, spec.shape, spec.full_strides, spec.storage_offset)

    def _to_host(self, name: str, result: Any, array: NDArray[Any]) -> None:
        dtype = DType.of(array.dtype, name)
        given = "nothing" if result is None else f"{result.dtype} {list(result.shape)}"
        if given != f"{self._dtypes[dtype]} {list(array.shape)}":
            # a copy would convert and broadcast without a word
            raise Problem(
                Reason.OPERATOR_FAILED,
                f"{name}: the operator returned {given}, not {dtype.value} {list(array.shape)}",
                argument=name,
                stage="copy_out",
                soc=self._soc,
            )
        target = self._host_tensor(_address(array), array.size, dtype)
        target.reshape(array.shape).copy_(result)

    def _host_tensor(self, start: int, count: int, dtype: DType) -> Any:
        """Return a flat tensor over memory of this process that outlives it, bit for bit."""
        raw = np.asarray(_Memory(start, count, f"<i{dtype.itemsize}"))
        return self._torch.from_numpy(raw).view(self._dtypes[dtype])

    def _wrapper_file(self, function: Any) -> str:
        """Return the file of an operator's wrapper: its extension, else its module."""
        names = [other.__name__ for other in self._functions.values()]
        for path in mapped_files():
            # the name of one operator may begin with another's
            begun = [name for name in names if path.name.startswith(name)]
            if ".so" in path.suffixes and max(begun, key=len, default="") == function.__name__:
                return str(path)
        return str(sys.modules[function.__module__].__file__)

    def _check_custom(self) -> None:
        """Refuse results that cannot be the custom package's."""
        if self._custom is None or self._custom_ran:
            return
        self._custom_ran = self._custom in mapped_files()
        if not self._custom_ran:
            raise Problem(
                Reason.OPERATOR_FAILED,
                f"the operator ran without {self._custom} being loaded, so it was not the package "
                f"{self.settings.package} that ran",
                stage="operator",
                soc=self._soc,
            )

    @contextmanager
    def _translated(self, stage: str, *, checked: bool) -> Iterator[None]:
        """Turn what the packages raise into problems."""
        try:
            yield
        except RuntimeError as err:
            problem = problem_of_text(str(err), stage, checked=checked, soc=self._soc)
            if isinstance(problem, DeviceProblem) and problem.ends_worker:
                # keeps the frames, and with them events and tensors: destroying these after a fault
                # may block for ever, before the problem is reported
                self._fault = err
            raise problem from err
        except (TypeError, ValueError) as err:
            if stage != "operator":
                raise
            raise problem_of_refusal(str(err), checked=checked, soc=self._soc) from err


class _Memory:
    """Memory of this process as numpy understands it."""

    def __init__(self, start: int, count: int, kind: str) -> None:
        # said to be writable, since torch knows no other tensors; inputs are only read all the same
        self.__array_interface__ = {
            "data": (start, False),
            "shape": (count,),
            "typestr": kind,
            "version": 3,
        }


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
