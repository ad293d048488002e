"""How an execution is asked for, what is reported of it, and what a server says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from opferry.core.limits import LimitsConfig


class Priority(str, Enum):
    """How urgent a request is."""

    INTERACTIVE = "interactive"
    """Somebody waits for it: it comes before what is batch."""
    BATCH = "batch"
    """One of many."""


@dataclass(frozen=True)
class ExecutionOptions:
    """How one execution is to be carried out."""

    check: bool = True
    """Whether the server checks the call against the operator's contract before running it."""
    repeat: int = 1
    """How often the operator runs on the same inputs; every run is timed."""
    warmup: int = 0
    """How often it runs before that, untimed."""
    exclusive: bool = False
    """Whether nothing else runs on the device meanwhile: for timing."""
    deterministic: bool = False
    """Whether every run must give the same bits."""
    poison_outputs: bool = True
    """Whether output memory is filled with a pattern first, by which elements that the operator
    does not write are found; only an exclusive request may do without."""
    output_digests: bool = False
    """Whether each output carries an XXH3 digest, which the client then checks."""
    priority: Priority | None = None
    """How urgent it is. None: interactive for a single call; batch for the calls of execute_many
    and for validations."""


@dataclass(frozen=True)
class Timings:
    """The time of one request by stage, in nanoseconds; 0 where the backend has no such stage."""

    queue_ns: int = 0
    """Waiting for memory and for a worker."""
    upload_ns: int = 0
    """Receiving the inputs."""
    host_to_device_ns: int = 0
    """Copying the inputs to the device."""
    stage_one_ns: int = 0
    """The operator's first stage."""
    kernel_ns: tuple[int, ...] = ()
    """The operator itself; one entry for each run."""
    device_to_host_ns: int = 0
    """Copying the outputs back."""
    download_ns: int = 0
    """Receiving the outputs, measured by the client; 0 for a unary call."""


@dataclass(frozen=True)
class OperatorPackage:
    """A set of operator binaries that a server can run."""

    name: str = "built-in"
    """The name by which a request chooses it."""
    digest: str = ""
    """The digest of the library; empty where there is none."""
    library_file: str = ""
    """The library that supplies the operator; empty where there is none."""
    known_answer: str = ""
    """"PASSED" or, for a custom package, "FAILED": what came of the known-answer case."""


@dataclass(frozen=True)
class Execution:
    """Where, by what and how fast a request was executed."""

    request_id: str = ""
    """The server's id of the request; quote it when reporting a problem."""
    worker: str = ""
    """The worker process, for example "worker-0"."""
    device: str = ""
    """The device, for example "cpu:0"."""
    backend: str = ""
    """The backend, for example "cpu"."""
    soc_name: str = ""
    """The system on chip as the runtime names it; empty for the CPU."""
    cann_version: str = ""
    """The version of CANN; empty for the CPU."""
    operator_package: OperatorPackage = field(default_factory=OperatorPackage)
    """The operator package that ran it."""
    real_device: bool = False
    """Whether a real accelerator ran it."""
    timings: Timings = field(default_factory=Timings)
    """Where the time went."""
    upload_bytes: int = 0
    """The bytes of all inputs' data."""
    download_bytes: int = 0
    """The bytes of all outputs' data."""
    shared_memory: bool = False
    """Whether they passed through memory that client and server share, and not the network."""


@dataclass(frozen=True)
class WorkerInfo:
    """One worker process and its device."""

    name: str
    """The worker, for example "worker-0"."""
    device: str
    """The device, for example "cpu:0"."""
    ready: bool
    """Whether it takes requests."""
    running_count: int
    """The requests that it runs now."""
    restart_count: int
    """How often its process was replaced."""
    quarantined: bool = False
    """Whether its device is only probed now and then, or not at all."""
    trouble: str = ""
    """Why it does not take requests, as far as is known, by operator package."""
    operator_package: str = ""
    """The operator package that it serves, or is about to."""


@dataclass(frozen=True)
class ServerInfo:
    """What a server is, what it can run and what it allows."""

    opferry_version: str
    """The version of opferry that the server runs."""
    backend: str
    """The backend, for example "cpu"."""
    real_device: bool
    """Whether a real accelerator stands behind it."""
    serving: bool
    """Whether it is answering operator calls now."""
    operators: tuple[str, ...]
    """The operators that it can run, by CANN name."""
    operator_packages: tuple[OperatorPackage, ...]
    """What a request can choose by operator_package; the first is the default."""
    workers: tuple[WorkerInfo, ...]
    """Its workers, one for each device."""
    limits: LimitsConfig
    """What it allows."""
    versions: Mapping[str, str]
    """The versions of what it is made of, by name."""
    reference_kernel: str
    """Which implementation of the reference runs; empty where none does."""
    lease_socket: str = ""
    """The path on the server's host of the socket on which clients there lease shared memory; empty
    where none is offered."""
    server_id: str = ""
    """The server's id, with which the ids of its requests begin."""
    tenant: str = ""
    """The tenant that the credential of whoever asked belongs to."""
    role: str = ""
    """What it may do: "viewer", "user" or "admin"."""
