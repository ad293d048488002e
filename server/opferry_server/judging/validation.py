"""The method Validate: cases in, verdicts out.

A case is a job like any other, on memory that holds its inputs, outputs and goldens. Judges make
its inputs; then its operator runs on the device while a judge computes the golden; then a judge
compares. No tensor passes through the front unless a client sends or asks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from opferry.core.limits import LimitsConfig
from opferry.operators.call import Call, CheckedCall
from opferry.v1 import validation_pb2 as pb
from opferry.wire.validation import settings_from_message
from opferry_server.admission import Admission
from opferry_server.jobs import Job
from opferry_server.judging.judges import Judges
from opferry_server.judging.kept import KeptData
from opferry_server.judging.session import Session
from opferry_server.judging.stream import PeerStillError, ValidateStream
from opferry_server.places import Turns
from opferry_server.requests import Requests
from opferry_server.streams import Context
from opferry_server.workers.messages import Placement

MakeJob = Callable[[CheckedCall, Context, Placement], Job]
"""Returns the job of a checked call."""


class Validation:
    """What all Validate streams of a server share."""

    def __init__(
        self,
        limits: LimitsConfig,
        admission: Admission,
        judges: Judges,
        kept: KeptData,
        requests: Requests,
        check: Callable[[Call], CheckedCall],
        make_job: MakeJob,
        turns: Turns,
    ) -> None:
        """Serve streams.

        Args:
            limits: the server's limits.
            admission: the lines that requests pass.
            judges: who makes inputs, computes goldens and compares.
            kept: the data that clients have sent before.
            requests: what is around every request.
            check: checks a call against package names, contract and limits.
            make_job: makes a job of a call.
            turns: how cases enter the lines.
        """
        self.limits = limits
        self.admission = admission
        self.judges = judges
        self.kept = kept
        self.requests = requests
        self.check = check
        self.make_job = make_job
        self.turns = turns

    async def serve(self, context: Context) -> None:
        """Serve one stream.

        Raises:
            Problem: if the stream cannot go on; what concerns one case alone is in its verdict.
        """
        stream = ValidateStream(context, self.limits)
        header = await stream.header()
        settings = settings_from_message(header, self.limits)
        await self.judges.start()
        welcome = pb.ValidateWelcome(case_count=self.limits.case_count)
        try:
            await stream.write(pb.ValidateResponse(welcome=welcome))
            await Session(self, stream, context, settings, header.SerializeToString()).lead()
        except PeerStillError as error:
            raise error.problem from error
