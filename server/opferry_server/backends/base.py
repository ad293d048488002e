"""What a backend is: a few hooks; queueing, memory, digests and replies are the worker's affair."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from numpy.typing import NDArray

from opferry.core.execution import OperatorPackage, Timings
from opferry.core.problems import Problem
from opferry.operators import OPERATORS
from opferry.operators.call import Call

BUILT_IN = {
    "cpu": "opferry_server.backends.cpu:CpuBackend",
    "aclnn": "opferry_server.backends.aclnn.backend:AclnnBackend",
    "torch-npu": "opferry_server.backends.torch_npu:TorchNpuBackend",
}
"""The backends by name; any other value of the backend option is an import path."""


class BackendError(Exception):
    """A backend cannot be opened, for a reason that its user can mend; the text says which."""


def _setting(default: Any, help: str) -> Any:  # noqa: A002 - what it becomes
    """Return a field with a sentence that help texts show too."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class BackendSettings:
    """What a backend is told when it is opened. A backend takes from it what it has a use for."""

    device: int = 0
    """The device's number on this host; each worker has its own."""
    package: str = "built-in"
    """The name of the operator package that is run; each worker runs one."""
    package_folder: str = ""
    """The package's folder, with op_api/lib in it; empty for the vendor's own."""
    reference_kernel: str = "auto"
    """Which implementation of the reference runs: "auto", the fastest, or "numpy-blocked"."""
    judge: bool = False
    """Whether the worker is a judge, which makes inputs too."""
    thread_count: int = 1
    """How many threads the reference may use."""
    operator_timeout_ms: int = _setting(300_000, "How long one operator may run on the device.")
    sync_timeout_ms: int = _setting(
        400_000, "How long the host waits for the device: longer than an operator may run."
    )
    device_memory_bytes: int = _setting(
        32 * 2**30, "The most device memory, for tensors and workspaces."
    )
    lock_folder: str = _setting(
        "/tmp",  # noqa: S108 - shared by all users is what it must be
        "Where each device in use has its lock file, so that no two servers take one; empty: none.",
    )
    hygiene: bool = _setting(
        False, "Put guard bands around outputs and a pattern into workspaces, and check them."
    )
    pinned_memory_bytes: int = _setting(2**30, "The most pinned host memory, for copies.")


@dataclass(frozen=True)
class BackendInfo:
    """What a backend says of itself once it is open."""

    backend: str
    """Its name, for example "cpu"."""
    device: str
    """The device that it holds, for example "cpu:0"."""
    real_device: bool = False
    """Whether that is a real accelerator."""
    soc_name: str = ""
    """The system on chip as the runtime names it."""
    cann_version: str = ""
    """The version of CANN."""
    operator_package: OperatorPackage = field(default_factory=OperatorPackage)
    """The operator package that it runs."""
    operators: tuple[str, ...] = tuple(OPERATORS)
    """The operators that it can run, by their CANN names."""
    own_packages: Mapping[str, OperatorPackage] = field(default_factory=dict)
    """By operator, the package with that operator's own library file and known answer, where those
    may be others than operator_package's."""
    may_be_wrong: tuple[str, ...] = ()
    """Operators whose wrong known answer does not keep it from getting ready: builds that somebody
    wants to test, not the vendor's own."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By operator that it has and cannot run, what the device said to its known-answer case."""
    reference_kernel: str = ""
    """Which implementation of the reference it runs; why not the fastest, if so, in brackets."""
    plans: bool = False
    """Whether it has a first stage that can be asked alone."""
    concurrency: int = 1
    """How many requests it takes at a time."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of what it is made of."""

    def package_of(self, operator: str) -> OperatorPackage:
        """Return the package of an operator, with the file that has it and its known answer."""
        return self.own_packages.get(operator, self.operator_package)


class DeviceProblem(Problem):
    """A problem that says something of the worker, too."""

    ends_worker = False
    """Whether the process can do no more work. It then reports the problem and ends at once,
    without cleaning up, and is replaced."""
    probes_device = False
    """Whether nobody knows how the device is: the worker is replaced, and its successor finds out
    by the known-answer case."""
    device_broken = False
    """Whether the device is damaged, so that no probe is to return it."""


class Backend(ABC):
    """Runs operators on one device. Constructed in the worker process.

    A constructor that raises, keeps the worker from getting ready; its text reaches the operator of
    the server.
    """

    writes_every_output: ClassVar[bool] = False
    """Whether a successful run writes each element of each output. If not, the worker clears the
    outputs first, so that no earlier request's data can show."""

    def __init__(self, settings: BackendSettings) -> None:
        """Take hold of the device that *settings* name."""
        self.settings = settings

    @abstractmethod
    def info(self) -> BackendInfo:
        """Say what this backend is."""

    @abstractmethod
    def execute(
        self, call: Call, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
    ) -> Timings:
        """Run an operator `warmup` times, then `repeat` times, and write the last run's outputs.

        Args:
            call: operator, attributes, specs and options; whether it is exclusive is not the
                backend's affair. The contract may be unchecked: then the backend finds out.
            inputs: by name, read-only, with the strides of their specs.
            outputs: by name, contiguous, to be written.

        Returns:
            The stages that the backend has; queue, upload and download are not its.

        Raises:
            Problem: what the device or the contract says against it.
        """

    def plan(self, call: Call) -> int:
        """Return the device workspace that a call would take, in bytes; for one that `plans`.

        Raises:
            Problem: what the device says against the call.
        """
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release the device. Called once, when nothing runs; never after a fault."""


def open_backend(which: str, settings: BackendSettings) -> Backend:
    """Return the backend of a name in `BUILT_IN`, or of an import path "package.module:Class".

    Raises:
        BackendError: if there is no such backend; the text names the known ones.
    """
    path = BUILT_IN.get(which, which)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        known = ", ".join(BUILT_IN)
        raise BackendError(f"backend {which!r} is unknown; known are {known}, or give module:Class")
    try:
        backend_class = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as err:
        raise BackendError(f"backend {which!r} cannot be imported: {err}") from err
    if not (isinstance(backend_class, type) and issubclass(backend_class, Backend)):
        raise BackendError(f"backend {which!r} is not a subclass of {Backend.__qualname__}")
    return backend_class(settings)
