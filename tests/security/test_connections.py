"""Peers that hold on to connections, calls or memory keep nobody else from being served."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import opferry
from opferry import errors, wire
from opferry_server.open_services import CONNECTION_CHECKS
from tests.security.conftest import ONCE, SecureServer
from tests.support import servers
from tests.support.credentials import TokenFile
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    Peer,
    call_headers,
    frame,
)
from tests.support.processes import MIB, eventually, rss_anon_bytes

CALLS = 4
CONNECTIONS = 40
INFO = wire.methods["GetServerInfo"]
HALF_A_MESSAGE = b"\0\0\0\1\0"
"""The beginning of a message of 256 bytes."""


class BoundedServer:
    """A server with small bounds, and tokens."""

    def __init__(self, folder: Path) -> None:
        self.tokens = TokenFile(folder / "tokens.toml")
        self.token = self.tokens.add("vision")
        self.lines = (
            *self.tokens.lines,
            "[connections]",
            f"count = {CONNECTIONS}",
            "handshake_s = 2",
            "idle_s = 3",
            "ping_s = 2",
            "ping_timeout_s = 2",
            "least_ping_s = 0.5",
        )
        self.limits = {"call_count": CALLS, "stream_idle_ms": 3000}
        self.address = ""
        self.pid = 0

    @property
    def bearer(self) -> tuple[str, str]:
        """The metadata with the token."""
        return ("authorization", f"Bearer {self.token}")

    def connect(self, **options: Any) -> opferry.Client:
        """Connect with the token."""
        return opferry.connect(self.address, token=self.token, **{"timeout": 30, **options})


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoundedServer]:
    """A server with small bounds."""
    folder = tmp_path_factory.mktemp("bounded")
    made = BoundedServer(folder)
    with servers.tcp(
        folder, lines=made.lines, limits=made.limits, credentials={"token": made.token}
    ) as server:
        made.address, made.pid = server.address, server.pid
        yield made


@contextlib.contextmanager
def peers(address: str, count: int = 1) -> Iterator[list[Peer]]:
    """Connect some peers for the length of a `with` block."""
    made: list[Peer] = []
    try:
        for _ in range(count):
            made.append(Peer(address))
            made[-1].greet()
        yield made
    finally:
        for peer in made:
            peer.close()


def test_a_peer_that_says_nothing_loses_its_connection(bounded: BoundedServer) -> None:
    """Without a greeting after the time for it, with one after the time without calls."""
    with contextlib.closing(Peer(bounded.address)) as silent:
        assert silent.is_closed_within(20)
    with peers(bounded.address) as (idle,):
        assert idle.is_closed_within(20)


@pytest.mark.full
def test_a_peer_that_dribbles_its_handshake_loses_its_connection(tmp_path: Path) -> None:
    """Byte by byte, a TLS handshake would take for ever; it gets as long as all others."""
    secure = SecureServer(tmp_path)
    lines = (*secure.lines, "[connections]", "handshake_s = 2")
    credentials = {"token": secure.vision, "tls": secure.tls}
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(into, out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    with servers.tcp(tmp_path, lines=lines, credentials=credentials) as server:
        peer = Peer(server.address)

        def dribble() -> None:
            with contextlib.suppress(OSError):
                for byte in out.read():
                    peer.socket.sendall(bytes([byte]))
                    time.sleep(0.2)

        thread = threading.Thread(target=dribble)
        thread.start()
        try:
            assert peer.is_closed_within(30)
        finally:
            peer.close()
            thread.join()


@pytest.mark.full
def test_a_peer_that_answers_no_ping_loses_its_connection(bounded: BoundedServer) -> None:
    """It has a call open, so it is not idle; but it is not there any more."""
    with peers(bounded.address) as (peer,):
        path = "/grpc.health.v1.Health/Watch"
        peer.send(HEADERS, END_HEADERS, 1, call_headers(path))
        peer.send(DATA, 1, 1, b"\0\0\0\0\0")
        assert peer.is_closed_within(30)


def test_half_sent_calls_of_those_nobody_knows_keep_nobody_out(bounded: BoundedServer) -> None:
    """They are refused before their messages come; a known caller's call needs no second try."""
    with bounded.connect(retry=ONCE) as client, peers(bounded.address, 4) as unknown:
        client.server_info()
        for peer in unknown:
            for stream in range(1, 201, 2):
                path = wire.methods["ApplyRotaryPosEmbGrad"].path
                peer.send(HEADERS, END_HEADERS, stream, call_headers(path))
                peer.send(DATA, 0, stream, HALF_A_MESSAGE)
        for _ in range(20):
            client.server_info()


