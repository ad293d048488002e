"""The backend: one device of this host, as many streams as it takes requests at a time."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from ctypes import c_int32, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from opferry.core.execution import OperatorPackage, Timings
from opferry.core.problems import Problem, Reason
from opferry.operators.call import Call
from opferry_server.backends.aclnn.launch import Launcher
from opferry_server.backends.aclnn.library import Library
from opferry_server.backends.aclnn.memory import device_pool, pinned_pool
from opferry_server.backends.aclnn.operators import BINDINGS, Binding
from opferry_server.backends.aclnn.room import check_room
from opferry_server.backends.aclnn.symbols import VALUES
from opferry_server.backends.ascend import (
    VISIBLE_DEVICES,
    UnsupportedDeviceError,
    check_soc,
    hold_device,
    is_real,
    visible_device,
)
from opferry_server.backends.base import Backend, BackendInfo, BackendSettings
from opferry_server.packages import file_digest

STREAM_COUNT = 4
"""How many requests overlap on a device."""


class AclnnBackend(Backend):
    """Runs operators through CANN's two-stage calls."""

    writes_every_output: ClassVar[bool] = True

    def __init__(self, settings: BackendSettings) -> None:
        """Take hold of the device.

        Raises:
            LibraryError: a library or a symbol is missing.
            UnsupportedDeviceError: the device is none that has the operators.
            AclProblem: the runtime refused.
        """
        super().__init__(settings)
        os.environ[VISIBLE_DEVICES] = self._number = visible_device(settings.device)
        hold_device(settings.lock_folder, self._number)
        folder = settings.package_folder
        library = Library(Path(folder) if folder else None)
        self._library = library
        code = library.status("aclInit", None)
        if code not in (0, VALUES["ACL_ERROR_REPEAT_INITIALIZE"]):
            library.check(code, "aclInit", "init")
        soc = library.soc_name
        check_soc(soc, BINDINGS)
        # the only one that this process sees
        library.call("aclrtSetDevice", 0, stage="init")
        self._context = c_void_p()
        library.call("aclrtCreateContext", ctypes.byref(self._context), 0, stage="init")
        option = VALUES["ACL_OPT_DETERMINISTIC"]
        library.call("aclrtCtxSetSysParamOpt", option, 1, stage="init")
        actual_us = c_uint64()
        wanted_us = settings.operator_timeout_ms * 1000
        library.call("aclrtSetOpExecuteTimeOutV2", wanted_us, ctypes.byref(actual_us), stage="init")
        self._operator_timeout_ms = actual_us.value / 1000
        if self._operator_timeout_ms >= settings.sync_timeout_ms:
            raise UnsupportedDeviceError(
                f"the runtime made the operator timeout {self._operator_timeout_ms:g} ms, not less "
                f"than the synchronisation's {settings.sync_timeout_ms} ms"
            )
        self._device = device_pool(library, settings.device_memory_bytes)
        self._pinned = pinned_pool(library, settings.pinned_memory_bytes)
        self._own = threading.local()
        self._launchers: list[Launcher] = []

    def info(self) -> BackendInfo:
        """Say what this backend is."""
        soc, bindings = self._library.soc_name, self._library.bindings
        files = {name: self._library.files[item.stages[0].name] for name, item in bindings.items()}
        packages = {
            name: OperatorPackage(self.settings.package, file_digest(file), file)
            for name, file in files.items()
        }
        return BackendInfo(
            backend="aclnn",
            device=f"npu:{self._number}",
            real_device=is_real(soc),
            soc_name=soc,
            cann_version=self._version(),
            operator_package=next(iter(packages.values())),
            own_packages=packages,
            may_be_wrong=tuple(
                name for name, item in bindings.items() if self._library.is_custom(item)
            ),
            concurrency=STREAM_COUNT,
            plans=True,
            operators=tuple(bindings),
            versions={"operator_timeout_ms": f"{self._operator_timeout_ms:g}"},
        )

    def memory_bytes(self) -> tuple[int, int]:
        """Return how much memory of the device is free, and how much it has.

        To be called on the thread that opened the backend.

        Raises:
            AclProblem: the runtime refused.
        """
        free, total = c_size_t(), c_size_t()
        pointers = (ctypes.byref(free), ctypes.byref(total))
        self._library.call("aclrtGetMemInfo", VALUES["ACL_HBM_MEM"], *pointers, stage="init")
        return free.value, total.value

    def execute(
        self, call: Call, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
    ) -> Timings:
        """Run an operator on this thread's stream."""
        binding, launcher = self._binding(call), self._launcher()
        check_room(self._library, self._device, binding, call, outputs)
        return launcher.run(binding, call, inputs, outputs)

    def plan(self, call: Call) -> int:
        """Ask the first stage for the workspace, in bytes."""
        return self._launcher().plan(self._binding(call), call)

    def close(self) -> None:
        """Give everything back to the runtime, in the order in which it wants it."""
        self._library.call("aclrtSetCurrentContext", self._context, stage="release")
        for launcher in self._launchers:
            self._library.call("aclrtDestroyStream", launcher.stream, stage="release")
        self._device.trim()
        self._pinned.trim()
        self._library.call("aclrtDestroyContext", self._context, stage="release")
        self._library.call("aclrtResetDevice", 0, stage="release")
        self._library.call("aclFinalize", stage="release")

    def _launcher(self) -> Launcher:
        """Return this thread's launcher; the context is per thread, and so is the stream."""
        found: Launcher | None = getattr(self._own, "launcher", None)
        if found is not None:
            return found
        self._library.call("aclrtSetCurrentContext", self._context, stage="init")
        stream = c_void_p()
        flags = VALUES["ACL_STREAM_FAST_LAUNCH"] | VALUES["ACL_STREAM_FAST_SYNC"]
        self._library.call(
            "aclrtCreateStreamWithConfig", ctypes.byref(stream), 0, flags, stage="init"
        )
        made = Launcher(
            self._library,
            stream.value or 0,
            self._device,
            self._pinned,
            self.settings,
        )
        self._own.launcher = made
        self._launchers.append(made)
        return made

    def _binding(self, call: Call) -> Binding:
        binding = self._library.bindings.get(call.operator.name)
        if binding is None:
            raise Problem(
                Reason.OPERATOR_NOT_SUPPORTED,
                f"{call.operator.name} is not in operator package {self.settings.package}, which "
                f"has {', '.join(self._library.bindings)}",
                argument="operator_package",
                given=self.settings.package,
            )
        return binding

    def _version(self) -> str:
        parts = (c_int32(), c_int32(), c_int32())
        pointers = [ctypes.byref(part) for part in parts]
        self._library.call("aclrtGetVersion", *pointers, stage="init")
        return ".".join(str(part.value) for part in parts)
