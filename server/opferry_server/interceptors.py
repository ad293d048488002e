"""What happens around every call: a request id, one log line, and problems turned into statuses."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
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


def current_request_id() -> str:
    """Return the id of the request that the running handler serves."""
    return _request_id.get()


def begin_request(method: str) -> str:
    """Give the running task a request id of its own, for its log lines too, and return it."""
    request_id = f"r-{secrets.token_hex(8)}"
    _request_id.set(request_id)
    structlog.contextvars.bind_contextvars(request_id=request_id, method=method)
    return request_id


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


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the methods of the operator service; health and reflection pass as they are."""

    def __init__(self, texts: ErrorTexts) -> None:
        """Keep long error texts in *texts*."""
        self._texts = texts

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, wrapped."""
        handler: Any = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None or not path.startswith(f"/{wire.SERVICE_NAME}/"):
            return handler
        name = path.rsplit("/", 1)[-1]
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._wrap(name, handler.stream_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._wrap(name, handler.unary_unary),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _wrap(self, name: str, behavior: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def wrapped(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            request_id = begin_request(name)
            started_s = time.monotonic()
            outcome = "CANCELLED"
            try:
                reply = await behavior(request, context)
                outcome = "OK"
                return reply
            except Problem as problem:
                outcome = problem.reason.value
                await self._abort(context, problem, request_id)
            except ClientGoneError:
                outcome = "CLIENT_GONE"
            except Exception:
                # Its text may name paths or other users' data: it stays here.
                log.exception("defect")
                outcome = Reason.SERVER_DEFECT.value
                defect = Problem(Reason.SERVER_DEFECT, "the server failed; its log says why")
                await self._abort(context, defect, request_id)
            finally:
                log.info("request", outcome=outcome, total_ms=_ms(time.monotonic() - started_s))

        return wrapped

    async def _abort(
        self, context: grpc.aio.ServicerContext[Any, Any], problem: Problem, request_id: str
    ) -> None:
        status: status_pb2.Status = wire.status_from_problem(problem, request_id)
        if status.message != problem.message:
            self._texts.keep(request_id, problem.message)
        as_call: Any = rpc_status.to_status(status)
        await context.abort(as_call.code, as_call.details, as_call.trailing_metadata)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
