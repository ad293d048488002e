"""What a judge does for a case, in its own process: make inputs, compute the golden, compare."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor, TensorSpec, view_array
from opferry.v1 import validation_pb2 as pb
from opferry.validation.case import Tolerance
from opferry.validation.digests import file_digest
from opferry.validation.inputs import check_digest, digest, fill
from opferry.validation.outcome import GoldenMode
from opferry.validation.recipes import Recipe
from opferry.validation.requests import CaseRequest, JudgedOutput, ValidationSettings
from opferry.wire.validation import case_from_message, output_message, settings_from_message
from opferry_server.workers.messages import RunRequest, Task, TaskKind

KNOWN_COUNT = 32
"""How many headers, and how many cases, a judge remembers, those used last."""

ANYTHING = LimitsConfig(repeat_count=10_000)
"""The front has checked a case against its own limits before it comes here."""


def perform(request: RunRequest, task: Task, arena: memoryview) -> bytes:
    """Do a step of a case's validation and return what it found, a serialised CaseVerdict.

    Args:
        request: the case's call, and where its tensors lie.
        task: the step.
        arena: the memory.

    Raises:
        Problem: if the step cannot be done.
    """
    settings, case = _settings(task.settings), _case(task.case)
    verdict = pb.CaseVerdict()
    started_ns = perf_counter_ns()
    if task.kind in (TaskKind.INPUTS, TaskKind.INPUTS_AND_GOLDEN):
        verdict.input_digests = _make_inputs(case, request, task, arena)
        verdict.generate_ns = perf_counter_ns() - started_ns
        started_ns += verdict.generate_ns
    if task.kind in (TaskKind.GOLDEN, TaskKind.INPUTS_AND_GOLDEN):
        _compute_golden(case, settings, request, arena)
        verdict.golden_ns = perf_counter_ns() - started_ns
    if task.kind is TaskKind.COMPARE:
        verdict.outputs.extend(map(output_message, _compare(case, settings, request, arena)))
        verdict.compare_ns = perf_counter_ns() - started_ns
    return verdict.SerializeToString()


# a stream's settings come with each of its cases, a case with each of its steps


@lru_cache(KNOWN_COUNT)
def _settings(serialized: bytes) -> ValidationSettings:
    return settings_from_message(pb.ValidateHeader.FromString(serialized), ANYTHING)


@lru_cache(KNOWN_COUNT)
def _case(serialized: bytes) -> CaseRequest:
    return case_from_message(pb.ValidateCase.FromString(serialized), ANYTHING)


def _make_inputs(case: CaseRequest, request: RunRequest, task: Task, arena: memoryview) -> bytes:
    digests = b""
    for name, spec in case.inputs.items():
        at = request.work.placement.inputs[name]
        with arena[at : at + spec.data_bytes] as data:
            source = case.sources[name]
            if isinstance(source, Recipe):
                fill(source, data)
            elif name in task.to_read:
                _read(name, Path(task.to_read[name]), data)
            elif source.sha256:
                _check_sha256(name, data, source.sha256)
                if name in task.to_write:
                    _write(Path(task.to_write[name]), data, request.job_id)
            tensor = HostTensor(spec, data)
            wanted = case.digests.get(name)
            if wanted is not None and isinstance(source, Recipe):
                check_digest(source, tensor, wanted)
            found = digest(tensor)
            if wanted not in (None, found):
                raise _changed(name, found.hex(), "" if wanted is None else wanted.hex())
            digests += found
    return digests


def _read(name: str, path: Path, data: memoryview) -> None:
    try:
        with path.open("rb", buffering=0) as stream:
            done = 0
            while done < data.nbytes and (size := stream.readinto(data[done:])):
                done += size
    except OSError as error:
        raise _lost(name, str(error.strerror)) from error
    if done != data.nbytes:
        raise _lost(name, f"{done} of {data.nbytes} bytes are there")


def _check_sha256(name: str, data: memoryview, sha256: bytes) -> None:
    found = file_digest(data)
    if found != sha256:
        raise _changed(name, found.hex(), sha256.hex())


def _write(path: Path, data: memoryview, job_id: int) -> None:
    """Keep data, whole or not at all; if that is not possible, they are asked for again."""
    # a judge that takes the task over from a dead one writes over what that has left
    part = path.with_name(f"{path.name}.{job_id}")
    try:
        part.write_bytes(data)
        part.rename(path)
    except OSError:
        with suppress(OSError):
            part.unlink()


def _changed(name: str, found: str, wanted: str) -> Problem:
    return Problem(
        Reason.CHECKSUM_MISMATCH,
        f"{name} arrived with the digest {found}; the case says {wanted}: it was changed on the "
        "way, send it again",
        argument=name,
        given=found,
        allowed=wanted,
    )


def _lost(name: str, said: str) -> Problem:
    """Return what tells the front to ask for the data again; no client sees it."""
    return Problem(
        Reason.LEASE_EXPIRED, f"the data of {name} are no longer there: {said}", argument=name
    )


def _compute_golden(
    case: CaseRequest, settings: ValidationSettings, request: RunRequest, arena: memoryview
) -> None:
    plan = case.operator.check(case.inputs, case.attributes)
    inputs = {
        name: _view(arena, request.work.placement.inputs[name], spec)
        for name, spec in case.inputs.items()
    }
    case.operator.reference(
        inputs,
        plan,
        outputs=_goldens(settings, request, arena),
        promote=settings.golden_mode is GoldenMode.PROMOTE,
    )


def _compare(
    case: CaseRequest, settings: ValidationSettings, request: RunRequest, arena: memoryview
) -> list[JudgedOutput]:
    listed = case.outputs or tuple(request.work.outputs)
    compared = settings.golden_mode is not GoldenMode.DISABLE
    goldens = _goldens(settings, request, arena) if compared else {}
    return [
        JudgedOutput.of(
            name,
            _view(arena, request.work.placement.outputs[name], spec),
            goldens.get(name),
            spec.dtype,
            settings.standard,
            settings.edition,
            case.tolerances.get(name, Tolerance()),
            worst_count=settings.worst_count,
            with_slice=settings.failing_slices,
        )
        for name, spec in request.work.outputs.items()
        if name in listed
    ]


def _goldens(
    settings: ValidationSettings, request: RunRequest, arena: memoryview
) -> Mapping[str, NDArray[Any]]:
    promoted = settings.golden_mode is GoldenMode.PROMOTE
    return {
        name: np.ndarray(
            spec.shape,
            np.float64 if promoted else spec.dtype.numpy,
            arena,
            request.work.placement.goldens[name],
        )
        for name, spec in request.work.outputs.items()
    }


def _view(arena: memoryview, at: int, spec: TensorSpec) -> NDArray[Any]:
    return view_array(spec, arena[at : at + spec.data_bytes])
