"""The asynchronous client, the twin of `opferry.client`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import grpc
import tenacity

from opferry import _calls, errors, wire
from opferry._calls import Clock, PreparedCall
from opferry._channel import channel_options, proxy_for
from opferry._connect import client_config
from opferry._retry import retry_options
from opferry._tries import OnProgress, StreamTry, unary_result
from opferry.config import ClientConfig, RetryConfig
from opferry.core.execution import ExecutionOptions, ServerInfo
from opferry.core.problems import Problem
from opferry.core.tensors import HostTensor
from opferry.operators.base import Plan
from opferry.operators.call import Call, CallResult
from opferry.results import ApplyRotaryPosEmbGradResult
from opferry.v1 import operator_service_pb2 as pb

__all__ = ["AsyncClient", "connect"]

_T = TypeVar("_T")


def connect(
    target: str | None = None, *, timeout: float = 600.0, retry: RetryConfig | None = None
) -> AsyncClient:
    """Return an asynchronous client; arguments and errors as for `opferry.connect`.

    Args:
        target: "host:port"; None: what OPFERRY_TARGET says.
        timeout: seconds that a call may take where it does not say.
        retry: when a call is tried again.
    """
    return AsyncClient(client_config(target, timeout, retry))


class AsyncClient:
    """A connection to a server, for one event loop: use it in an `async with`, or close it."""

    def __init__(self, config: ClientConfig) -> None:
        """Connect as *config* says; nothing is sent before the first call."""
        self.config = config
        self._proxy = proxy_for(config.target)
        self._channel = grpc.aio.insecure_channel(config.target, channel_options(config.target))
        self._info: ServerInfo | None = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled. Closing twice is harmless."""
        await self._channel.close()

    async def apply_rotary_pos_emb_grad(
        self,
        grad_query_embed: Any,
        grad_key_embed: Any,
        cos: Any,
        sin: Any,
        *,
        query: Any = None,
        key: Any = None,
        rotary_mode: str = "half",
        layout: int | str = 1,
        timeout: float | None = None,
        check: bool = True,
        keep_strides: bool = False,
        operator_package: str = "",
        repeat: int = 1,
        checksum: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ApplyRotaryPosEmbGradResult:
        """Run the backward of rotary position embedding on the server.

        Shapes for layout BSND, SBND and TND in turn; one dtype, float32, float16 or bfloat16
        (ml_dtypes), for all arrays; any strides. The arrays are never changed.

        Args:
            grad_query_embed: (B, S, Nq, D), (S, B, Nq, D) or (T, Nq, D); D even, at most 1024.
            grad_key_embed: the same with Nk in place of Nq.
            cos: (Bc, S, 1, D), (S, Bc, 1, D) or (T, 1, D); Bc is 1 or B.
            sin: shaped as cos.
            query: shaped as grad_query_embed; together with key it asks for grad_cos and grad_sin.
            key: shaped as grad_key_embed.
            rotary_mode: "half".
            layout: 1 or "BSND", 2 or "SBND", 4 or "TND".
            timeout: seconds for the whole call, tries included; None: the client's own.
            check: check the contract here and on the server; False lets the device itself judge.
            keep_strides: send views as views instead of compact copies.
            operator_package: which of the server's operator packages runs it; "": its default.
            repeat: how often the operator runs; each run is timed.
            checksum: protect inputs and outputs by XXH3 digests.
            on_progress: called with each `Progress`, in the event loop.

        Returns:
            The gradients; unpacks as (grad_query, grad_key, grad_cos, grad_sin), the last two None
            without query and key. `.execution` says where, by what and how fast.

        Raises:
            RequestError: the call breaks the contract or a limit; nothing was run.
            ServerError: the server or its device failed, or stayed busy.
            TransportError: the server cannot be reached.
            DeadlineError: the time was over.
        """
        prepared = _calls.prepare(
            "ApplyRotaryPosEmbGrad",
            _calls.rotary_grad_inputs(grad_query_embed, grad_key_embed, cos, sin, query, key),
            {"rotary_mode": rotary_mode, "layout": layout},
            ExecutionOptions(check=check, repeat=repeat, output_digests=checksum),
            operator_package=operator_package,
            keep_strides=keep_strides,
            checksum=checksum,
        )
        return ApplyRotaryPosEmbGradResult.of(await self._execute(prepared, timeout, on_progress))

    async def plan_apply_rotary_pos_emb_grad(
        self,
        grad_query_embed: Any,
        grad_key_embed: Any,
        cos: Any,
        sin: Any,
        *,
        query: Any = None,
        key: Any = None,
        rotary_mode: str = "half",
        layout: int | str = 1,
        timeout: float | None = None,
        operator_package: str = "",
    ) -> Plan:
        """Ask the server what a call would take; no tensor data is sent.

        Args:
            grad_query_embed: a numpy array or a `TensorSpec`, as are all that follow; shapes and
                dtypes as for `apply_rotary_pos_emb_grad`.
            grad_key_embed: see there.
            cos: see there.
            sin: see there.
            query: see there.
            key: see there.
            rotary_mode: see there.
            layout: see there.
            timeout: see there.
            operator_package: see there.

        Returns:
            The outputs' specs, template, tiling key, broadcast axes and bytes.

        Raises:
            OpFerryError: as `apply_rotary_pos_emb_grad`.
        """
        given = _calls.rotary_grad_inputs(grad_query_embed, grad_key_embed, cos, sin, query, key)
        attributes = {"rotary_mode": rotary_mode, "layout": layout}
        call = _calls.prepare_plan("ApplyRotaryPosEmbGrad", given, attributes, operator_package)
        response = await self._unary("Plan", wire.plan_request(call), timeout)
        return wire.plan_from_response(call, response)

    async def execute(
        self,
        call: Call,
        tensors: Mapping[str, HostTensor],
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> CallResult:
        """Run any operator's call; what the typed methods and the validation are made of.

        Args:
            call: operator, attributes, specs, options.
            tensors: the inputs by name, with the call's specs.
            timeout: seconds for the whole call; None: the client's own.
            on_progress: called with each `Progress`.

        Raises:
            OpFerryError: as `apply_rotary_pos_emb_grad`.
        """
        try:
            prepared = _calls.prepare_tensors(call, tensors)
        except Problem as problem:
            raise errors.from_problem(problem) from problem
        return await self._execute(prepared, timeout, on_progress)

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Return what the server is, can run and allows, as of now.

        Args:
            timeout: seconds; None: the client's own.

        Raises:
            OpFerryError: a TransportError or a DeadlineError.
        """
        response = await self._unary("GetServerInfo", pb.GetServerInfoRequest(), timeout)
        info = wire.server_info_from_message(response)
        self._info = info
        return info

    async def error_text(self, request_id: str, *, timeout: float | None = None) -> str:
        """Return the full text of an error whose text was cut.

        Args:
            request_id: the error's `request_id`.
            timeout: seconds; None: the client's own.

        Raises:
            OpFerryError: a RequestError if the server keeps no text for it.
        """
        request = pb.GetErrorTextRequest(request_id=request_id)
        return str((await self._unary("GetErrorText", request, timeout)).text)

    async def _execute(
        self, prepared: PreparedCall, timeout: float | None, on_progress: OnProgress | None
    ) -> CallResult:
        clock = self._clock(timeout)

        async def once() -> CallResult:
            info = self._info or await self.server_info(timeout=clock.left_s())
            if _calls.fits_unary(prepared, info.limits):
                name = prepared.call.operator.name
                request = wire.unary_request(prepared.call, prepared.data)
                return unary_result(name, await self._call(name, request, clock))
            return await self._stream(StreamTry(prepared, info.limits, on_progress), clock)

        return await self._retrying(once, clock)

    async def _stream(self, attempt: StreamTry, clock: Clock) -> CallResult:
        method: Any = self._channel.stream_stream(wire.methods["Execute"].path)
        call: Any = method(timeout=clock.left_s())

        async def upload() -> None:
            # A call that ended refuses what is written; its status reaches the reader.
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for frame in attempt.chunks():
                    await call.write(frame)
                await call.done_writing()

        uploading: asyncio.Task[None] | None = None
        try:
            await call.write(attempt.header())
            while (frame := await call.read()) is not grpc.aio.EOF:
                attempt.receive(frame)
                if attempt.admitted and uploading is None:
                    uploading = asyncio.ensure_future(upload())
            return attempt.result()
        except grpc.RpcError as error:
            raise self._translate(error) from error
        finally:
            call.cancel()
            if uploading is not None:
                uploading.cancel()
                await asyncio.gather(uploading, return_exceptions=True)

    async def _unary(self, name: str, request: Any, timeout: float | None) -> Any:
        clock = self._clock(timeout)

        async def once() -> Any:
            return await self._call(name, request, clock)

        return await self._retrying(once, clock)

    async def _call(self, name: str, request: Any, clock: Clock) -> Any:
        method = wire.methods[name]
        call = self._channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        try:
            return await call(request, timeout=clock.left_s())
        except grpc.RpcError as error:
            raise self._translate(error) from error

    async def _retrying(self, once: Callable[[], Awaitable[_T]], clock: Clock) -> _T:
        options = retry_options(self.config.retry, clock.left_s())
        try:
            return await tenacity.AsyncRetrying(**options)(once)
        except grpc.aio.UsageError as error:
            raise errors.closed(self.config.target) from error

    def _clock(self, timeout: float | None) -> Clock:
        return Clock(self.config.timeout_s if timeout is None else timeout)

    def _translate(self, error: grpc.RpcError) -> errors.OpFerryError:
        return errors.from_rpc_error(error, self.config.target, self._proxy)
