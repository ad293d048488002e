"""Tensors through shared memory: the same results, views that last, and chunks where it fails."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opferry
from opferry import _lease_connection, _leases, errors
from opferry._lease_connection import LEAST_BYTES, size_class
from opferry.core.leases import LeaseMessage, LeaseWord
from opferry.core.tensors import from_array
from opferry.operators.call import Call
from tests.support import servers
from tests.support.backends import LONG_SLEEP_S
from tests.support.calls import ROTARY_GRAD, assert_same_bits, reference, tnd
from tests.support.leasing import open_arenas
from tests.support.processes import eventually, thread_count

NOTHING_IDLE = {"idle_memory_bytes": 0}
"""Limits of a server that holds no arena but those that are leased, or in use."""

ONCE = opferry.RetryConfig(attempts=1)

Result = opferry.ApplyRotaryPosEmbGradResult


@pytest.fixture(scope="module")
def server() -> Iterator[servers.EmbeddedServer]:
    with servers.embedded("SleepBackend", limits=NOTHING_IDLE) as running:
        yield running


@pytest.fixture
def client(server: servers.EmbeddedServer) -> Iterator[opferry.Client]:
    assert eventually(lambda: open_arenas(server.pid) == 0), "the test before has ended its leases"
    with opferry.connect(server.address, timeout=60) as connected:
        yield connected


def large(seed: int = 0, *, dtype: Any = np.float32, cos: float | None = 0.0) -> dict[str, Any]:
    """Return the arguments of a call that is too large for a unary one."""
    return tnd(1500, 3, 2, 32, dtype=dtype, cos=cos, seed=seed)


def leased_bytes(arguments: dict[str, Any]) -> int:
    """Return what a client leases for a call with query and key: its outputs are like inputs."""
    sizes = {name: value.nbytes for name, value in arguments.items() if name != "layout"}
    outputs = sum(sizes[name] for name in ("query", "key", "cos", "sin"))
    return size_class(sum(sizes.values()) + outputs)


def arrays_of(result: Result) -> dict[str, np.ndarray]:
    names = ("grad_query", "grad_key", "grad_cos", "grad_sin")
    return {name: array for name in names if (array := getattr(result, name)) is not None}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("keep_strides", [False, True])
@pytest.mark.parametrize("view", ["plain", "fortran", "reversed", "sliced", "broadcast"])
def test_the_same_bits_as_over_the_network(
    client: opferry.Client,
    server: servers.EmbeddedServer,
    dtype: Any,
    checksum: bool,
    keep_strides: bool,
    view: str,
) -> None:
    """Any dtype and any view of the inputs; the outputs are read-only and of the right kind."""
    arguments = large(dtype=dtype)
    for name in ("grad_query_embed", "query"):
        plain = arguments[name]
        arguments[name] = {
            "plain": plain,
            "fortran": np.asfortranarray(plain),
            "reversed": np.ascontiguousarray(plain[::-1])[::-1],
            "sliced": np.concatenate([plain, plain], axis=-1)[..., :32],
            "broadcast": np.broadcast_to(plain[:1], plain.shape),
        }[view]
    before = {name: np.array(arguments[name]) for name in ("grad_query_embed", "query")}
    options = {"checksum": checksum, "keep_strides": keep_strides}
    result = client.apply_rotary_pos_emb_grad(**arguments, **options)
    assert result.execution.shared_memory
    assert_same_bits(result, reference(arguments))
    for array in arrays_of(result).values():
        assert not array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    with opferry.connect(server.address, shared_memory=False) as other:
        chunks = other.apply_rotary_pos_emb_grad(**arguments, **options)
    assert not chunks.execution.shared_memory
    assert_same_bits(chunks, arrays_of(result))
    assert (result.execution.upload_bytes, result.execution.download_bytes) == (
        chunks.execution.upload_bytes,
        chunks.execution.download_bytes,
    )
    for name, array in before.items():
        assert array.tobytes() == arguments[name].tobytes()


def test_big_endian_inputs(client: opferry.Client) -> None:
    """They are converted on their way into the memory."""
    arguments = large()
    swapped = {
        name: value.astype(value.dtype.newbyteorder(">"))
        if isinstance(value, np.ndarray)
        else value
        for name, value in arguments.items()
    }
    result = client.apply_rotary_pos_emb_grad(**swapped)
    assert result.execution.shared_memory
    assert_same_bits(result, reference(arguments))


def test_small_calls_stay_as_they_are(client: opferry.Client, server: Any) -> None:
    """A unary call leases nothing, and its result is the caller's own."""
    result = client.apply_rotary_pos_emb_grad(**tnd(cos=0))
    assert not result.execution.shared_memory
    assert result.grad_query.flags.writeable
    assert open_arenas(server.pid) == 0


