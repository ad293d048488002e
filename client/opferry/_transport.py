"""The synchronous client's way to the server: what moves the bytes of `_tries`."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
from opferry._forks import CallUnderWay, check, close_channel, grpc, make_channel
from opferry._leases import Leases
from opferry._many import ManySession
from opferry._result_buffers import ResultBuffers
from opferry._retry import Outage, after, may_retry, retry_options
from opferry._sessions import Session, StopError, broken_off
from opferry._tries import OnProgress, StreamTry, unary_result
from opferry._watchdog import Watchdog
from opferry.config import ClientConfig
from opferry.core.execution import ServerInfo
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.operators.base import Plan
from opferry.operators.call import CallResult
from opferry.results import CallOutcome
from opferry.v1 import operator_service_pb2 as pb

_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Transport")


class Transport:
    """A connection, and calls on it within their time; the public methods are the client's."""

    def __init__(self, config: ClientConfig) -> None:
        """Connect as *config* says; nothing is sent before the first call.

        Raises:
            RequestError: if a file of its certificates cannot be read.
            TransportError: if a name of a list of servers has no address, or gRPC did not outlive
                a fork.
        """
        self.config = config
        self._proxy = proxy_for(config.target)
        self._info: ServerInfo | None = None
        self._closed = False
        self._device_leases: list[str] = []  # those of `with` blocks, the latest last
        self._buffers = ResultBuffers(config.kept_result_bytes)
        self._open()

    def _open(self) -> None:
        """Make a channel, and all else that belongs to this process alone."""
        check()
        process = os.getpid()
        target = channel_target(self.config)
        credentials, options = channel_credentials(self.config.tls), channel_options(self.config)
        self._channel = make_channel(
            lambda: (
                grpc.insecure_channel(target, options)
                if credentials is None
                else grpc.secure_channel(target, credentials, options)
            )
        )
        self._methods: dict[str, Any] = {}
        self._leases = Leases(self.config, self._buffers)
        # also for a client that nobody closes: the connection's thread would stay, and gRPC keeps
        # each channel that is not closed, to make it anew in a forked child
        for close in (
            self._leases.close,
            partial(close_channel, self._channel, process),
        ):
            weakref.finalize(self, close).atexit = False
        # last: another thread of a forked child takes it for the sign that all is there
        self._process = process

    def _under_way(self) -> CallUnderWay:
        """Return a call for a `with` block; in a forked child, on a channel of its own.

        Raises:
            TransportError: if gRPC did not outlive the fork.
        """
        if os.getpid() != self._process and not self._closed:
            self._open()
        return CallUnderWay()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls under way are cancelled. Closing twice is harmless."""
        self._closed = True
        self._leases.close()
        self._buffers.close()
        close_channel(self._channel, self._process)

    def _execute(
        self, prepared: PreparedCall, timeout: float | None, on_progress: OnProgress | None
    ) -> CallResult:
        clock = self._clock(timeout)

        def once() -> CallResult:
            try:
                return self._once(prepared, clock, on_progress)
            except Problem as problem:
                raise errors.from_problem(problem) from problem
            except errors.TransportError:
                self._info = None  # the server that comes back may be another
                raise

        return self._retrying(once, clock)

    def _once(
        self, prepared: PreparedCall, clock: Clock, on_progress: OnProgress | None
    ) -> CallResult:
        info = self._info
        if info is None:
            info = self._ask(clock)
        try:
            unary = _calls.fits_unary(prepared, info.limits)
        except errors.TooLargeError:
            # refused by what the server said some time ago: ask again
            info = self._ask(clock)
            unary = _calls.fits_unary(prepared, info.limits)
        if not unary or _calls.size_of(prepared) >= _calls.SHARED_BYTES:
            result = self._shared(prepared, info, clock, on_progress, hasty=unary)
            if result is not None:
                return result
        if unary:
            request = prepared.unary_request()
            response = self._call(prepared.call.operator.name, request, clock)
            return unary_result(prepared, response, self._buffers)
        return self._stream(StreamTry(prepared, info.limits, on_progress, self._buffers), clock)

    def _shared(
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
            info = self._ask(clock)
        attempt = self._leases.attempt(prepared, info, on_progress, hasty=hasty)
        if attempt is None:
            return None
        try:
            with attempt:
                if on_progress is not None:
                    return self._stream(attempt, clock)
                return attempt.result_of(self._call("ExecuteShared", attempt.request(), clock))
        except errors.OpFerryError as error:
            if not self._leases.lets_send_data(error):
                raise
            return None

    def _ask(self, clock: Clock) -> ServerInfo:
        response = self._call("GetServerInfo", pb.GetServerInfoRequest(), clock)
        info = wire.server_info_from_message(response)
        self._info = info
        return info

    def _limits(self, timeout: float | None) -> LimitsConfig:
        """Return what the server allows, asked once."""
        info = self._info
        if info is None:
            clock = self._clock(timeout)
            info = self._retrying(lambda: self._ask(clock), clock)
        return info.limits

    def _stream(self, attempt: StreamTry, clock: Clock) -> CallResult:
        go_on = threading.Event()
        ended = False
        if attempt.admitted:
            go_on.set()

        def frames() -> Iterator[bytes]:
            yield attempt.header()
            go_on.wait()
            if not ended:
                yield from attempt.chunks()

        method: Any = self._channel.stream_stream(wire.methods["Execute"].path)
        responses: Any = method(frames(), timeout=clock.left_s(), metadata=self._metadata())
        try:
            for frame in responses:
                attempt.receive(frame)
                if attempt.admitted:
                    go_on.set()
            return attempt.result()
        except grpc.RpcError as error:
            raise self._translate(error) from error
        finally:
            ended = True
            go_on.set()
            responses.cancel()

    def _execute_many(self, session: ManySession, timeout: float | None) -> Iterator[CallOutcome]:
        """Yield the outcomes of many calls; those too large for the stream go their own way."""
        for outcome in self._converse(session, timeout):
            if isinstance(outcome, CallOutcome):
                yield outcome
                continue
            try:
                value = self._execute(outcome.prepared, timeout, None)
            except errors.OpFerryError as error:
                yield CallOutcome(outcome.position, error=error)
            else:
                yield CallOutcome(outcome.position, value)

    def _converse(self, session: Session[_T], timeout: float | None) -> Iterator[_T]:
        """Yield a session's results, over as many streams as it takes."""
        outage, silence_s = Outage(self.config.retry), self._clock(timeout).left_s()
        with self._under_way():
            while True:
                yield from session.results()
                if session.finished:
                    return
                try:
                    yield from self._converse_once(session, outage, silence_s)
                except StopError as stop:
                    session.stop(stop.error)
                except errors.OpFerryError as error:
                    pause_s = outage.pause_s(error, begun=session.welcomed)
                    if pause_s is None:
                        session.stop(error)
                    else:
                        time.sleep(pause_s)

    def _converse_once(
        self, session: Session[_T], outage: Outage, silence_s: float
    ) -> Iterator[_T]:
        to_send: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()

        header = session.header()  # here, and not in gRPC's thread: it changes the session

        def frames() -> Iterator[bytes]:
            yield header
            while (some := to_send.get()) is not None:
                yield from some

        method: Any = self._channel.stream_stream(wire.methods[session.method].path)
        metadata = self._metadata()
        try:
            responses: Any = method(frames(), metadata=metadata)
        except ValueError as error:
            # all that grpc says of a closed channel
            raise errors.closed(self.config.target) from error
        watchdog = Watchdog(silence_s, responses.cancel)
        try:
            for frame in responses:
                watchdog.heard()
                session.receive(frame)
                taken = True
                while taken:
                    for some in session.to_send():
                        to_send.put(some)
                    taken = False
                    for result in session.results():
                        outage.over()
                        watchdog.pause()  # the time until the caller asks again is the caller's
                        yield result
                        watchdog.heard()
                        taken = True  # which has made room
                if session.all_sent and not session.under_way:
                    to_send.put(None)
                    with contextlib.suppress(grpc.RpcError):
                        # the server ends the stream itself, and does not think it broken
                        next(responses, None)
                    return
            raise errors.unreadable(Problem(Reason.STREAM_PROTOCOL, "the stream ended too soon"))
        except grpc.RpcError as error:
            if watchdog.barked:
                raise errors.silent(silence_s) from error
            raise broken_off(self._translate(error)) from error
        finally:
            watchdog.stop()
            to_send.put(None)
            responses.cancel()

    def _plan(
        self,
        name: str,
        inputs: Mapping[str, Any],
        attributes: Mapping[str, Any],
        operator_package: str,
        timeout: float | None,
    ) -> Plan:
        """Ask the server what a call would take; see the typed methods."""
        call = _calls.prepare_plan(name, inputs, attributes, operator_package)
        response = self._unary("Plan", wire.plan_request(call), timeout)
        return _calls.plan_of(call, response)

    def _unary(self, name: str, request: Any, timeout: float | None) -> Any:
        clock = self._clock(timeout)
        return self._retrying(lambda: self._call(name, request, clock), clock)

    def _call(self, name: str, request: Any, clock: Clock) -> Any:
        try:
            return self._method(name)(request, timeout=clock.left_s(), metadata=self._metadata())
        except grpc.RpcError as error:
            raise self._translate(error) from error

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

    def _retrying(self, once: Callable[[], _T], clock: Clock) -> _T:
        begun_s, left_s = time.monotonic(), clock.left_s()
        try:
            with self._under_way():
                try:
                    return once()
                except errors.OpFerryError as error:
                    if not may_retry(error):
                        raise
                    first = error
                options = retry_options(self.config.retry, left_s, begun_s)
                return tenacity.Retrying(**options)(after(first, once))
        except ValueError as error:
            # all that grpc says of a closed channel
            if self._closed:
                raise errors.closed(self.config.target) from error
            raise

    def _metadata(self) -> Any:
        """Return what goes with each call."""
        leases = self._device_leases
        return call_metadata(self.config, leases[-1] if leases else self.config.device_lease)

    @contextlib.contextmanager
    def _replies(self, name: str, request: Any) -> Iterator[Iterator[Any]]:
        """Ask for a stream of replies, which ends with the `with` block."""
        with self._under_way():
            method = wire.all_methods[name]
            call: Any = self._channel.unary_stream(
                method.path, method.request.SerializeToString, method.response.FromString
            )
            metadata = self._metadata()
            try:
                replies = call(request, metadata=metadata)
            except ValueError as error:
                # all that grpc says of a closed channel
                raise errors.closed(self.config.target) from error

            def translated() -> Iterator[Any]:
                try:
                    yield from replies
                except grpc.RpcError as error:
                    raise self._translate(error) from error

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
