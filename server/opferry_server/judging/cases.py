"""One case on its way through the server, from its inputs to its verdict."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from opferry import wire
from opferry.core.execution import Execution
from opferry.core.limits import MIB, too_large
from opferry.core.problems import Problem, Reason
from opferry.operators.call import HOST_STEP_BYTES, align
from opferry.v1 import validation_pb2 as pb
from opferry.validation.outcome import GoldenMode
from opferry.validation.requests import CaseRequest, ClientData
from opferry_server.jobs import Job, JobState
from opferry_server.judging.case_upload import CaseUpload
from opferry_server.judging.kept import Key
from opferry_server.reports import describe_execution
from opferry_server.served import Served
from opferry_server.uploads import Upload
from opferry_server.workers.messages import Placement, RunReply, Task, TaskKind

if TYPE_CHECKING:
    from opferry_server.judging.session import Session

log = structlog.get_logger()

GOLDEN_ITEMSIZES = {GoldenMode.ENABLE: 0, GoldenMode.PROMOTE: 8, GoldenMode.DISABLE: None}
"""By mode the bytes of an element of a golden, 0 for those of the output's; None: there is none."""

SMALL_BYTES = 4 * MIB
"""Up to this size of a case its golden takes less time than its way to a judge and back, and is
computed together with the inputs; that of a larger one is computed while the operator runs."""

LOGGED_CHARACTERS = 200
"""How much of a case's name is logged."""


