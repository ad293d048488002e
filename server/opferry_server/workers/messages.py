"""The messages between front and worker: one datagram each, JSON, descriptors beside it.

Tensors never travel here; they lie in arenas, and messages say where.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

from opferry.core.dtypes import DType
from opferry.core.execution import ExecutionOptions, OperatorPackage, Timings
from opferry.core.tensors import TensorSpec
from opferry.operators import OPERATORS
from opferry.operators.call import Call, CheckedCall, place
from opferry_server.backends.base import BackendInfo, BackendSettings

MAX_MESSAGE_BYTES = 160 * 1024
"""The largest message: below the kernel's default socket buffer of 208 KiB."""

MAX_TEXT_CHARACTERS = 20_000
"""The longest error text that a worker reports: at 6 bytes for an escaped character, well below
`MAX_MESSAGE_BYTES`."""

KNOWN_COUNT = 256
"""So much work, the latest, is not read again when it comes again."""

_encoder = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class Placement:
    """Where a request's tensors lie in its arena."""

    inputs: Mapping[str, int]
    """The offset of each input's storage in bytes."""
    outputs: Mapping[str, int]
    """The offset of each output in bytes."""
    size_bytes: int
    """What all of them take."""
    goldens: Mapping[str, int] = field(default_factory=dict)
    """The offset of each output's golden in bytes, where there is one."""
    golden_itemsize: int = 0
    """The bytes of an element of each golden; 0: as many as the output's have."""

    @classmethod
    def of(cls, checked: CheckedCall, golden_itemsize: int | None = None) -> Placement:
        """Return a placement for the inputs, in their order, and then the outputs.

        Args:
            checked: the call.
            golden_itemsize: the bytes of an element of each output's golden, 0 for as many as the
                output's have; None: there are no goldens.
        """
        inputs = {name: spec.data_bytes for name, spec in checked.call.inputs.items()}
        outputs = {name: spec.data_bytes for name, spec in checked.outputs.items()}
        goldens: dict[str, int] = {}
        if golden_itemsize is not None:
            goldens = {
                name: spec.element_count * golden_itemsize or spec.data_bytes
                for name, spec in checked.outputs.items()
            }
        offsets, end = place((*inputs.values(), *outputs.values(), *goldens.values()))
        following = iter(offsets)
        at = [dict(zip(sizes, following, strict=False)) for sizes in (inputs, outputs, goldens)]
        return cls(at[0], at[1], end, at[2], golden_itemsize or 0)

    def moved(self, offset_bytes: int) -> Placement:
        """Return the same placement, so many bytes further on in the arena."""
        return replace(
            self,
            inputs={name: at + offset_bytes for name, at in self.inputs.items()},
            outputs={name: at + offset_bytes for name, at in self.outputs.items()},
            goldens={name: at + offset_bytes for name, at in self.goldens.items()},
        )

    def golden_bytes(self, checked: CheckedCall, name: str) -> int:
        """Return the size of an output's golden; 0 where there is none."""
        if name not in self.goldens:
            return 0
        spec = checked.outputs[name]
        return spec.element_count * (self.golden_itemsize or spec.dtype.itemsize)


class TaskKind(str, Enum):
    """What can be done for a case beside running its operator."""

    INPUTS = "INPUTS"
    """Make the inputs that are recipes, read and write files of kept data, and digest all."""
    INPUTS_AND_GOLDEN = "INPUTS_AND_GOLDEN"
    """Make them, and at once the golden."""
    GOLDEN = "GOLDEN"
    """Compute the golden."""
    COMPARE = "COMPARE"
    """Compare the outputs with the golden."""


