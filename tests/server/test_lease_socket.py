"""The lease socket of a real server, and requests that name leases: what peers may try."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.core.leases import TOKEN_BYTES, LeaseWord
from opferry.v1 import operator_service_pb2 as pb
from opferry_server.folders import LOCK
from opferry_server.lease_socket import CONNECTION_COUNT, PREFIX
from tests.support import raw, servers
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.leasing import Lessee, arena, lessee, open_arenas
from tests.support.processes import arena_count, eventually, family

pytestmark = pytest.mark.full  # a server for nearly every test, half a minute

SMALL = {"limits": {"idle_memory_bytes": 0}}
"""A server whose pool keeps nothing, so that what it holds is leased, or in use."""

PLACED_BYTES = 6 * 64
"""What the call of `raw.header` takes: four inputs and two outputs of 64 bytes."""

PAGE = 64 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[servers.EmbeddedServer]:
    with servers.embedded("SleepBackend", **SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def path(server: servers.EmbeddedServer) -> str:
    return socket_of(server.address)


def socket_of(address: str) -> str:
    with opferry.connect(address) as client:
        return client.server_info().lease_socket


def assert_serves(address: str) -> None:
    """Assert that a client over the network is served as ever."""
    with opferry.connect(address, shared_memory=False) as client:
        arguments = tnd(3000, cos=0)
        result = client.apply_rotary_pos_emb_grad(**arguments)
        assert_same_bits(result, reference(arguments))
        assert not result.execution.shared_memory


LeasedCall = Callable[..., pb.ExecuteResult]
"""Makes a small call whose tensors lie in a lease."""


def by_stream(address: str, header: pb.ExecuteHeader) -> pb.ExecuteResult:
    """Send a header as the only frame of an Execute stream."""
    frame = pb.ExecuteRequest(header=header).SerializeToString()
    *_, last = raw.stream(address, [frame])
    result: pb.ExecuteResult = last.result
    return result


def by_itself(address: str, header: pb.ExecuteHeader) -> pb.ExecuteResult:
    """Send a header in the request of ExecuteShared."""
    request = pb.ExecuteSharedRequest(header=header).SerializeToString()
    reply = raw.unary(address, "ExecuteShared", request)
    result: pb.ExecuteResult = pb.ExecuteSharedResponse.FromString(reply).result
    return result


WAYS = {"Execute": by_stream, "ExecuteShared": by_itself}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    """How a header that names a lease is sent."""
    return WAYS[request.param]


@pytest.fixture
def leased_call(way: Any) -> LeasedCall:
    """Makes such a call either way."""

    def call(address: str, token: bytes, **region: int) -> pb.ExecuteResult:
        fields = {"size_bytes": PLACED_BYTES, **region}
        result: pb.ExecuteResult = way(address, raw.header(**arena(token, **fields)))
        return result

    return call


def write_inputs(memory: Any, at: int = 0, *, cos: float = 0.0) -> None:
    """Write inputs of `raw.header` to memory: gradients of ones, cos as given, sin of zeros."""
    for index, value in enumerate((1.0, 1.0, cos, 0.0)):
        values = np.full(16, value, np.float32).tobytes()
        memory[at + 64 * index : at + 64 * index + 64] = values


def test_a_call_from_the_protocols_description(
    server: servers.EmbeddedServer, path: str, leased_call: LeasedCall
) -> None:
    """Lease, write the inputs, send the header alone, read the outputs: by docs/protocol.md."""
    with lessee(path) as mine:
        leased = mine.lease(2 * PAGE)
        assert leased is not None
        token, memory = leased
        at = PAGE - 64
        write_inputs(memory, at)
        # the sleep is the first element of cos: only the rest of it counts here
        memory[at + 128 + 4 : at + 192] = np.full(15, 2.0, np.float32).tobytes()
        last = leased_call(server.address, token, offset_bytes=at)
        assert last.execution.shared_memory
        assert [output.name for output in last.outputs] == ["grad_query", "grad_key"]
        outputs = np.frombuffer(memory[at + 256 : at + 384], np.float32)
        np.testing.assert_array_equal(outputs, np.array([0.0, *[2.0] * 15] * 2, np.float32))
        mine.say(LeaseWord.RELEASE, token)
        assert eventually(lambda: open_arenas(server.pid) == 0)
        with pytest.raises(errors.RequestError) as caught:
            leased_call(server.address, token)
        assert caught.value.reason == "LEASE_EXPIRED"
        # who keeps the memory mapped sees nothing of what comes later, nor costs anybody anything
        assert bytes(memory[at : at + 64]) == bytes(64)


@pytest.mark.parametrize(
    ("region", "reason", "words"),
    [
        ({"size_bytes": PLACED_BYTES - 1}, "ARENA_INVALID", "at least the 384"),
        ({"size_bytes": -1}, "ARENA_INVALID", "at least the 384"),
        ({"size_bytes": PAGE + 1}, "ARENA_INVALID", "at most 65536"),
        ({"size_bytes": 2**63 - 1}, "ARENA_INVALID", "at most 65536"),
        ({"offset_bytes": 32}, "ARENA_INVALID", "multiple of 64"),
        ({"offset_bytes": -64}, "ARENA_INVALID", "multiple of 64"),
        ({"offset_bytes": PAGE - PLACED_BYTES + 64}, "ARENA_INVALID", "at most 320"),
        ({"offset_bytes": PAGE}, "ARENA_INVALID", "at most 0"),
        ({"offset_bytes": 2**63 - 64}, "ARENA_INVALID", "at most -"),
        ({"token": bytes(TOKEN_BYTES)}, "LEASE_EXPIRED", "no such lease"),
        ({"token": b""}, "ARENA_INVALID", "has 0 bytes"),
        ({"token": bytes(TOKEN_BYTES + 1)}, "ARENA_INVALID", "has 33 bytes"),
    ],
    ids=str,
)
def test_a_wrong_region_is_refused_and_harms_nobody(
    server: servers.EmbeddedServer,
    path: str,
    region: dict[str, Any],
    reason: str,
    words: str,
    leased_call: LeasedCall,
) -> None:
    """Truncated, overrun, misaligned or forged: refused by name, and the lease is as it was."""
    with lessee(path) as mine:
        leased = mine.lease(PAGE)
        assert leased is not None
        token, memory = leased
        write_inputs(memory)
        with pytest.raises(errors.RequestError, match=words) as caught:
            leased_call(server.address, **{"token": token, **region})
        assert caught.value.reason == reason
        assert caught.value.argument is not None
        assert caught.value.argument.startswith("arena.")
        assert not caught.value.may_retry
        last = leased_call(server.address, token)
        assert last.execution.shared_memory


def test_a_chunk_beside_an_arena_is_refused(server: servers.EmbeddedServer, path: str) -> None:
    """With an arena there is no body."""
    with lessee(path) as mine:
        leased = mine.lease(PAGE)
        assert leased is not None
        frames = [raw.header_frame(**arena(leased[0], PLACED_BYTES)), *raw.body()]
        with pytest.raises(errors.ProtocolError, match="names an arena") as caught:
            raw.stream(server.address, frames)
        assert caught.value.reason == "STREAM_PROTOCOL"


def test_a_header_without_an_arena_is_no_shared_call(server: servers.EmbeddedServer) -> None:
    """There would be no inputs."""
    with pytest.raises(errors.ProtocolError, match="arena is missing") as caught:
        by_itself(server.address, raw.header())
    assert (caught.value.reason, caught.value.argument) == ("ARENA_INVALID", "arena")


@pytest.mark.parametrize("number", range(2))
def test_a_known_header_is_still_checked(
    server: servers.EmbeddedServer, path: str, number: int
) -> None:
    """One that differs from an accepted one in a field, known or not, is another."""
    good = raw.header(**arena(bytes(TOKEN_BYTES), PLACED_BYTES))
    with lessee(path) as mine:
        leased = mine.lease(PAGE)
        assert leased is not None
        write_inputs(leased[1])
        good.arena.token = leased[0]
        for _ in range(2):
            assert by_itself(server.address, good).execution.shared_memory
        bad = pb.ExecuteHeader.FromString(
            good.SerializeToString() + (b"\xa0\x06\x01" if number else b"")
        )
        if not number:
            bad.inputs[0].shape[0] += 1
        with pytest.raises(errors.RequestError) as caught:
            by_itself(server.address, bad)
        assert caught.value.reason == ("FIELD_UNKNOWN" if number else "TENSOR_MALFORMED")


def test_an_unknown_field_of_an_arena_is_refused(server: servers.EmbeddedServer, way: Any) -> None:
    """It may change what the caller means."""
    message = pb.SharedArena(token=bytes(TOKEN_BYTES), size_bytes=PLACED_BYTES)
    region = pb.SharedArena.FromString(message.SerializeToString() + b"\xa0\x06\x01")
    with pytest.raises(errors.ProtocolError, match=r"field 100 of .*SharedArena"):
        way(server.address, raw.header(arena=region))


def test_a_lease_may_be_used_by_whoever_knows_its_token(
    server: servers.EmbeddedServer, path: str, leased_call: LeasedCall
) -> None:
    """A gRPC connection and one to the lease socket are not tied: the token is the right to it."""
    with lessee(path) as mine, lessee(path) as another:
        leased = mine.lease(PAGE)
        assert leased is not None
        write_inputs(leased[1])
        last = leased_call(server.address, leased[0])
        assert last.execution.shared_memory
        # but to end it is its holder's affair, and to try so is the end of who does
        another.say(LeaseWord.RELEASE, leased[0])
        assert another.is_closed()
        last = leased_call(server.address, leased[0])
        assert last.execution.shared_memory


def test_one_request_at_a_time(
    server: servers.EmbeddedServer, path: str, leased_call: LeasedCall
) -> None:
    """A second one for the same lease is refused while the first runs."""
    with lessee(path) as mine, ThreadPoolExecutor(1) as pool:
        leased = mine.lease(PAGE)
        assert leased is not None
        token, memory = leased
        write_inputs(memory, cos=2.0)
        first = pool.submit(leased_call, server.address, token)
        with opferry.connect(server.address) as client:
            assert eventually(lambda: client.server_info().workers[0].running_count == 1)
        with pytest.raises(errors.RequestError) as caught:
            leased_call(server.address, token)
        assert caught.value.reason == "LEASE_IN_USE"
        assert first.result().execution.shared_memory
        write_inputs(memory)
        assert leased_call(server.address, token).execution.shared_memory


def test_the_socket_ends_while_its_request_runs(
    server: servers.EmbeddedServer, path: str, leased_call: LeasedCall
) -> None:
    """The run goes on to its end on memory that is still there; then it is given back."""
    mine = Lessee(path)
    leased = mine.lease(PAGE)
    assert leased is not None
    write_inputs(leased[1], cos=1.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(leased_call, server.address, leased[0])
        with opferry.connect(server.address) as client:
            assert eventually(lambda: client.server_info().workers[0].running_count == 1)
        mine.close()
        time.sleep(0.1)
        assert open_arenas(server.pid) == 1
        assert running.result().execution.shared_memory
    assert eventually(lambda: sum(arena_count(pid) for pid in family(server.pid)) == 0)


def test_a_client_that_scribbles_harms_only_itself(
    server: servers.EmbeddedServer, path: str, way: Any
) -> None:
    """Its memory changes while the server reads it, with digests and without."""
    with lessee(path) as mine:
        leased = mine.lease(PAGE)
        assert leased is not None
        token, memory = leased
        stop = threading.Event()

        def scribble() -> None:
            noise = os.urandom(PLACED_BYTES)
            while not stop.is_set():
                memory[:PLACED_BYTES] = noise
                memory[128:192] = bytes(64)  # or it might sleep for ever

        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            specs = raw.small_specs()
            specs[0].xxh3_64 = bytes(8)
            for number in range(20):
                fields = arena(token, PLACED_BYTES)
                header = raw.header(specs if number % 2 else None, **fields)
                with contextlib.suppress(errors.OpFerryError):
                    way(server.address, header)
        finally:
            stop.set()
            thread.join()
    assert_serves(server.address)


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "no JSON": b"lease",
    "no object": b"[1]",
    "deep": b"[" * 500,
    "another word": b'{"word":"steal"}',
    "a server's word": b'{"word":"recall"}',
    "too long": b" " * 4096,
    "a size that is none": b'{"word":"lease","size_bytes":1e3}',
    "somebody's token": b'{"word":"release","token":"' + b"00" * TOKEN_BYTES + b'"}',
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_its_own_connection(
    server: servers.EmbeddedServer, path: str, data: bytes, leased_call: LeasedCall
) -> None:
    """And its leases; nobody else's."""
    with lessee(path) as other, lessee(path) as mine:
        theirs = other.lease(PAGE)
        assert theirs is not None
        assert mine.lease(PAGE) is not None
        mine.socket.send(data)
        assert mine.is_closed()
        assert eventually(lambda: open_arenas(server.pid) == 1)
        write_inputs(theirs[1])
        assert leased_call(server.address, theirs[0]).execution.shared_memory


