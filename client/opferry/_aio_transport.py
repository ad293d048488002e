"""The asynchronous client's way to the server: what moves the bytes of `_tries`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import tenacity

from opferry import _calls, errors, wire
from opferry._calls import Clock, PreparedCall
from opferry._channel import (
    call_metadata,
    channel_credentials,
    channel_options,
    channel_target,
    proxy_for,
)
from opferry._forks import CallUnderWay, check, grpc, make_channel
from opferry._leases import Leases
from opferry._many import ManySession
from opferry._result_buffers import ResultBuffers
from opferry._retry import Outage, after_async, may_retry, retry_options
from opferry._sessions import Session, StopError, broken_off
from opferry._tries import OnProgress, StreamTry, unary_result
from opferry.config import ClientConfig
from opferry.core.execution import ServerInfo
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason, StatusCode
from opferry.operators.base import Plan
from opferry.operators.call import CallResult
from opferry.results import CallOutcome
from opferry.v1 import operator_service_pb2 as pb

_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="AsyncTransport")


class AsyncTransport:
    """A connection, and calls on it within their time; the public methods are the client's."""

    def __init__(self, config: ClientConfig) -> None:
        """Connect as *config* says; nothing is sent before the first call.

        Raises:
            RequestError: if a file of its certificates cannot be read.
            TransportError: if a name of a list of servers has no address, or gRPC did not outlive
                a fork.
        """
        check()
        self._process = os.getpid()
        self.config = config
        self._proxy = proxy_for(config.target)
        target = channel_target(config)
        credentials, options = channel_credentials(config.tls), channel_options(config)
        self._channel = make_channel(
            lambda: (
                grpc.aio.insecure_channel(target, options)
                if credentials is None
                else grpc.aio.secure_channel(target, credentials, options)
            )
        )
        self._methods: dict[str, Any] = {}
        self._info: ServerInfo | None = None
        self._closed = False
        self._device_leases: list[str] = []  # those of `with` blocks, the latest last
        self._buffers = ResultBuffers(config.kept_result_bytes)
        self._leases = Leases(config, self._buffers)
        # also for a client that nobody closes: the connection's thread would stay
        weakref.finalize(self, self._leases.close).atexit = False

    async def __aenter__(self: _Self) -> _Self:
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
        self._closed = True
        self._leases.close()
        self._buffers.close()
        if os.getpid() == self._process:
            await self._channel.close()

    async def _execute(
        self, prepared: PreparedCall, timeout: float | None, on_progress: OnProgress | None
    ) -> CallResult:
        clock = self._clock(timeout)

        async def once() -> CallResult:
            try:
                return await self._once(prepared, clock, on_progress)
            except Problem as problem:
                raise errors.from_problem(problem) from problem
            except errors.TransportError:
                self._info = None  # the server that comes back may be another
                raise

        return await self._retrying(once, clock)

    async def _once(
        self, prepared: PreparedCall, clock: Clock, on_progress: OnProgress | None
    ) -> CallResult:
        info = self._info
        if info is None:
            info = await self._ask(clock)
        try:
            unary = _calls.fits_unary(prepared, info.limits)
        except errors.TooLargeError:
            # refused by what the server said some time ago: ask again
            info = await self._ask(clock)
            unary = _calls.fits_unary(prepared, info.limits)
        if not unary or _calls.size_of(prepared) >= _calls.SHARED_BYTES:
            result = await self._shared(prepared, info, clock, on_progress, hasty=unary)
            if result is not None:
                return result
        if unary:
            request = prepared.unary_request()
            response = await self._call(prepared.call.operator.name, request, clock)
            return unary_result(prepared, response, self._buffers)
        return await self._stream(
            StreamTry(prepared, info.limits, on_progress, self._buffers), clock
        )

    async def _shared(
        self,
        prepared: PreparedCall,
        info: ServerInfo,
        clock: Clock,
        on_progress: OnProgress | None,
        *,
        hasty: bool,
    ) -> CallResult | None:
        """Make a call by memory shared with the server; None: where that cannot be had."""
        if self._leases.are_stale():
            info = await self._ask(clock)
        attempt = await self._leases.attempt_in_thread(
            prepared, info, on_progress, clock.left_s(), hasty=hasty
        )
        if attempt is None:
            return None
        try:
            with attempt:
                if on_progress is not None:
                    return await self._stream(attempt, clock)
                return attempt.result_of(
                    await self._call("ExecuteShared", attempt.request(), clock)
                )
        except errors.OpFerryError as error:
            if not self._leases.lets_send_data(error):
                raise
            return None

    async def _ask(self, clock: Clock) -> ServerInfo:
        response = await self._call("GetServerInfo", pb.GetServerInfoRequest(), clock)
        info = wire.server_info_from_message(response)
        self._info = info
        return info

    async def _limits(self, timeout: float | None) -> LimitsConfig:
        """Return what the server allows, asked once."""
        info = self._info
        if info is None:
            clock = self._clock(timeout)

            async def ask() -> ServerInfo:
                return await self._ask(clock)

            info = await self._retrying(ask, clock)
        return info.limits

    async def _stream(self, attempt: StreamTry, clock: Clock) -> CallResult:
        method: Any = self._channel.stream_stream(wire.methods["Execute"].path)
        call: Any = method(timeout=clock.left_s(), metadata=self._metadata())

        async def upload() -> None:
            # A call that ended refuses what is written; its status reaches the reader.
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for frame in attempt.chunks():
                    await call.write(frame)
                await call.done_writing()

        uploading: asyncio.Task[None] | None = None
        try:
            await call.write(attempt.header())
            if attempt.admitted:
                uploading = asyncio.ensure_future(upload())
            while (frame := await call.read()) is not grpc.aio.EOF:
                attempt.receive(frame)
                if attempt.admitted and uploading is None:
                    uploading = asyncio.ensure_future(upload())
            return attempt.result()
        except grpc.RpcError as error:
            raise self._translate(error) from error
        except asyncio.CancelledError:
            self._check_open()
            raise
        finally:
            call.cancel()
            if uploading is not None:
                uploading.cancel()
                await asyncio.gather(uploading, return_exceptions=True)

    async def _execute_many(
        self, session: ManySession, timeout: float | None
    ) -> AsyncIterator[CallOutcome]:
        """Yield the outcomes of many calls; those too large for the stream go their own way."""
        async with contextlib.aclosing(self._converse(session, timeout)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome, CallOutcome):
                    yield outcome
                    continue
                try:
                    value = await self._execute(outcome.prepared, timeout, None)
                except errors.OpFerryError as error:
                    yield CallOutcome(outcome.position, error=error)
                else:
                    yield CallOutcome(outcome.position, value)

    async def _converse(
        self, session: Session[_T], timeout: float | None
    ) -> AsyncGenerator[_T, None]:
        """Yield a session's results, over as many streams as it takes."""
        outage, silence_s = Outage(self.config.retry), self._clock(timeout).left_s()
        with self._under_way():
            while True:
                for result in session.results():
                    yield result
                if session.finished:
                    return
                try:
                    async with contextlib.aclosing(
                        self._converse_once(session, outage, silence_s)
                    ) as results:
                        async for result in results:
                            yield result
                except StopError as stop:
                    session.stop(stop.error)
                except errors.OpFerryError as error:
                    pause_s = outage.pause_s(error, begun=session.welcomed)
                    if pause_s is None:
                        session.stop(error)
                    else:
                        await asyncio.sleep(pause_s)

    async def _converse_once(
        self, session: Session[_T], outage: Outage, silence_s: float
    ) -> AsyncGenerator[_T, None]:
        to_send: asyncio.Queue[Iterator[bytes]] = asyncio.Queue()
        header = session.header()
        method: Any = self._channel.stream_stream(wire.methods[session.method].path)
        try:
            call: Any = method(metadata=self._metadata())
        except grpc.aio.UsageError as error:
            raise errors.closed(self.config.target) from error

        async def send() -> None:
            # A call that ended refuses what is written; its status reaches the reader.
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(header)
                while True:
                    for frame in await to_send.get():
                        await call.write(frame)

        sending = asyncio.ensure_future(send())
        try:
            while (frame := await _in_time(call.read(), silence_s)) is not grpc.aio.EOF:
                session.receive(frame)
                taken = True
                while taken:
                    for some in session.to_send():
                        to_send.put_nowait(some)
                    taken = False
                    for result in session.results():
                        outage.over()
                        yield result
                        taken = True  # which has made room
                if session.all_sent and not session.under_way:
                    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                        # the server ends the stream itself, and does not think it broken
                        await call.done_writing()
                        await _in_time(call.read(), silence_s)
                    return
            raise errors.unreadable(Problem(Reason.STREAM_PROTOCOL, "the stream ended too soon"))
        except grpc.RpcError as error:
            raise broken_off(self._translate(error)) from error
        except asyncio.CancelledError:
            self._check_open()
            raise
        finally:
            call.cancel()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _plan(
        self,
        name: str,
        inputs: Mapping[str, Any],
        attributes: Mapping[str, Any],
        operator_package: str,
        timeout: float | None,
    ) -> Plan:
        """Ask the server what a call would take; see the typed methods."""
        call = _calls.prepare_plan(name, inputs, attributes, operator_package)
        response = await self._unary("Plan", wire.plan_request(call), timeout)
        return _calls.plan_of(call, response)

    async def _unary(self, name: str, request: Any, timeout: float | None) -> Any:
        clock = self._clock(timeout)

        async def once() -> Any:
            return await self._call(name, request, clock)

        return await self._retrying(once, clock)

    async def _call(self, name: str, request: Any, clock: Clock) -> Any:
        try:
            return await self._method(name)(
                request, timeout=clock.left_s(), metadata=self._metadata()
            )
        except grpc.RpcError as error:
            raise self._translate(error) from error
        except asyncio.CancelledError:
            self._check_open()
            raise

    def _method(self, name: str) -> Any:
        call = self._methods.get(name)
        if call is None:
            method = wire.all_methods[name]
            call = self._methods[name] = self._channel.unary_unary(
                method.path,
                None if method.as_bytes else method.request.SerializeToString,
                None if method.as_bytes else method.response.FromString,
            )
        return call

    async def _retrying(self, once: Callable[[], Awaitable[_T]], clock: Clock) -> _T:
        begun_s, left_s = time.monotonic(), clock.left_s()
        try:
            with self._under_way():
                try:
                    return await once()
                except errors.OpFerryError as error:
                    if not may_retry(error):
                        raise
                    first = error
                options = retry_options(self.config.retry, left_s, begun_s)
                return await tenacity.AsyncRetrying(**options)(after_async(first, once))
        except grpc.aio.UsageError as error:
            raise errors.closed(self.config.target) from error

    def _under_way(self) -> CallUnderWay:
        """Return a call for a `with` block.

        Raises:
            TransportError: if this process is not the one that the client was made in.
        """
        if os.getpid() != self._process:
            raise errors.TransportError(
                "this client was made before this process was forked, and an event loop does not "
                "outlive that: make a client in this process",
                status=StatusCode.FAILED_PRECONDITION,
            )
        return CallUnderWay()

    def _check_open(self) -> None:
        """Tell the end of a closed client's call from the caller's own cancel."""
        if self._closed:
            raise errors.closed(self.config.target)

    def _metadata(self) -> Any:
        """Return what goes with each call."""
        leases = self._device_leases
        return call_metadata(self.config, leases[-1] if leases else self.config.device_lease)

    @contextlib.asynccontextmanager
    async def _replies(self, name: str, request: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """Ask for a stream of replies, which ends with the `async with` block."""
        with self._under_way():
            method = wire.all_methods[name]
            call: Any = self._channel.unary_stream(
                method.path, method.request.SerializeToString, method.response.FromString
            )
            try:
                replies = call(request, metadata=self._metadata())
            except grpc.aio.UsageError as error:
                raise errors.closed(self.config.target) from error

            async def translated() -> AsyncIterator[Any]:
                try:
                    async for reply in replies:
                        yield reply
                except grpc.RpcError as error:
                    raise self._translate(error) from error
                except asyncio.CancelledError:
                    self._check_open()
                    raise

            try:
                yield translated()
            finally:
                replies.cancel()

    @contextlib.contextmanager
    def _leased(self, token: str) -> Iterator[None]:
        """Send the token of a lease of a device with each call for a `with` block."""
        self._device_leases.append(token)
        try:
            yield
        finally:
            self._device_leases.remove(token)

    def _clock(self, timeout: float | None) -> Clock:
        return _calls.clock(self.config.timeout_s if timeout is None else timeout)

    def _translate(self, error: grpc.RpcError) -> errors.OpFerryError:
        if self._closed and error.code() is grpc.StatusCode.CANCELLED:
            return errors.closed(self.config.target)
        return errors.from_rpc_error(
            error, self.config.target, self._proxy, encrypted=self.config.tls is not None
        )


async def _in_time(read: Awaitable[Any], silence_s: float) -> Any:
    """Return what comes.

    Raises:
        DeadlineError: if nothing comes for too long.
    """
    reading = asyncio.ensure_future(read)
    try:
        await asyncio.wait((reading,), timeout=silence_s)
        if reading.done():
            return reading.result()
    finally:
        reading.cancel()
    raise errors.silent(silence_s)