@pytest.mark.full
def test_half_sent_calls_of_a_known_caller_end(bounded: BoundedServer) -> None:
    """They take the places for a while; who comes then is told to try again, and succeeds."""
    with bounded.connect() as client, peers(bounded.address) as (peer,):
        client.server_info()
        for number in range(CALLS):
            path = wire.methods["ApplyRotaryPosEmbGrad"].path
            block = call_headers(path, bounded.bearer)
            peer.send(HEADERS, END_HEADERS, 2 * number + 1, block)
            peer.send(DATA, 0, 2 * number + 1, HALF_A_MESSAGE)
        with bounded.connect(retry=ONCE) as impatient:

            def refused() -> bool:
                try:
                    impatient.server_info()
                except errors.ServerBusyError as error:
                    return error.argument == "call_count" and error.may_retry
                return False

            assert eventually(refused, 3)
        assert client.server_info().serving


def test_health_checks_are_for_all_and_bounded(bounded: BoundedServer) -> None:
    """Nobody needs a token for them, and no connection may have many open."""
    with grpc.insecure_channel(bounded.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        assert stub.Check(request, timeout=10).status == health_pb2.HealthCheckResponse.SERVING
        watches = [stub.Watch(request, timeout=30) for _ in range(CONNECTION_CHECKS)]
        for watch in watches:
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.Watch(request, timeout=10))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(request, timeout=10)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for watch in watches:
            watch.cancel()
        assert eventually(lambda: _checks(stub))
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="none"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with bounded.connect(retry=ONCE) as client:
            client.server_info()


def test_the_end_of_a_watch_leaves_the_others(tmp_path: Path) -> None:
    """Who still watches hears of the server's end although another has stopped watching."""
    with servers.tcp(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        first, second, third = (
            stub.Watch(health_pb2.HealthCheckRequest(service=wire.SERVICE_NAME), timeout=60)
            for _ in range(3)
        )
        for watch in (first, second, third):
            next(watch)
        first.cancel()
        with contextlib.suppress(grpc.RpcError):
            next(first)
        server.process.terminate()
        for watch in (second, third):
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_reflection_takes_a_token(bounded: BoundedServer) -> None:
    """What a server can do is told to its callers."""
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(bounded.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.ServerReflectionInfo(iter([request]), timeout=10))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        (reply,) = stub.ServerReflectionInfo(
            iter([request]), timeout=10, metadata=(bounded.bearer,)
        )
    names = {service.name for service in reply.list_services_response.service}
    assert {wire.SERVICE_NAME, wire.FARM_SERVICE_NAME, "grpc.health.v1.Health"} <= names


def test_metadata_bombs_are_refused(bounded: BoundedServer) -> None:
    """Much at once, much in pieces, little that stands for much: none of it is kept."""
    before = rss_anon_bytes(bounded.pid)
    with bounded.connect(retry=ONCE) as client:
        client.server_info()
        with grpc.insecure_channel(bounded.address) as channel:
            call = channel.unary_unary(INFO.path)
            for metadata in (
                (("x-large", "y" * 60_000),),
                tuple((f"x-{number}", "y" * 100) for number in range(600)),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    call(b"", metadata=(bounded.bearer, *metadata), timeout=10)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # one literal of 3 KiB that is remembered, then named again by a byte each time
        literal = b"\x40\1x" + b"\x7f\x81\x17" + b"y" * 3072
        remembered = call_headers(INFO.path, bounded.bearer) + literal + b"\xbe" * 12_000
        for _ in range(8):
            with peers(bounded.address) as (peer,):
                with contextlib.suppress(OSError):  # it may be ended by then
                    peer.send(HEADERS, END_HEADERS, 1, remembered)
                    peer.send(DATA, END_STREAM, 1, bytes(5))  # an empty message
                assert _is_refused(peer)
        # headers that never end, 16 KiB at a time
        with peers(bounded.address) as (peer,):
            piece = frame(CONTINUATION, 0, 1, b"\0\1x\x7f\x81\x7f" + b"y" * 16_378)
            with contextlib.suppress(OSError):
                peer.send(HEADERS, 0, 1, call_headers(INFO.path))
                for _ in range(4000):
                    peer.socket.sendall(piece)
            assert peer.is_closed_within(20)
        client.server_info()
    assert rss_anon_bytes(bounded.pid) - before < 48 * MIB


def test_connections_beyond_the_limit_are_closed(bounded: BoundedServer) -> None:
    """The client that is there is served on; those that come when all places are taken are not."""
    with bounded.connect(retry=ONCE) as client:
        client.server_info()
        with peers(bounded.address, CONNECTIONS + 10) as crowd:
            client.server_info()
            closed = sum(peer.is_closed_within(1.0) for peer in crowd[-10:])
            assert closed == 10
            client.server_info()


def _checks(stub: Any) -> bool:
    try:
        stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    except grpc.RpcError:
        return False
    return True


def _is_refused(peer: Peer) -> bool:
    """Return whether a stream, or its connection, is ended."""
    while (found := peer.next_frame()) is not None:
        kind, flags, _, _ = found
        if kind == DATA:  # an answer
            return False
        if kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
            return True
    return True
