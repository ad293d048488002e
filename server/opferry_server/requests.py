"""What happens around every call: a request id, one log line, and problems turned into statuses."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any

import grpc
import structlog
from google.rpc import status_pb2
from grpc_status import rpc_status

from opferry import wire
from opferry.core.problems import Problem, Reason, StatusCode
from opferry_server.endings import ended_by_somebody
from opferry_server.identity import ANYONE, Identity, Role
from opferry_server.served import Served, Watchers, current_identity, current_served, set_served

log = structlog.get_logger()

KEPT_TEXTS = 256
"""How many of a tenant's error texts that were too long for a reply are kept for GetErrorText."""

BUSY_S = 1.0
"""After which time a call that is one too many makes sense again."""

_told: ContextVar[dict[str, Any]] = ContextVar("told")


def current_request_id() -> str:
    """Return the id of the request that the running handler serves."""
    return current_served().request_id


def tell(**fields: Any) -> None:
    """Have these fields in the line that is logged when the running handler is done."""
    _told.get().update(fields)


class ClientGoneError(Exception):
    """The client closed its connection; nobody waits for an answer."""


class ErrorTexts:
    """The full texts of the last errors that had to be cut; each belongs to a tenant."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def keep(self, request_id: str, text: str, tenant: str) -> None:
        """Keep a tenant's text; its oldest goes when it has `KEPT_TEXTS`."""
        self._texts[request_id] = (tenant, text)
        own = [key for key, (whose, _) in self._texts.items() if whose == tenant]
        if len(own) > KEPT_TEXTS:
            del self._texts[own[0]]

    def find(self, request_id: str, identity: Identity) -> str:
        """Return a kept text.

        Raises:
            Problem: ERROR_TEXT_UNKNOWN, in the same words whether there is none or it is another
                tenant's.
        """
        tenant, text = self._texts.get(request_id, (None, ""))
        if tenant is None or not identity.owns(tenant):
            raise Problem(
                Reason.ERROR_TEXT_UNKNOWN,
                f"no text is kept for request {request_id[:64]!r}; the last {KEPT_TEXTS} texts "
                "that were too long for a reply are",
                argument="request_id",
                given=request_id[:64],
            )
        return text