def test_progress_is_told(client: opferry.Client) -> None:
    """As over the network."""
    seen: list[opferry.Progress] = []
    result = client.apply_rotary_pos_emb_grad(**large(), on_progress=seen.append)
    assert result.execution.shared_memory
    states = opferry.ProgressState
    assert seen[0].state is states.UPLOADING
    assert seen[-1].state is states.RUNNING


def test_memory_is_used_again_when_the_last_view_dies(client: opferry.Client, server: Any) -> None:
    """Results that are thrown away share one lease; one that is kept needs another."""
    for seed in range(5):
        arguments = large(seed)
        result = client.apply_rotary_pos_emb_grad(**arguments)
        assert result.execution.shared_memory
        assert_same_bits(result, reference(arguments))
        assert open_arenas(server.pid) == 1
        del result
    kept = client.apply_rotary_pos_emb_grad(**large(7))
    other = client.apply_rotary_pos_emb_grad(**large(8))
    assert open_arenas(server.pid) == 2
    assert_same_bits(kept, reference(large(7)))
    assert_same_bits(other, reference(large(8)))


VIEWS: dict[str, Any] = {
    "one output": lambda result: result.grad_cos,
    "a slice": lambda result: result.grad_query[3:7, :, ::2],
    "a slice of a transposed view": lambda result: result.grad_query.T[1:][2:],
    "another dtype": lambda result: result.grad_query.view(np.uint32),
    "a memoryview": lambda result: memoryview(result.grad_query).cast("B"),
    "a subclass": lambda result: result.grad_query.reshape(-1, 32).view(np.matrix),
    "numpy's own": lambda result: np.frombuffer(result.grad_query, np.uint8),
}


@pytest.mark.parametrize("view_of", VIEWS.values(), ids=VIEWS.keys())
def test_any_view_keeps_the_memory(client: opferry.Client, server: Any, view_of: Any) -> None:
    """As long as it lives nothing else is written there, whatever it was made with."""
    view = view_of(client.apply_rotary_pos_emb_grad(**large(1)))
    before = bytes(view)
    for seed in range(2, 5):
        client.apply_rotary_pos_emb_grad(**large(seed))
    assert bytes(view) == before
    assert open_arenas(server.pid) == 2
    del view
    client.close()
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_torch_tensor_keeps_the_memory(client: opferry.Client) -> None:
    """torch.from_numpy takes no copy, and holds the array."""
    torch = pytest.importorskip("torch", reason='needs torch, of the extra "dev"')
    expected = reference(large(1))["grad_query"]
    with pytest.warns(UserWarning, match="not writable"):
        tensor = torch.from_numpy(client.apply_rotary_pos_emb_grad(**large(1)).grad_query)
    for seed in range(2, 5):
        client.apply_rotary_pos_emb_grad(**large(seed))
    assert tensor.numpy().tobytes() == expected.tobytes()


