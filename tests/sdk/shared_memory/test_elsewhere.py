"""Where there is no shared memory to be had, calls go over the network, and nobody is told."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

import opferry
from opferry import _leases
from opferry._result_buffers import ResultBuffers
from opferry.core.leases import LeaseMessage, LeaseWord
from tests.support import servers
from tests.support.calls import assert_same_bits, reference
from tests.support.leasing import large, open_arenas
from tests.support.processes import eventually

pytestmark = pytest.mark.full  # processes that start and die, half a minute


@pytest.mark.parametrize("given", [{"no-shm": ""}, None], ids=["server", "client"])
def test_either_side_can_turn_it_off(given: dict[str, str] | None) -> None:
    """By `--no-shm`, or by shared_memory=False; results are then as ever."""
    with (
        servers.embedded(options=given) as server,
        opferry.connect(server.address, shared_memory=given is not None) as client,
    ):
        result = client.apply_rotary_pos_emb_grad(**large())
        assert not result.execution.shared_memory
        assert result.grad_query.flags.writeable
        assert_same_bits(result, reference(large()))


def test_a_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPFERRY_SHM, as every option."""
    monkeypatch.setenv("OPFERRY_SHM", "false")
    with servers.embedded() as server, opferry.connect(server.address) as client:
        assert client.server_info().lease_socket == ""
        assert not client.apply_rotary_pos_emb_grad(**large()).execution.shared_memory


def test_only_a_server_on_this_host_is_tried() -> None:
    """A path from elsewhere would be another host's."""
    buffers = ResultBuffers(0)
    for target, tried in (("127.0.0.1:1", True), ("unix:/x", True), ("farm.example:1", False)):
        config = opferry.config.ClientConfig(target)
        assert _leases.Leases(config, buffers)._may_connect("/x") == tried
        off = opferry.config.ClientConfig(target, shared_memory=False)
        assert not _leases.Leases(off, buffers)._may_connect("/x")