class Requests:
    """Wraps the handlers of the services' methods."""

    def __init__(
        self,
        texts: ErrorTexts,
        server_id: str,
        identify: Callable[[Any], Identity] = lambda context: ANYONE,
        least_role: Callable[[str], Role] = lambda method: Role.USER,
        watchers: Watchers = (),
        *,
        call_count: int = 2**31,
    ) -> None:
        """Keep long error texts in *texts*.

        Args:
            texts: where error texts that had to be cut are kept.
            server_id: what the ids of requests begin with.
            identify: returns who calls in a gRPC context, or raises a Problem.
            least_role: returns what role a method takes.
            watchers: who is told of each request.
            call_count: how many calls of those who may call can be open at a time.
        """
        self._texts = texts
        # those of another start of the server differ in the first half
        self._id_start = f"{server_id}-{secrets.token_hex(4)}"
        self._id_numbers = count(1)
        self._identify = identify
        self._least_role = least_role
        self._watchers = watchers
        self._open: dict[str, Served] = {}
        self._call_count = call_count

    def cancel(self, request_id: str, identity: Identity) -> bool:
        """End an open request, if it is there and somebody's own; return whether it was."""
        found = self._open.get(request_id)
        if found is None or found.identity is None or found.task is None:
            return False
        if not identity.owns(found.identity.tenant):
            return False
        found.called_off = True
        found.task.cancel()
        return True

    def begin(self, method: str, event: str, context: Any, parent: Served | None = None) -> Served:
        """Give the running task a request of its own, with an id, for its log lines too.

        Args:
            method: that it came by.
            event: of the line that is logged at its end.
            context: the gRPC context that it came by.
            parent: the stream that it came by, if it is one of many; it is the same one's.

        Returns:
            The request; `end` ends it.
        """
        request_id = f"{self._id_start}{next(self._id_numbers):08x}"
        served = Served(request_id, method, event, context, time.monotonic(), parent)
        if parent is not None:
            served.identity = parent.identity
        set_served(served)
        _told.set({})
        structlog.contextvars.bind_contextvars(request_id=request_id, method=method)
        for watcher in self._watchers:
            watcher.begun(served)
        return served

    def end(self, served: Served) -> None:
        """Tell the watchers of a request that has ended, as soon as nothing is more urgent."""
        served.ended_s = time.monotonic()
        if self._watchers:
            asyncio.get_running_loop().call_soon(self._tell_end, served)

    def _tell_end(self, served: Served) -> None:
        for watcher in self._watchers:
            watcher.ended(served)

    def wrap(self, name: str, behavior: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        """Return the handler of the method *name* that does as *behavior* does, with all around."""

        async def wrapped(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            served = self.begin(name, "request", context)
            served.task = asyncio.current_task()
            self._open[served.request_id] = served

            async def serve() -> Any:
                served.identity = identity = self._identify(context)
                # after it is known whom the audit log names
                identity.require(self._least_role(name))
                # here, so that those whom nobody knows keep nobody out
                self._check_room()
                return await behavior(request, context)

            try:
                return await self.attempt(served, serve)
            except Problem as found:
                problem = _bare(found)
            except asyncio.CancelledError:
                if not served.called_off:
                    raise
                if sys.version_info >= (3, 11) and served.task is not None:
                    served.task.uncancel()
                problem = ended_by_somebody()
                served.fail(problem)
            except ClientGoneError:
                return None
            finally:
                del self._open[served.request_id]
                # the task keeps its context, and that the request: as a circle all of it would stay
                served.task = None
            # here, where no error is being handled: gRPC keeps what it raises for as long as the
            # call, which is in the frames that this goes through, and with it what it came from
            await self._abort(context, problem, served.request_id)
            return None

        return wrapped

    def _check_room(self) -> None:
        """Check that there are not too many calls open, the one that asks among them.

        Raises:
            Problem: SERVER_BUSY.
        """
        if len(self._open) > self._call_count:
            raise Problem(
                Reason.SERVER_BUSY,
                f"{self._call_count} calls are open, which is the most; try again later",
                argument="call_count",
                given=str(len(self._open)),
                allowed=str(self._call_count),
                retry_after_s=BUSY_S,
            )

    async def _abort(
        self, context: grpc.aio.ServicerContext[Any, Any], problem: Problem, request_id: str
    ) -> None:
        as_call: Any = rpc_status.to_status(self.status(problem, request_id))
        await context.abort(as_call.code, as_call.details, as_call.trailing_metadata)

    async def attempt(
        self, served: Served, behavior: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> Any:
        """Do what a request asks for, end it, and log one line of it.

        Args:
            served: the request.
            behavior: does it.
            arguments: for *behavior*.

        Raises:
            Problem: what *behavior* raises; SERVER_DEFECT for what it should not.
            ClientGoneError: if nobody waits any more.
        """
        served.outcome, served.status = "CANCELLED", StatusCode.CANCELLED
        try:
            reply = await behavior(*arguments)
            served.outcome, served.status = "OK", StatusCode.OK
            return reply
        except Problem as problem:
            served.fail(problem)
            raise
        except ClientGoneError:
            served.outcome = "CLIENT_GONE"
            raise
        except Exception as error:
            # Its text may name paths or other users' data: it stays here.
            log.exception("defect")
            text = "the server failed; its log says why"
            defect = Problem(Reason.SERVER_DEFECT, text)
            served.fail(defect)
            raise defect from error
        finally:
            self.end(served)
            total_ms = _ms(served.ended_s - served.started_s)
            line = partial(log.info, served.event, outcome=served.outcome, total_ms=total_ms)
            # first the reply, then the line of it
            asyncio.get_running_loop().call_soon(partial(line, **_told.get()))

    def status(self, problem: Problem, request_id: str) -> status_pb2.Status:
        """Return the status of a request's problem; a text that it had to cut is kept."""
        status: status_pb2.Status = wire.status_from_problem(problem, request_id)
        if status.message != problem.message:
            self._texts.keep(request_id, problem.message, current_identity().tenant)
        return status


def _bare(problem: Problem) -> Problem:
    """Return a problem without the frames that it came through: they hold the request's data."""
    problem.__cause__ = problem.__context__ = None
    return problem.with_traceback(None)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
