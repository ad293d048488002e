"""The cases of one Validate stream: which are under way, and what comes for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

from opferry.core.problems import Problem, Reason, StatusCode
from opferry.v1 import validation_pb2 as pb
from opferry.validation.requests import ValidationSettings
from opferry.wire.validation import case_from_message
from opferry_server.judging.case_upload import CaseUpload
from opferry_server.judging.cases import LOGGED_CHARACTERS, CaseRun, cut_short, since
from opferry_server.judging.stream import PeerStillError, ValidateStream
from opferry_server.requests import ClientGoneError
from opferry_server.served import Served, current_identity, current_served
from opferry_server.streams import Context

if TYPE_CHECKING:
    from opferry_server.judging.validation import Validation

log = structlog.get_logger()


class Session:
    """The cases of one stream."""

    def __init__(
        self,
        shared: Validation,
        stream: ValidateStream,
        context: Context,
        settings: ValidationSettings,
        header: bytes,
    ) -> None:
        """Lead a stream whose header has been read.

        Args:
            shared: what all streams share.
            stream: the stream.
            context: its gRPC context.
            settings: what its cases have in common.
            header: the same, serialised.
        """
        self.shared = shared
        self.stream = stream
        self.context = context
        self.settings = settings
        self.header = header
        # a tenant's: behind a proxy all tenants have one address
        host = context.peer().rpartition(":")[0] or context.peer()
        self.client = f"{current_identity().tenant} {host}"
        self._stream = current_served()
        self._cases: dict[int, asyncio.Task[None]] = {}
        self._uploads: dict[int, CaseUpload] = {}
        self._given_up: set[int] = set()
        self.client_ended = False
        self._last_id = -(2**63)
        self._under_way = 0
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def lead(self) -> None:
        """Take cases until the client says that there are no more, and wait for the last verdict.

        Raises:
            Problem: for a client that breaks the rules of the stream.
        """
        try:
            while (frame := await self._next()) is not None:
                if frame.HasField("case"):
                    self._begin(frame.case)
                elif frame.HasField("chunk"):
                    self._receive(frame.chunk)
                else:
                    raise _protocol("a frame after the header is neither a case nor a chunk")
            self.client_ended = True
            for upload in self._uploads.values():
                upload.end(cut_short())
            while self._cases:
                await self._first_of(*self._cases.values())
        finally:
            tasks = list(self._cases.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._broken.done() and not self._broken.cancelled():
                self._broken.exception()  # it has been raised, or what ended the stream has been

    async def _next(self) -> pb.ValidateRequest | None:
        """Return the next frame; None at the end. A client whose cases are under way may be still.

        Raises:
            Problem: STREAM_IDLE.
        """
        reading = asyncio.ensure_future(self.stream.read())
        try:
            while not reading.done():
                idle_s = self.shared.limits.stream_idle_ms / 1000
                before = len(self._cases)
                await self._first_of(reading, timeout_s=idle_s)
                if not reading.done() and not before and not self._cases:
                    raise Problem(
                        Reason.STREAM_IDLE,
                        f"the client sent nothing for {self.shared.limits.stream_idle_ms} ms, and "
                        "no case is under way",
                        argument="stream_idle_ms",
                        allowed=str(self.shared.limits.stream_idle_ms),
                    )
            return reading.result()
        finally:
            reading.cancel()

    async def _first_of(self, *waited: asyncio.Future[Any], timeout_s: float | None = None) -> None:
        """Wait for the first of some; raise what broke the stream."""
        every: tuple[asyncio.Future[Any], ...] = (*waited, self._broken)
        await asyncio.wait(every, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._broken.result()

    def _begin(self, message: pb.ValidateCase) -> None:
        if message.case_id <= self._last_id:
            raise _protocol(
                f"case_id {message.case_id} came after {self._last_id}; each is higher than the "
                "one before"
            )
        if self._under_way >= self.shared.limits.case_count:
            raise _protocol(
                f"more than {self.shared.limits.case_count} cases are under way; the welcome says "
                "how many may be"
            )
        self._last_id = message.case_id
        self._under_way += 1
        task = asyncio.ensure_future(self._case(message))
        self._cases[message.case_id] = task
        task.add_done_callback(lambda done: self._ended(message.case_id, done))

    def _ended(self, case_id: int, task: asyncio.Task[None]) -> None:
        self._cases.pop(case_id, None)
        if not task.cancelled() and (error := task.exception()) and not self._broken.done():
            self._broken.set_exception(error)

    def _receive(self, chunk: pb.CaseChunk) -> None:
        if chunk.case_id in self._given_up and chunk.tensor == pb.CASE_TENSOR_INPUT:
            return  # sent before the client could know that nobody waits for it any more
        upload = self._uploads.get(chunk.case_id)
        if upload is None or chunk.tensor != pb.CASE_TENSOR_INPUT:
            raise _protocol(f"a chunk of case {chunk.case_id} came that was not asked for")
        upload.put(chunk)

    async def _case(self, message: pb.ValidateCase) -> None:
        """Judge a case and send its verdict, whatever it is."""
        requests = self.shared.requests
        served = requests.begin("Validate", "case", self.context, self._stream)
        served.outcome, served.status = "CANCELLED", StatusCode.CANCELLED
        try:
            case = case_from_message(message, self.shared.limits)
            await CaseRun(self, case, message, served).judge()
            served.outcome, served.status = "OK", StatusCode.OK
        except Problem as problem:
            await self._refuse(message, problem, served)
        except (PeerStillError, ClientGoneError):
            raise  # nobody reads verdicts any more
        except Exception:
            # its text may name paths; and no other case is at fault
            log.exception("defect")
            defect = Problem(Reason.SERVER_DEFECT, "the server failed; its log says why")
            await self._refuse(message, defect, served)
        finally:
            requests.end(served)

    async def _refuse(self, message: pb.ValidateCase, problem: Problem, served: Served) -> None:
        """Send the verdict on a case that could not be judged."""
        served.fail(problem)
        status = self.shared.requests.status(problem, served.request_id)
        log.info("case", case=message.name[:LOGGED_CHARACTERS], outcome=problem.reason.value)
        verdict = pb.CaseVerdict(
            case_id=message.case_id,
            error=status.SerializeToString(),
            total_ns=since(served.started_s),
        )
        self.end_case()
        await self.stream.write(pb.ValidateResponse(verdict=verdict))

    def end_case(self) -> None:
        """Let the client send another case; just before a case's last frame, at which it may."""
        self._under_way -= 1

    @contextmanager
    def expecting(self, case_id: int, upload: CaseUpload) -> Iterator[None]:
        """Let a case's data come for the length of a `with` block."""
        self._uploads[case_id] = upload
        try:
            yield
        finally:
            del self._uploads[case_id]
            if not upload.is_complete:
                self._given_up.add(case_id)


def _protocol(text: str) -> Problem:
    return Problem(Reason.STREAM_PROTOCOL, text)