def test_views_outlive_the_client_and_the_server() -> None:
    """Closing either, in whatever order, changes nothing that is looked at."""
    arguments = large(1)
    expected = reference(arguments)
    with servers.embedded() as server:
        with opferry.connect(server.address) as client:
            result = client.apply_rotary_pos_emb_grad(**arguments)
            threads = thread_count(os.getpid())
        assert result.execution.shared_memory
        assert_same_bits(result, expected)
        with opferry.connect(server.address) as another:
            second = another.apply_rotary_pos_emb_grad(**arguments)
            assert_same_bits(second, expected)
            server.stop()
            assert_same_bits(second, expected)
        assert_same_bits(second, expected)
        assert_same_bits(result, expected)
        del result, second
        assert eventually(lambda: thread_count(os.getpid()) < threads + 1)


def test_a_client_that_nobody_closes_ends_its_leases(server: servers.EmbeddedServer) -> None:
    """The last of client and views takes the connection with it."""
    client = opferry.connect(server.address)
    result = client.apply_rotary_pos_emb_grad(**large(1))
    assert result.execution.shared_memory
    del client
    gc.collect()
    assert_same_bits(result, reference(large(1)))
    assert open_arenas(server.pid) >= 1
    del result
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_copy_is_the_callers_own(client: opferry.Client, server: Any) -> None:
    """With copy=True results are writable, in memory of their own, and one lease does for all."""
    results = [client.apply_rotary_pos_emb_grad(**large(seed), copy=True) for seed in range(3)]
    assert open_arenas(server.pid) == 1
    for seed, result in enumerate(results):
        assert result.execution.shared_memory
        assert_same_bits(result, reference(large(seed)))
        for array in arrays_of(result).values():
            assert array.flags.writeable
            assert array.flags.c_contiguous
            array[...] = 0


def test_execute_does_alike(client: opferry.Client) -> None:
    """Calls of any operator: views, and copies if asked for."""
    arguments = large()
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    tensors = {name: from_array(name, array) for name, array in arrays.items()}
    call = Call(
        ROTARY_GRAD,
        ROTARY_GRAD.parse_attributes({"layout": 4}),
        {name: tensor.spec for name, tensor in tensors.items()},
    )
    for copy in (False, True):
        found = client.execute(call, tensors, copy=copy)
        assert found.execution.shared_memory
        for name, array in reference(arguments).items():
            assert found.outputs[name].tobytes() == array.tobytes()
            assert found.outputs[name].flags.writeable == copy


def test_many_threads_share_a_client(client: opferry.Client, server: Any) -> None:
    """Each call has memory of its own."""

    def call(seed: int) -> Result:
        return client.apply_rotary_pos_emb_grad(**large(seed))

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, range(24)))
    for seed, result in enumerate(results):
        assert_same_bits(result, reference(large(seed)))
    assert any(result.execution.shared_memory for result in results)
    del result, results
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_the_asynchronous_client_does_alike(server: servers.EmbeddedServer) -> None:
    """Views, copies, many at once; they outlive the client too."""

    async def scenario() -> list[Result]:
        async with opferry.aio.connect(server.address) as client:
            one = await client.apply_rotary_pos_emb_grad(**large(0))
            own = await client.apply_rotary_pos_emb_grad(**large(1), copy=True)
            assert own.grad_query.flags.writeable
            calls = [client.apply_rotary_pos_emb_grad(**large(seed)) for seed in range(2, 8)]
            return [one, own, *await asyncio.gather(*calls)]

    results = asyncio.run(scenario())
    for seed, result in enumerate(results):
        assert result.execution.shared_memory
        assert_same_bits(result, reference(large(seed)))
        assert result.grad_query.flags.writeable == (seed == 1)
    del result, results
    assert eventually(lambda: open_arenas(server.pid) == 0)