def test_without_a_way_to_the_socket_calls_go_over_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in another container: silently, without trying each time, and again after a while."""
    with servers.embedded() as server, opferry.connect(server.address) as client:
        path = Path(client.server_info().lease_socket)
        hidden = path.with_name("hidden")
        path.rename(hidden)
        for seed in range(3):
            result = client.apply_rotary_pos_emb_grad(**large(seed))
            assert not result.execution.shared_memory
            assert_same_bits(result, reference(large(seed)))
        hidden.rename(path)
        assert not client.apply_rotary_pos_emb_grad(**large()).execution.shared_memory
        monkeypatch.setattr(_leases, "RETRY_S", 0.0)
        client._leases._retry_s = 0.0
        assert client.apply_rotary_pos_emb_grad(**large()).execution.shared_memory


def test_a_restarted_server_is_leased_from_again(tmp_path: Path) -> None:
    """Its socket has another path; what came from the first one stays."""
    first = servers.TcpServer(tmp_path)
    with opferry.connect(first.address) as client:
        before = client.apply_rotary_pos_emb_grad(**large(1))
        assert before.execution.shared_memory
        first.stop()
        with servers.tcp(tmp_path, address=first.address):
            after = client.apply_rotary_pos_emb_grad(**large(2))
            assert after.execution.shared_memory
            assert_same_bits(after, reference(large(2)))
        assert_same_bits(before, reference(large(1)))


def test_a_killed_server_is_no_different(tmp_path: Path) -> None:
    """SIGKILL, with a result in view."""
    first = servers.TcpServer(tmp_path)
    with opferry.connect(first.address) as client:
        before = client.apply_rotary_pos_emb_grad(**large(1))
        first.process.kill()
        first.process.wait()
        assert_same_bits(before, reference(large(1)))
        with servers.tcp(tmp_path, address=first.address):
            after = client.apply_rotary_pos_emb_grad(**large(2))
            assert after.execution.shared_memory
        assert_same_bits(before, reference(large(1)))


def test_another_servers_socket_under_the_same_path(server: servers.EmbeddedServer) -> None:
    """As behind a tunnel: its memory leads nowhere, and the same call goes on in chunks."""
    with (
        servers.embedded() as other,
        opferry.connect(server.address) as client,
        opferry.connect(other.address) as theirs,
    ):
        ours, foreign = (Path(c.server_info().lease_socket) for c in (client, theirs))
        aside = ours.with_name("aside")
        ours.rename(aside)
        ours.symlink_to(foreign)
        try:
            for seed in range(3):
                result = client.apply_rotary_pos_emb_grad(**large(seed))
                assert not result.execution.shared_memory
                assert_same_bits(result, reference(large(seed)))
            assert eventually(lambda: open_arenas(other.pid) == 0)
        finally:
            ours.unlink()
            aside.rename(ours)


class Impostor:
    """Listens where the server did, and answers a question for memory as it is told."""

    def __init__(self, path: Path, answer: Any) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._answer = answer
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self._peers.append(peer)
                threading.Thread(target=self._answer_all, args=(peer,), daemon=True).start()

    def _answer_all(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := peer.recv(512):
                message = LeaseMessage.decode(data)
                assert message.word is LeaseWord.LEASE
                self._answer(peer, message.size_bytes)

    @property
    def connection_count(self) -> int:
        return len(self._peers)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for peer in self._peers:
            peer.close()


def granted(size_bytes: int) -> bytes:
    return LeaseMessage(LeaseWord.LEASED, bytes(32), size_bytes).encode()


def unsealed(peer: socket.socket, size_bytes: int) -> None:
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, size_bytes)
    socket.send_fds(peer, [granted(size_bytes)], [fd])
    os.close(fd)


def truncated(peer: socket.socket, size_bytes: int) -> None:
    import fcntl

    fd = os.memfd_create("truncated", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes - 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    socket.send_fds(peer, [granted(size_bytes)], [fd])
    os.close(fd)


def a_file(peer: socket.socket, size_bytes: int) -> None:
    with open("/dev/zero", "rb") as zero:
        socket.send_fds(peer, [granted(size_bytes)], [zero.fileno()])


ANSWERS: dict[str, Any] = {
    "silence": lambda peer, size: None,
    "nonsense": lambda peer, size: peer.send(b"nonsense"),
    "the end": lambda peer, size: peer.close(),
    "a refusal": lambda peer, size: peer.send(LeaseMessage(LeaseWord.REFUSED).encode()),
    "no descriptor": lambda peer, size: peer.send(granted(size)),
    "a client's word": lambda peer, size: peer.send(LeaseMessage(LeaseWord.LEASE).encode()),
    "memory that is not sealed": unsealed,
    "less memory than it says": truncated,
    "no memory": a_file,
}


@pytest.mark.parametrize(
    "path", ["", "relative", "\0abstract", "/a\0b", "/" + "x" * 200, "/\udcff"]
)
def test_a_path_that_cannot_be_one_is_none(client: opferry.Client, path: str) -> None:
    """Whatever server information tells, calls are made."""
    info = client.server_info()
    client._info = dataclasses.replace(info, lease_socket=path)
    result = client.apply_rotary_pos_emb_grad(**large())
    assert not result.execution.shared_memory
    assert_same_bits(result, reference(large()))


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_whatever_the_socket_says_the_call_is_made(
    server: servers.EmbeddedServer, answer: Any
) -> None:
    """In chunks, if need be, and nothing is left open here."""
    with opferry.connect(server.address) as client:
        path = Path(client.server_info().lease_socket)
        aside = path.with_name("aside")
        path.rename(aside)
        impostor = Impostor(path, answer)
        try:
            before = len(os.listdir("/proc/self/fd"))
            for seed in range(3):
                result = client.apply_rotary_pos_emb_grad(**large(seed))
                assert not result.execution.shared_memory
                assert_same_bits(result, reference(large(seed)))
            assert impostor.connection_count == 1, "it is not tried again at once"
            client.close()
        finally:
            impostor.close()
            path.unlink()
            aside.rename(path)
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) < before)
