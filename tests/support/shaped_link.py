"""Two hosts on this machine with a line between them that has a rate and a round trip time.

Each host is a process in a network namespace of its own with one TUN device; a third process takes
the packets of one device and gives them to the other, late and no faster than the line. The TCP
connections over it are the kernel's own: windows, congestion control and losses are real. It needs
Linux, root (or CAP_SYS_ADMIN and CAP_NET_ADMIN) and /dev/net/tun, and leaves nothing behind: the
namespaces end with their processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import reduction
from pathlib import Path
from typing import Any, NamedTuple

CONTEXT = multiprocessing.get_context("spawn")

ADDRESSES = ("10.99.0.1", "10.99.0.2")
"""Of the far host, where servers run, and of the near one."""

DEVICE = "line0"

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFFLAGS = 0x8916, 0x891C, 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40

_HEADER_BYTES = 10
"""virtio_net_hdr: with it, one packet stands for many segments that the sender has not cut yet."""

_LEAST_QUEUE_S = 0.005
"""What the line holds at the least: with a short round trip it would drop packets of 64 KiB."""

_LARGEST_PACKET = _HEADER_BYTES + 2**16


class Hosts(NamedTuple):
    """Where functions can be run: a pool of one process at each end of the line."""

    far: ProcessPoolExecutor
    """For servers."""
    near: ProcessPoolExecutor
    """For clients."""


@contextlib.contextmanager
def shaped_link(
    bits_per_s: float, round_trip_s: float, *, buffer_bytes: int | None = None
) -> Iterator[Hosts]:
    """Join two hosts by a line for the length of a `with` block.

    The line holds up to a round trip's worth of bytes that it cannot send yet, and drops what is
    more, as a switch with a buffer of that size does.

    Args:
        bits_per_s: the rate in each direction, of IP packets; the headers of segments that are
            sent as one packet count once.
        round_trip_s: how long a packet takes there and back, in seconds, beside its own length.
        buffer_bytes: how large the hosts' TCP buffers may grow; None: as this machine has it.

    Raises:
        OSError: if this process may not make namespaces or TUN devices here.
    """
    _check_rights(buffer_bytes)
    pools, devices = [], []
    with contextlib.ExitStack() as stack:
        for address in ADDRESSES:
            ours, theirs = CONTEXT.Pipe()
            pool = ProcessPoolExecutor(
                1,
                mp_context=CONTEXT,
                initializer=_start_host,
                initargs=(address, buffer_bytes, theirs),
            )
            stack.callback(pool.shutdown, cancel_futures=True)
            pool.submit(os.getpid).result()
            pools.append(pool)
            devices.append(reduction.recv_handle(ours))
        stack.enter_context(_relaying(devices, bits_per_s, round_trip_s))
        yield Hosts(*pools)


def _check_rights(buffer_bytes: int | None) -> None:
    """Try, in a process that ends at once, what the hosts will do."""
    ours, theirs = CONTEXT.Pipe()
    trial = CONTEXT.Process(target=_try_rights, args=(buffer_bytes, theirs))
    trial.start()
    said = ours.recv()
    trial.join()
    if said:
        raise OSError(f"no network namespace with a TUN device can be made here: {said}")


def _try_rights(buffer_bytes: int | None, pipe: Any) -> None:
    try:
        os.close(_enter_namespace(ADDRESSES[0], buffer_bytes))
    except OSError as error:
        pipe.send(str(error))
    else:
        pipe.send("")


def _start_host(address: str, buffer_bytes: int | None, pipe: Any) -> None:
    device = _enter_namespace(address, buffer_bytes)
    os.environ["no_proxy"] = ",".join(ADDRESSES)
    reduction.send_handle(pipe, device, None)
    os.close(device)


def _enter_namespace(address: str, buffer_bytes: int | None) -> int:
    """Move this process to a new namespace with a device, and return the device's descriptor."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    device = os.open("/dev/net/tun", os.O_RDWR)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, given in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.252")):
            place = struct.pack(
                "=16sHH4s16x", DEVICE.encode(), socket.AF_INET, 0, socket.inet_aton(given)
            )
            fcntl.ioctl(control, request, place)
        for name in (DEVICE, "lo"):
            up = struct.pack("16sH22x", name.encode(), _IFF_UP | _IFF_RUNNING)
            fcntl.ioctl(control, _SIOCSIFFLAGS, up)
    if buffer_bytes is not None:
        for name in ("tcp_rmem", "tcp_wmem"):
            Path(f"/proc/sys/net/ipv4/{name}").write_text(f"4096 131072 {buffer_bytes}")
    return device


@contextlib.contextmanager
def _relaying(devices: list[int], bits_per_s: float, round_trip_s: float) -> Iterator[None]:
    """Run the line in a process of its own: its threads would wait for this one's work."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_relay, args=(theirs, bits_per_s, round_trip_s), daemon=True)
    process.start()
    for device in devices:
        reduction.send_handle(ours, device, process.pid)
        os.close(device)
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _relay(pipe: Any, bits_per_s: float, round_trip_s: float) -> None:
    ends = [reduction.recv_handle(pipe) for _ in ADDRESSES]
    for source, sink in (ends, ends[::-1]):
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        taking = (source, waiting, bits_per_s, round_trip_s)
        threading.Thread(target=_take, args=taking, daemon=True).start()
        threading.Thread(target=_give, args=(sink, waiting), daemon=True).start()
    threading.Event().wait()


def _take(source: int, waiting: Any, bits_per_s: float, round_trip_s: float) -> None:
    """Take packets, and note when the last bit of each arrives at the other end."""
    free_s = 0.0
    queue_s = max(round_trip_s, _LEAST_QUEUE_S)
    while True:
        packet = os.read(source, _LARGEST_PACKET)
        now_s = time.monotonic()
        if free_s - now_s > queue_s:
            continue
        free_s = max(free_s, now_s) + (len(packet) - _HEADER_BYTES) * 8 / bits_per_s
        waiting.put((free_s + round_trip_s / 2, packet))


def _give(sink: int, waiting: Any) -> None:
    """Give packets to the other end when they are due."""
    while True:
        due_s, packet = waiting.get()
        time.sleep(max(0.0, due_s - time.monotonic()))
        os.write(sink, packet)