def test_descriptors_that_come_along_are_not_kept(
    server: servers.EmbeddedServer, path: str
) -> None:
    """A peer cannot fill the front's table."""
    before = len(os.listdir(f"/proc/{server.pid}/fd"))
    with lessee(path) as mine, open("/dev/null") as null:
        for _ in range(10):
            socket.send_fds(mine.socket, [b'{"word":"lease","size_bytes":1}'], [null.fileno()] * 50)
            message, fds = mine.hear()
            assert message.word is LeaseWord.LEASED
            for fd in fds:
                os.close(fd)
            mine.say(LeaseWord.RELEASE, message.token)
        assert len(os.listdir(f"/proc/{server.pid}/fd")) <= before + 3


def test_a_peer_that_does_not_read_is_let_go(server: servers.EmbeddedServer, path: str) -> None:
    """It asks again and again and takes no answer; the front does not wait for it."""
    with lessee(path) as deaf:
        deaf.socket.setblocking(False)
        end_s = time.monotonic() + 20
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end_s:
                with contextlib.suppress(BlockingIOError):
                    deaf.say(LeaseWord.LEASE, size_bytes=1)
        assert time.monotonic() < end_s, "it was not let go"
    assert eventually(lambda: open_arenas(server.pid) == 0)
    assert_serves(server.address)


