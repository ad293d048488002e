"""The synchronous client's way to the server: what moves the bytes of `_tries`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import grpc
import tenacity

from opferry import _calls, errors, wire
from opferry._calls import Clock, PreparedCall
from opferry._channel import channel_options, proxy_for
from opferry._retry import retry_options
from opferry._tries import OnProgress, StreamTry, unary_result
from opferry.config import ClientConfig
from opferry.core.execution import ServerInfo
from opferry.core.problems import Problem
from opferry.operators.call import CallResult
from opferry.v1 import operator_service_pb2 as pb

_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Transport")


class Transport:
    """A connection, and calls on it within their time; the public methods are the client's."""

    def __init__(self, config: ClientConfig) -> None:
        """Connect as *config* says; nothing is sent before the first call."""
        self.config = config
        self._proxy = proxy_for(config.target)
        self._channel = grpc.insecure_channel(config.target, channel_options(config.target))
        self._info: ServerInfo | None = None
        self._closed = False
        self._lock = threading.Lock()

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
        self._channel.close()

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
        if not unary:
            return self._stream(StreamTry(prepared, info.limits, on_progress), clock)
        request = wire.unary_request(prepared.call, prepared.data)
        response = self._call(prepared.call.operator.name, request, clock)
        return unary_result(prepared, response)

    def _ask(self, clock: Clock) -> ServerInfo:
        response = self._call("GetServerInfo", pb.GetServerInfoRequest(), clock)
        info = wire.server_info_from_message(response)
        self._info = info
        return info

    def _stream(self, attempt: StreamTry, clock: Clock) -> CallResult:
        go_on = threading.Event()
        ended = False

        def frames() -> Iterator[bytes]:
            yield attempt.header()
            go_on.wait()
            if not ended:
                yield from attempt.chunks()

        method: Any = self._channel.stream_stream(wire.methods["Execute"].path)
        responses: Any = method(frames(), timeout=clock.left_s())
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

    def _unary(self, name: str, request: Any, timeout: float | None) -> Any:
        clock = self._clock(timeout)
        return self._retrying(lambda: self._call(name, request, clock), clock)

    def _call(self, name: str, request: Any, clock: Clock) -> Any:
        method = wire.methods[name]
        call = self._channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        try:
            return call(request, timeout=clock.left_s())
        except grpc.RpcError as error:
            raise self._translate(error) from error

    def _retrying(self, once: Callable[[], _T], clock: Clock) -> _T:
        options = retry_options(self.config.retry, clock.left_s())
        try:
            return tenacity.Retrying(**options)(once)
        except ValueError as error:
            # all that grpc says of a closed channel
            if self._closed:
                raise errors.closed(self.config.target) from error
            raise

    def _clock(self, timeout: float | None) -> Clock:
        return _calls.clock(self.config.timeout_s if timeout is None else timeout)

    def _translate(self, error: grpc.RpcError) -> errors.OpFerryError:
        return errors.from_rpc_error(error, self.config.target, self._proxy)
