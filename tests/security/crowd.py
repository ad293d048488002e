"""A program that opens many connections and keeps them: COUNT ADDRESS [AUTHORITY].

When all have been tried it prints how many are still open, one number, and again for each line of
its input; at the end of its input it ends.
"""

from __future__ import annotations

import contextlib
import resource
import select
import ssl
import sys
import time

from tests.support.http2 import Peer

SETTLE_S = 2.0


def main(count: int, address: str, authority: str = "") -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    tls = None
    if authority:
        tls = ssl.create_default_context(cafile=authority)
        tls.set_alpn_protocols(["h2"])
    peers = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            peer = Peer(address, tls)
            peer.greet()
            peers.append(peer)
    time.sleep(SETTLE_S)
    print(_open_count(peers), flush=True)
    for _ in sys.stdin:
        print(_open_count(peers), flush=True)


def _open_count(peers: list[Peer]) -> int:
    """Return how many connections the server has not closed, having read what came on each."""
    poll = select.poll()
    by_fd = {peer.socket.fileno(): peer for peer in peers}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    for fd, _ in poll.poll(0):
        peer = by_fd[fd]
        if peer.is_closed_within(0.01):
            peer.close()
            peers.remove(peer)
    return len(peers)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