@pytest.mark.parametrize("kind", ["cancelled", "timed out", "timed out, not asynchronous"])
def test_a_call_that_is_given_up_leaves_its_memory_to_the_run(
    server: servers.EmbeddedServer, kind: str
) -> None:
    """Its run goes on and writes there: nothing else may lie there, and nothing stays of it."""
    slow, fast = large(1, cos=1.0), large(2)
    expected = reference(fast)

    async def scenario() -> Result:
        async with opferry.aio.connect(server.address) as client:
            await client.apply_rotary_pos_emb_grad(**large(0))
            if kind == "cancelled":
                running = asyncio.ensure_future(client.apply_rotary_pos_emb_grad(**slow))
                while (await client.server_info()).workers[0].running_count == 0:
                    await asyncio.sleep(0.01)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            else:
                with pytest.raises(errors.DeadlineError):
                    await client.apply_rotary_pos_emb_grad(**slow, timeout=0.5)
            return await client.apply_rotary_pos_emb_grad(**fast)

    if kind.endswith("not asynchronous"):
        with opferry.connect(server.address) as client:
            client.apply_rotary_pos_emb_grad(**large(0))
            with pytest.raises(errors.DeadlineError):
                client.apply_rotary_pos_emb_grad(**slow, timeout=0.5)
            result = client.apply_rotary_pos_emb_grad(**fast)
    else:
        result = asyncio.run(scenario())
    assert result.execution.shared_memory
    assert_same_bits(result, expected)
    del result
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_task_cancelled_while_its_inputs_are_written_keeps_nothing(
    server: servers.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes them goes on; the memory is given back all the same."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    attempt = _leases.Leases.attempt

    def slowly(self: Any, *arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        made = attempt(self, *arguments)
        ended.set()
        return made

    async def scenario() -> None:
        async with opferry.aio.connect(server.address) as client:
            await client.apply_rotary_pos_emb_grad(**large(0))
            monkeypatch.setattr(_leases.Leases, "attempt", slowly)
            task = asyncio.ensure_future(client.apply_rotary_pos_emb_grad(**large(1)))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            connection = client._leases._connection
            assert connection is not None
            while not ended.is_set() or connection._lent_count:
                await asyncio.sleep(0.01)
            result = await client.apply_rotary_pos_emb_grad(**large(2))
            assert_same_bits(result, reference(large(2)))
            assert open_arenas(server.pid) == 1

    asyncio.run(asyncio.wait_for(scenario(), 60))
    gc.collect()  # the cancelled task's traceback holds the scenario's frame, which holds the task
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_refused_request_gives_its_memory_back(client: opferry.Client, server: Any) -> None:
    """What the server itself refuses has not run: the memory does for the next call."""
    client.apply_rotary_pos_emb_grad(**large(0))
    for _ in range(3):
        with pytest.raises(errors.NotSupportedError):
            client.apply_rotary_pos_emb_grad(**large(1), operator_package="nobody's")
        assert_same_bits(client.apply_rotary_pos_emb_grad(**large(2)), reference(large(2)))
        assert open_arenas(server.pid) == 1


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
    for target, tried in (("127.0.0.1:1", True), ("unix:/x", True), ("farm.example:1", False)):
        config = opferry.config.ClientConfig(target)
        assert _leases.Leases(config)._may_connect("/x") == tried
        off = opferry.config.ClientConfig(target, shared_memory=False)
        assert not _leases.Leases(off)._may_connect("/x")


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


def test_a_client_over_its_limit_goes_on_in_chunks() -> None:
    """What does not fit into its leases comes over the network, and the others stay as they are."""
    limits = {"client_leased_bytes": 2 * leased_bytes(large()) - 1}
    with servers.embedded(limits=limits) as server, opferry.connect(server.address) as client:
        results = [client.apply_rotary_pos_emb_grad(**large(seed)) for seed in range(5)]
        shared = [result.execution.shared_memory for result in results]
        assert shared == [True, False, False, False, False]
        for seed, result in enumerate(results):
            assert_same_bits(result, reference(large(seed)))
        results.clear()
        del result
        assert client.apply_rotary_pos_emb_grad(**large(6)).execution.shared_memory


def test_idle_memory_gives_way_to_a_call_that_needs_it() -> None:
    """A client at its limit releases what it keeps before it is refused."""
    small, twice = tnd(1500, 3, 2, 32, cos=0), tnd(3500, 3, 2, 32, cos=0)
    limits = {"client_leased_bytes": leased_bytes(small) + leased_bytes(twice) - 1}
    with servers.embedded(limits=limits) as server, opferry.connect(server.address) as client:
        assert client.apply_rotary_pos_emb_grad(**small).execution.shared_memory
        result = client.apply_rotary_pos_emb_grad(**twice)
        assert result.execution.shared_memory
        assert_same_bits(result, reference(twice))


def test_idle_memory_is_trimmed(
    server: servers.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no call has used for a while goes back, and so does what is too much."""
    monkeypatch.setattr(_lease_connection, "IDLE_S", 0.1)
    with opferry.connect(server.address) as client:
        client.apply_rotary_pos_emb_grad(**large())
        assert eventually(lambda: open_arenas(server.pid) == 0)
        monkeypatch.setattr(_lease_connection, "IDLE_S", 1e6)
        monkeypatch.setattr(_lease_connection, "IDLE_BYTES", 0)
        result = client.apply_rotary_pos_emb_grad(**large())
        assert open_arenas(server.pid) == 1
        del result
        assert eventually(lambda: open_arenas(server.pid) == 0)


def test_idle_memory_is_given_back_to_who_waits_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plain gRPC client notices nothing of it but that it waits for a moment."""
    monkeypatch.setattr(_lease_connection, "IDLE_S", 1e6)
    arguments = large()
    big = tnd(5000, 3, 2, 32, cos=0)
    limits = {"memory_bytes": 6 * leased_bytes(arguments)}
    assert 6 * leased_bytes(arguments) > leased_bytes(big) > 3 * leased_bytes(arguments)
    with (
        servers.embedded(limits=limits) as server,
        opferry.connect(server.address) as client,
        opferry.connect(server.address, shared_memory=False) as plain,
        ThreadPoolExecutor(1) as pool,
    ):
        results = [client.apply_rotary_pos_emb_grad(**arguments) for _ in range(3)]
        assert all(result.execution.shared_memory for result in results)
        assert_same_bits(plain.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        calling = pool.submit(plain.apply_rotary_pos_emb_grad, **big)
        results.clear()
        assert_same_bits(calling.result(30), reference(big))


def test_a_worker_that_dies_under_a_leased_request() -> None:
    """DEVICE_FAULT with the signal, as ever; the memory and the next worker serve on."""
    limits = NOTHING_IDLE
    with (
        servers.embedded("CrashBackend", limits=limits) as server,
        opferry.connect(server.address) as client,
    ):
        good = large(1, cos=1.0)
        for _ in range(2):
            with pytest.raises(errors.DeviceFaultError, match="SIGSEGV"):
                client.apply_rotary_pos_emb_grad(**large(cos=-float(signal.SIGSEGV)))
            result = client.apply_rotary_pos_emb_grad(**good)
            assert result.execution.shared_memory
            assert_same_bits(result, reference(good))
            del result
        assert open_arenas(server.pid) == 1


def test_a_request_that_broke_two_devices_is_known_by_its_leased_content() -> None:
    """The same bytes are refused, by chunks and by shared memory alike."""
    with servers.embedded("CrashBackend", workers=3) as server:
        poison = large(cos=-float(signal.SIGSEGV))
        outcomes = []
        while "REQUEST_POISONED" not in outcomes:
            shared = len(outcomes) % 2 == 0
            with opferry.connect(server.address, shared_memory=shared) as client:
                with pytest.raises(errors.DeviceFaultError) as caught:
                    client.apply_rotary_pos_emb_grad(**poison)
                outcomes.append(caught.value.reason)
            assert len(outcomes) < 8
        assert outcomes.count("DEVICE_FAULT") >= 2


def test_a_client_killed_with_leases_leaves_none(
    server: servers.EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the middle of a run, with results in view: all memory comes back."""
    assert eventually(lambda: open_arenas(server.pid) == 0)
    script = f"""
        import sys, opferry
        from tests.support.calls import tnd
        client = opferry.connect({server.address!r})
        kept = [client.apply_rotary_pos_emb_grad(**tnd(1500, 3, 2, 32, cos=0)) for _ in range(3)]
        assert all(result.execution.shared_memory for result in kept)
        print("ready", flush=True)
        client.apply_rotary_pos_emb_grad(**tnd(1500, 3, 2, 32, cos=2.0))
    """
    environment = {**os.environ, "PYTHONPATH": servers.PYTHONPATH}
    with (
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            stdout=subprocess.PIPE,
            env=environment,
        ) as process,
        opferry.connect(server.address) as watcher,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert eventually(lambda: watcher.server_info().workers[0].running_count == 1)
        assert open_arenas(server.pid) == 4
        process.kill()
        process.wait()
        # the run goes on, and keeps its memory alone
        assert eventually(lambda: open_arenas(server.pid) == 1, 1.5)
        assert eventually(lambda: open_arenas(server.pid) == 0)


def run_script(script: str, address: str) -> str:
    """Run a program against a server; returns what it prints, and asserts that it says no more."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(script), address],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": servers.PYTHONPATH},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_program_ends_with_results_in_view(server: servers.EmbeddedServer) -> None:
    """At the end of the interpreter nothing complains and nothing hangs."""
    script = """
        import sys, opferry
        from tests.support.calls import tnd
        client = opferry.connect(sys.argv[1])
        kept = client.apply_rotary_pos_emb_grad(**tnd(1500, 3, 2, 32, cos=0))
        cycle = [kept.grad_query[1:]]
        cycle.append(cycle)
        print(kept.execution.shared_memory)
    """
    assert run_script(script, server.address) == "True\n"
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_forked_child_leaves_its_parents_leases_alone(server: servers.EmbeddedServer) -> None:
    """What dies in the child was the parent's, and the end of the child ends nothing."""
    script = """
        import os, sys, opferry
        from tests.support.calls import assert_same_bits, reference, tnd
        first, second = (tnd(1500, 3, 2, 32, cos=0, seed=seed) for seed in (1, 2))
        client = opferry.connect(sys.argv[1])
        kept = client.apply_rotary_pos_emb_grad(**first)
        idle = client.apply_rotary_pos_emb_grad(**second)
        assert kept.execution.shared_memory
        child = os.fork()
        if child == 0:
            assert_same_bits(kept, reference(first))
            del kept, idle
            client._leases.close()
            assert client._leases.attempt is not None and not client._leases.are_stale()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert_same_bits(kept, reference(first))
        again = client.apply_rotary_pos_emb_grad(**second)
        assert again.execution.shared_memory
        assert_same_bits(again, reference(second))
        assert_same_bits(kept, reference(first))
        print("right")
    """
    environment = {**os.environ, "PYTHONPATH": servers.PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), server.address],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_views_that_die_in_the_garbage_collector_at_any_moment(client: opferry.Client) -> None:
    """Cycles are collected inside of the connection's own code, too, and nothing blocks."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for seed in range(30):
            arguments = large(seed % 3)
            result = client.apply_rotary_pos_emb_grad(**arguments)
            cycle: list[Any] = [result]
            cycle.append(cycle)
            assert_same_bits(result, reference(arguments))
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("size", [1, LEAST_BYTES, LEAST_BYTES + 1, 2**28 + 4096, 2**32 - 1])
def test_sizes_of_leases_come_in_classes(size: int) -> None:
    """At least what is needed, at most an eighth more, and few different ones."""
    found = size_class(size)
    assert max(size, LEAST_BYTES) <= found <= max(size, LEAST_BYTES) * 9 / 8
    assert size_class(found) == found


def test_long_runs_do_not_hold_up_leases(server: servers.EmbeddedServer) -> None:
    """While one request sleeps, others lease, wait in the line and are served after it."""
    assert LONG_SLEEP_S > 1
    with opferry.connect(server.address) as client, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(client.apply_rotary_pos_emb_grad, **large(1, cos=1.0))
        assert eventually(lambda: client.server_info().workers[0].running_count == 1)
        fast = client.apply_rotary_pos_emb_grad(**large(2))
        assert fast.execution.shared_memory
        assert_same_bits(fast, reference(large(2)))
        assert_same_bits(slow.result(), reference(large(1, cos=1.0)))