def test_silent_peers_hold_nobody_up(
    path: str, server: servers.EmbeddedServer, leased_call: LeasedCall
) -> None:
    """As many as there may be, then more: who has leased nothing, and was silent longest, goes."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(lessee(path))
        leased = holder.lease(PAGE)
        assert leased is not None
        silent = [stack.enter_context(lessee(path)) for _ in range(2 * CONNECTION_COUNT)]
        late = stack.enter_context(lessee(path))
        assert late.lease(PAGE) is not None
        assert silent[0].is_closed()
        write_inputs(leased[1])
        assert leased_call(server.address, leased[0]).execution.shared_memory
        assert_serves(server.address)


def test_where_all_have_leases_one_more_is_turned_away() -> None:
    """And gets in when another has gone."""
    with servers.embedded() as server, contextlib.ExitStack() as stack:
        path = socket_of(server.address)
        holders = [stack.enter_context(lessee(path)) for _ in range(CONNECTION_COUNT)]
        for holder in holders:
            assert holder.lease(1) is not None
        with lessee(path) as late:
            assert late.is_closed()
        holders[0].close()
        assert eventually(lambda: open_arenas(server.pid) == CONNECTION_COUNT - 1)
        with lessee(path) as later:
            assert later.lease(1) is not None
        assert_serves(server.address)


def test_who_waits_for_memory_is_not_passed_by_leases_that_lie_idle() -> None:
    """A request that does not fit beside them has them recalled, and then runs."""
    arguments = tnd(4000, 8, 8, 64, cos=0)
    moved = sum(item.nbytes for item in arguments.values() if isinstance(item, np.ndarray))
    with (
        servers.embedded(limits={"memory_bytes": 2 * moved + 4 * PAGE}) as server,
        lessee(socket_of(server.address)) as mine,
        opferry.connect(server.address, shared_memory=False) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        held = mine.lease(moved)
        assert held is not None
        call = pool.submit(client.apply_rotary_pos_emb_grad, **arguments)
        message, _ = mine.hear()
        assert message.word is LeaseWord.RECALL
        assert not call.done()
        assert mine.lease(PAGE) is None
        mine.say(LeaseWord.RELEASE, held[0])
        assert_same_bits(call.result(30), reference(arguments))


def test_a_server_that_was_killed_leaves_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one to start deletes its folder, and not that of one that lives."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with servers.embedded() as living:
        with servers.embedded() as killed:
            alive, left = socket_of(living.address), socket_of(killed.address)
            assert Path(left).is_relative_to(tmp_path)
            os.kill(killed.pid, signal.SIGKILL)
            killed.process.wait()
        assert Path(left).exists()
        (tmp_path / f"{PREFIX}begun").mkdir()
        with servers.embedded():
            assert not Path(left).parent.exists()
            assert Path(alive).exists()
            with lessee(alive) as mine:
                assert mine.lease(1) is not None
    assert [found.name for found in tmp_path.glob(f"{PREFIX}*")] == [f"{PREFIX}begun"]


def test_without_a_place_for_the_socket_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that is too long for a socket costs the shared memory, not the server."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with servers.tcp(tmp_path) as server:
        assert socket_of(server.address) == ""
        assert_serves(server.address)
        assert "no shared memory" in server.log.read_text()
    assert list(long.glob(f"{PREFIX}*")) == []


@pytest.mark.parametrize(
    "given",
    [
        {"options": {"no-shm": ""}},
        {"limits": {"leased_bytes": 0}},
        {"limits": {"client_leased_bytes": 0}},
    ],
    ids=str,
)
def test_it_can_be_turned_off(given: dict[str, Any], leased_call: LeasedCall) -> None:
    """By the switch or by either limit; a token means nothing then."""
    with servers.embedded(**given) as server:
        assert socket_of(server.address) == ""
        with pytest.raises(errors.RequestError) as caught:
            leased_call(server.address, bytes(TOKEN_BYTES))
        assert caught.value.reason == "LEASE_EXPIRED"
        assert_serves(server.address)


ASK = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    peer.connect(sys.argv[1])
    peer.send(b'{"word":"lease","size_bytes":1}')
    print(peer.recv(512).decode() or "closed")
except ConnectionError:
    print("closed")
except PermissionError:
    print("denied")
"""


def ask_as(user: int, path: str) -> str:
    """Return what the socket says to another user."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", ASK, path, str(user)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_needs_to_be_allowed(path: str) -> None:
    """By the folder's mode, and where it lets others pass, by what the kernel says of the peer."""
    allowed, other = 65001, 65002
    assert ask_as(allowed, path) == "denied"
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    with servers.embedded(options={"shm-users": str(allowed)}) as server:
        open_path = socket_of(server.address)
        assert '"leased"' in ask_as(allowed, open_path)
        assert ask_as(other, open_path) == "closed"
        assert (Path(open_path).parent / LOCK).stat().st_mode & 0o777 == 0o600
        assert Path(open_path).parent.stat().st_mode & 0o777 == 0o711
