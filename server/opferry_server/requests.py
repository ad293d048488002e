"""What happens around every call: a request id, one log line, and problems turned into statuses."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc
import structlog
from google.rpc import status_pb2
from grpc_status import rpc_status

from opferry import wire
from opferry.core.problems import Problem, Reason

log = structlog.get_logger()

KEPT_TEXTS = 256
"""How many error texts that were too long for a reply are kept for GetErrorText."""

_request_id: ContextVar[str] = ContextVar("request_id")
_told: ContextVar[dict[str, Any]] = ContextVar("told")


def current_request_id() -> str:
    """Return the id of the request that the running handler serves."""
    return _request_id.get()


def begin_request(method: str) -> str:
    """Give the running task a request id of its own, for its log lines too, and return it."""
    request_id = f"r-{secrets.token_hex(8)}"
    _request_id.set(request_id)
    _told.set({})
    structlog.contextvars.bind_contextvars(request_id=request_id, method=method)
    return request_id


def tell(**fields: Any) -> None:
    """Have these fields in the line that is logged when the running handler is done."""
    _told.get().update(fields)


def _log_soon(event: str, **fields: Any) -> None:
    """Log a line as soon as nothing is more urgent: first the reply, then the line of it."""
    asyncio.get_running_loop().call_soon(partial(log.info, event, **fields))


class ClientGoneError(Exception):
    """The client closed its connection; nobody waits for an answer."""


class ErrorTexts:
    """The full texts of the last errors that had to be cut."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()

    def keep(self, request_id: str, text: str) -> None:
        """Keep a text; the oldest goes when there are `KEPT_TEXTS`."""
        self._texts[request_id] = text
        if len(self._texts) > KEPT_TEXTS:
            self._texts.popitem(last=False)

    def find(self, request_id: str) -> str:
        """Return a kept text.

        Raises:
            Problem: ERROR_TEXT_UNKNOWN.
        """
        if request_id not in self._texts:
            raise Problem(
                Reason.ERROR_TEXT_UNKNOWN,
                f"no text is kept for request {request_id[:64]!r}; the last {KEPT_TEXTS} texts "
                "that were too long for a reply are",
                argument="request_id",
                given=request_id[:64],
            )
        return self._texts[request_id]


class Requests:
    """Wraps the handlers of the operator service's methods."""

    def __init__(self, texts: ErrorTexts) -> None:
        """Keep long error texts in *texts*."""
        self._texts = texts

    def wrap(self, name: str, behavior: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        """Return the handler of the method *name* that does as *behavior* does, with all around."""

        async def wrapped(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            request_id = begin_request(name)
            try:
                return await self.attempt("request", behavior, request, context)
            except Problem as problem:
                as_call: Any = rpc_status.to_status(self.status(problem, request_id))
                await context.abort(as_call.code, as_call.details, as_call.trailing_metadata)
            except ClientGoneError:
                return None

        return wrapped

    async def attempt(
        self, event: str, behavior: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> Any:
        """Do what a request asks for, and log one line of it.

        Args:
            event: of the line.
            behavior: does it.
            arguments: for *behavior*.

        Raises:
            Problem: what *behavior* raises; SERVER_DEFECT for what it should not.
            ClientGoneError: if nobody waits any more.
        """
        started_s = time.monotonic()
        outcome = "CANCELLED"
        try:
            reply = await behavior(*arguments)
            outcome = "OK"
            return reply
        except Problem as problem:
            outcome = problem.reason.value
            raise
        except ClientGoneError:
            outcome = "CLIENT_GONE"
            raise
        except Exception as error:
            # Its text may name paths or other users' data: it stays here.
            log.exception("defect")
            outcome = Reason.SERVER_DEFECT.value
            text = "the server failed; its log says why"
            raise Problem(Reason.SERVER_DEFECT, text) from error
        finally:
            total_ms = _ms(time.monotonic() - started_s)
            _log_soon(event, outcome=outcome, total_ms=total_ms, **_told.get())

    def status(self, problem: Problem, request_id: str) -> status_pb2.Status:
        """Return the status of a request's problem; a text that it had to cut is kept."""
        status: status_pb2.Status = wire.status_from_problem(problem, request_id)
        if status.message != problem.message:
            self._texts.keep(request_id, problem.message)
        return status


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