class CaseRun:
    """A case that is being judged."""

    def __init__(
        self, session: Session, case: CaseRequest, message: pb.ValidateCase, served: Served
    ) -> None:
        """Describe it; `judge` does it.

        Args:
            session: the cases of its stream.
            case: the case.
            message: as it came.
            served: the same as a request.
        """
        self._session = session
        self._case = case
        self._message = message.SerializeToString()
        self._served = served

    async def judge(self) -> None:
        """Judge the case, and send its verdict and what tensors are asked for.

        Raises:
            Problem: if it cannot be judged.
        """
        case = self._case
        shared = self._session.shared
        checked = shared.check(case.call(self._session.settings))
        itemsize = (
            None if case.expects_refusal else GOLDEN_ITEMSIZES[self._session.settings.golden_mode]
        )
        placement = Placement.of(checked, itemsize)
        size_bytes = align(placement.size_bytes, HOST_STEP_BYTES)
        if size_bytes > shared.limits.memory_bytes:
            raise too_large(
                "the case (inputs, outputs and goldens)", size_bytes, shared.limits.memory_bytes
            )
        job = shared.make_job(checked, self._session.context, placement)
        async with shared.turns.entered(job, self._session):
            await shared.admission.wait(job, JobState.UPLOADING)
            together = itemsize is not None and size_bytes <= SMALL_BYTES
            kind = TaskKind.INPUTS_AND_GOLDEN if together else TaskKind.INPUTS
            received_bytes, verdict, upload_s = await self._bring_inputs(job, kind)
            await shared.admission.body_complete(job)
            golden = None
            if itemsize is not None and not together:
                golden = asyncio.ensure_future(self._do(job, TaskKind.GOLDEN))
            try:
                await shared.admission.wait(job, JobState.DONE)
                if golden is not None:
                    verdict.MergeFrom(await golden)
                if not case.expects_refusal:
                    verdict.MergeFrom(await self._do(job, TaskKind.COMPARE))
            finally:
                if golden is not None:
                    golden.cancel()
                    await asyncio.gather(golden, return_exceptions=True)
            # views that outlive the job, in an error's traceback, would keep its memory mapped
            with ExitStack() as views:
                await self._tell(job, verdict, received_bytes, upload_s, views)

    async def _bring_inputs(self, job: Job, kind: TaskKind) -> tuple[int, pb.CaseVerdict, float]:
        """Have all inputs in the job's memory; return the bytes that came, and the digests."""
        case = self._case
        theirs = {
            name: source for name, source in case.sources.items() if isinstance(source, ClientData)
        }
        kept = self._session.shared.kept
        keys = {name: Key(self._session.client, source.sha256) for name, source in theirs.items()}
        sizes = {name: case.inputs[name].data_bytes for name in theirs}
        came: set[str] = set()
        upload_s = 0.0
        while True:
            with ExitStack() as pins:
                to_read: dict[str, str] = {}
                for name, key in keys.items():
                    if name not in came and key.sha256 and kept.has(key, sizes[name]):
                        to_read[name] = str(kept.pin(key))
                        pins.callback(kept.unpin, key)
                missing = [name for name in theirs if name not in to_read and name not in came]
                if missing:
                    started_s = time.monotonic()
                    await self._upload(job, missing)
                    upload_s += time.monotonic() - started_s
                    came.update(missing)
                to_keep = {
                    name: keys[name] for name in theirs if name in came and keys[name].sha256
                }
                try:
                    verdict = await self._make_inputs(job, kind, to_read, to_keep, sizes)
                    return sum(sizes[name] for name in came), verdict, upload_s
                except Problem as problem:
                    if problem.reason is not Reason.LEASE_EXPIRED or problem.argument not in keys:
                        raise
                    # deleted, by somebody else, since it was looked for: the client has it still
                    kept.forget(keys[problem.argument])

    async def _make_inputs(
        self,
        job: Job,
        kind: TaskKind,
        to_read: dict[str, str],
        keys: dict[str, Key],
        sizes: dict[str, int],
    ) -> pb.CaseVerdict:
        """Have a judge make the inputs, and count what it keeps.

        A task that writes files goes on to its end, whoever waits for it no longer: a file that
        nobody counts would stay for as long as the server.
        """
        kept = self._session.shared.kept
        places = {name: kept.place(key, sizes[name]) for name, key in keys.items()}
        to_write = {name: str(place) for name, place in places.items() if place is not None}

        async def make() -> pb.CaseVerdict:
            try:
                verdict = await self._do(job, kind, to_read=to_read, to_write=to_write)
            except Problem:
                for name in to_write:
                    kept.discard(keys[name])
                raise
            for name in to_write:
                kept.note(keys[name], sizes[name])
            return verdict

        if not to_write:
            return await make()
        making = asyncio.ensure_future(make())
        making.add_done_callback(_nobody_may_wait)
        return await asyncio.shield(making)

    async def _upload(self, job: Job, names: list[str]) -> None:
        if self._session.client_ended:
            raise cut_short()
        case = self._case
        order = list(case.inputs)
        upload = CaseUpload(
            Upload(job, frozenset(names)), self._session.shared.limits.stream_idle_ms
        )
        needed = pb.DataNeeded(
            case_id=case.case_id, input_indexes=[order.index(name) for name in names]
        )
        with self._session.expecting(case.case_id, upload):
            await self._session.stream.write(pb.ValidateResponse(needed=needed))
            await upload.complete(job)

    async def _do(
        self,
        job: Job,
        kind: TaskKind,
        *,
        to_read: dict[str, str] | None = None,
        to_write: dict[str, str] | None = None,
    ) -> pb.CaseVerdict:
        task = Task(kind, self._session.header, self._message, to_read or {}, to_write or {})
        reply = await self._session.shared.judges.run(
            job, task, self._session.shared.admission.hold
        )
        return pb.CaseVerdict.FromString(reply.verdict)

    async def _tell(
        self,
        job: Job,
        verdict: pb.CaseVerdict,
        received_bytes: int,
        upload_s: float,
        views: ExitStack,
    ) -> None:
        """Send the verdict, and the tensors that were asked for; *views* holds their memory."""
        case = self._case
        failed = any(output.element_count and not output.passed for output in verdict.outputs)
        compared = not case.expects_refusal
        dumps = compared and (failed or not self._session.settings.dump_on_fail)
        outputs = (compared and case.returns_outputs) or (
            dumps and self._session.settings.dump_outputs
        )
        goldens = dumps and self._session.settings.dump_goldens and bool(job.placement.goldens)
        sent: list[tuple[pb.CaseChunk, memoryview]] = []
        for index, name in enumerate(output.name for output in verdict.outputs):
            for wanted, tensor, view_of in (
                (outputs, pb.CASE_TENSOR_OUTPUT, job.output),
                (goldens, pb.CASE_TENSOR_GOLDEN, job.golden),
            ):
                if wanted:
                    chunk = pb.CaseChunk(case_id=case.case_id, tensor=tensor, tensor_index=index)
                    sent.append((chunk, views.enter_context(view_of(name))))
        execution: Execution = replace(
            describe_execution(job, upload_s),
            upload_bytes=received_bytes,
            download_bytes=sum(data.nbytes for _, data in sent),
        )
        verdict.case_id = case.case_id
        verdict.execution.CopyFrom(wire.execution_message(execution))
        verdict.total_ns = since(self._served.started_s)
        verdict.has_outputs, verdict.has_goldens = outputs, goldens
        assert isinstance(job.outcome, RunReply)  # noqa: S101 - it ran
        self._served.verdict = "FAIL" if failed else "PASS"
        log.info(
            "case",
            case=case.name[:LOGGED_CHARACTERS],
            outcome="FAIL" if failed else "OK",
            worker=execution.worker,
            device=execution.device,
            operator_package=execution.operator_package.name,
            package_digest=execution.operator_package.digest,
            kernel_ms=[round(ns / 1e6, 3) for ns in job.outcome.timings.kernel_ns],
            total_ms=round(verdict.total_ns / 1e6, 3),
        )
        last = sent.pop() if sent else None
        if last is None:
            self._session.end_case()  # who has the last frame may send the next case at once
        await self._session.stream.write(pb.ValidateResponse(verdict=verdict))
        for chunk, data in sent:
            await self._session.stream.send_tensor(chunk, data)
        if last is not None:
            self._session.end_case()
            await self._session.stream.send_tensor(*last)


def cut_short() -> Problem:
    """Return the problem of a client that ends its side before all that it was asked for."""
    text = "the client ended its side of the stream before the case's data"
    return Problem(Reason.STREAM_PROTOCOL, text)


def since(started_s: float) -> int:
    """Return the nanoseconds since a moment on the monotonic clock."""
    return round((time.monotonic() - started_s) * 1e9)


def _nobody_may_wait(task: asyncio.Task[pb.CaseVerdict]) -> None:
    """Take a task's error, which whoever waits for it is told; perhaps nobody does any more."""
    if not task.cancelled():
        task.exception()