@dataclass(frozen=True)
class Task:
    """A step of a case's validation, for a judge."""

    kind: TaskKind
    """The step."""
    settings: bytes
    """The stream's ValidateHeader, serialised."""
    case: bytes
    """The case's ValidateCase, serialised."""
    to_read: Mapping[str, str] = field(default_factory=dict)
    """By input, the file that holds its data."""
    to_write: Mapping[str, str] = field(default_factory=dict)
    """By input, the file that is to hold its data from now on."""

    def to_fields(self) -> dict[str, Any]:
        """Return the task as plain values."""
        return {
            "kind": self.kind.value,
            "settings": b64encode(self.settings).decode(),
            "case": b64encode(self.case).decode(),
            "to_read": dict(self.to_read),
            "to_write": dict(self.to_write),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Task:
        """Return the task of its plain values."""
        return cls(
            TaskKind(fields["kind"]),
            b64decode(fields["settings"]),
            b64decode(fields["case"]),
            fields["to_read"],
            fields["to_write"],
        )


@dataclass(frozen=True)
class Work:
    """What a worker is to do, but for whom and on which memory: many requests may share it."""

    call: Call
    """The call."""
    outputs: Mapping[str, TensorSpec]
    """The outputs to compute."""
    placement: Placement
    """Where everything lies."""
    plan_only: bool = False
    """Whether only the device's first stage is to be asked; there is no data then."""
    task: Task | None = None
    """What is to be done for a case in place of running the operator."""

    @cached_property
    def encoded(self) -> bytes:
        """The work as bytes, without the call's client."""
        call = self.call
        return _json(
            operator=call.operator.name,
            attributes=vars(call.attributes),
            options=vars(call.options),
            operator_package=call.operator_package,
            inputs={name: _spec_fields(spec) for name, spec in call.inputs.items()},
            outputs={name: _spec_fields(spec) for name, spec in self.outputs.items()},
            digests={name: digest.hex() for name, digest in call.digests.items()},
            placement=vars(self.placement),
            plan_only=self.plan_only,
            task=None if self.task is None else self.task.to_fields(),
        )

    @classmethod
    def decode(cls, encoded: bytes, client: str) -> Work:
        """Return the work of `encoded`, done for *client*."""
        fields = json.loads(encoded)
        operator = OPERATORS[fields["operator"]]
        call = Call(
            operator=operator,
            attributes=operator.parse_attributes(fields["attributes"]),
            inputs={name: _spec(spec) for name, spec in fields["inputs"].items()},
            options=ExecutionOptions(**fields["options"]),
            operator_package=fields["operator_package"],
            client=client,
            digests={name: bytes.fromhex(text) for name, text in fields["digests"].items()},
        )
        return cls(
            call,
            {name: _spec(spec) for name, spec in fields["outputs"].items()},
            Placement(**fields["placement"]),
            fields["plan_only"],
            None if fields["task"] is None else Task.from_fields(fields["task"]),
        )


_known_work = lru_cache(KNOWN_COUNT)(Work.decode)


@dataclass(frozen=True)
class RunRequest:
    """Front to worker: do this work on the data in that arena."""

    job_id: int
    """The front's number for it."""
    arena_id: int
    """The arena. Its descriptor comes along when the worker sees it for the first time."""
    arena_bytes: int
    """The arena's capacity."""
    client: str
    """Whose request it is."""
    work: Work
    """What is to be done."""

    def encode(self) -> bytes:
        """Return the message's bytes: what is the request's own, and in a line of its own the work.

        So whoever has read the same work before need not read it again.
        """
        call = self.work.call
        own = _dump(
            "run",
            job_id=self.job_id,
            arena_id=self.arena_id,
            arena_bytes=self.arena_bytes,
            client=self.client,
            # what names the data, or a case, does not come again
            recurs=self.work.task is None and not call.digests,
        )
        return b"%b\n%b" % (own, self.work.encoded)

    @classmethod
    def decode(cls, fields: Mapping[str, Any], work: bytes) -> RunRequest:
        """Return the message of its own fields and its encoded work."""
        read = _known_work if fields["recurs"] else Work.decode
        return cls(
            fields["job_id"],
            fields["arena_id"],
            fields["arena_bytes"],
            fields["client"],
            read(work, fields["client"]),
        )


@dataclass(frozen=True)
class RunReply:
    """Worker to front: what came of a run."""

    job_id: int
    """The front's number for it."""
    timings: Timings = field(default_factory=Timings)
    """The stages of a run that succeeded."""
    digests: Mapping[str, bytes] = field(default_factory=dict)
    """The XXH3 digests of the outputs, if asked for."""
    workspace_bytes: int | None = None
    """What the device's first stage asked for, if only that was run."""
    verdict: bytes = b""
    """What a task found, a serialised CaseVerdict."""
    problem: Mapping[str, Any] | None = None
    """The fields of the Problem of a run that failed."""
    ends_worker: bool = False
    """Whether the worker ends because of it."""
    device_broken: bool = False
    """Whether its device is out of service because of it."""
    probes_device: bool = False
    """Whether the device is to be probed because of it."""

    def encode(self) -> bytes:
        """Return the message's bytes: what is not as usual."""
        fields: dict[str, Any] = {"job_id": self.job_id}
        if self.problem is None:
            fields["timings"] = {name: value for name, value in vars(self.timings).items() if value}
        else:
            fields["problem"] = self.problem
        if self.digests:
            fields["digests"] = {name: digest.hex() for name, digest in self.digests.items()}
        if self.workspace_bytes is not None:
            fields["workspace_bytes"] = self.workspace_bytes
        if self.verdict:
            fields["verdict"] = b64encode(self.verdict).decode()
        for name in ("ends_worker", "device_broken", "probes_device"):
            if getattr(self, name):
                fields[name] = True
        return _dump("done", **fields)

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> RunReply:
        """Return the message of its fields."""
        given = dict(fields)
        timings = given.pop("timings", {})
        if "kernel_ns" in timings:
            timings["kernel_ns"] = tuple(timings["kernel_ns"])
        if "digests" in given:
            given["digests"] = {
                name: bytes.fromhex(text) for name, text in given["digests"].items()
            }
        if "verdict" in given:
            given["verdict"] = b64decode(given["verdict"])
        return cls(timings=Timings(**timings), **given)


def encode_settings(settings: BackendSettings) -> str:
    """Return a backend's settings as an argument of the worker's command line."""
    return json.dumps(asdict(settings))


def decode_settings(argument: str) -> BackendSettings:
    """Return the settings of `encode_settings`."""
    return BackendSettings(**json.loads(argument))


def encode_ready(info: BackendInfo) -> bytes:
    """Return the message of a worker whose backend is open."""
    return _dump("ready", info=asdict(info))


def decode_ready(fields: Mapping[str, Any]) -> BackendInfo:
    """Return what the worker's backend says of itself."""
    info = dict(fields["info"])
    info["operator_package"] = OperatorPackage(**info["operator_package"])
    info["own_packages"] = {
        name: OperatorPackage(**package) for name, package in info["own_packages"].items()
    }
    for name in ("operators", "may_be_wrong"):
        info[name] = tuple(info[name])
    return BackendInfo(**info)


def encode_failed(text: str, *, device_broken: bool = False) -> bytes:
    """Return the message of a worker whose backend could not be opened."""
    return _dump("failed", text=text[:MAX_TEXT_CHARACTERS], device_broken=device_broken)


def encode_forget(arena_id: int) -> bytes:
    """Return the message that an arena is gone."""
    return _dump("forget", arena_id=arena_id)


def encode_end() -> bytes:
    """Return the message that the worker is to release its device and end."""
    return _dump("end")


def decode(message: bytes) -> tuple[str, Mapping[str, Any]]:
    """Return a message's kind ("run", "done", "ready", "failed", "forget", "end") and fields."""
    fields = json.loads(message)
    return fields.pop("kind"), fields


def decode_for_worker(message: bytes) -> tuple[str, Mapping[str, Any], bytes]:
    """Return a message's kind and fields, as `decode`, and the encoded work of a "run"."""
    own, _, work = message.partition(b"\n")
    return *decode(own), work


def _dump(kind: str, **fields: Any) -> bytes:
    return _json(kind=kind, **fields)


def _json(**fields: Any) -> bytes:
    return _encoder.encode(fields).encode()


def _spec_fields(spec: TensorSpec) -> dict[str, Any]:
    return {
        "dtype": spec.dtype.value,
        "shape": spec.shape,
        "strides": spec.strides,
        "storage_offset": spec.storage_offset,
        "storage_shape": spec.storage_shape,
    }


def _spec(fields: Mapping[str, Any]) -> TensorSpec:
    strides, storage = fields["strides"], fields["storage_shape"]
    return TensorSpec(
        dtype=DType(fields["dtype"]),
        shape=tuple(fields["shape"]),
        strides=None if strides is None else tuple(strides),
        storage_offset=fields["storage_offset"],
        storage_shape=None if storage is None else tuple(storage),
    )
