"""Memory that a client on the server's own host leases: what both sides say of it.

The two speak over a SOCK_SEQPACKET Unix socket, one JSON object in each datagram:

    client                          server
    lease    size_bytes             leased   token, size_bytes, and the memory's descriptor
                                    refused  not now: send the data
    release  token                  recall   memory is short: release what is not used

A lease ends with its release, or with the socket. A request that uses one says so in its header.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

TOKEN_BYTES = 32
"""The length of a lease's token: random, so that only who was told it can name it."""

MAX_MESSAGE_BYTES = 512
"""The largest message, several times what one takes."""

MAX_LEASE_BYTES = 2**50
"""No lease is larger: a bound for the arithmetic, far above any limit."""


@dataclass(frozen=True)
class ArenaRegion:
    """Where a request's tensors lie, in place of chunks: inputs, then outputs."""

    token: bytes
    """The lease's token."""
    offset_bytes: int
    """Where the region begins in the leased arena."""
    size_bytes: int
    """The region's size."""


class LeaseWord(str, Enum):
    """What a message on the lease socket says."""

    LEASE = "lease"
    """The client asks for size_bytes of memory."""
    LEASED = "leased"
    """The server has made it; its descriptor comes along."""
    REFUSED = "refused"
    """The server has none to lease now."""
    RELEASE = "release"
    """The client uses the memory of *token* no longer."""
    RECALL = "recall"
    """Others wait for memory: the client should release what it keeps for later."""


@dataclass(frozen=True)
class LeaseMessage:
    """One message on the lease socket."""

    word: LeaseWord
    """What it says."""
    token: bytes = b""
    """Of which lease, where it is of one."""
    size_bytes: int = 0
    """How much memory is asked for, or leased."""

    def encode(self) -> bytes:
        """Return the message's bytes."""
        fields: dict[str, str | int] = {"word": self.word.value}
        if self.token:
            fields["token"] = self.token.hex()
        if self.size_bytes:
            fields["size_bytes"] = self.size_bytes
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaseMessage:
        """Return the message of its bytes, which a stranger may have sent.

        Raises:
            ValueError: if they are no message.
        """
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"the message is longer than {MAX_MESSAGE_BYTES} bytes")
        fields = json.loads(data)
        if not isinstance(fields, dict) or not fields.keys() <= {"word", "token", "size_bytes"}:
            raise ValueError("the message is no object of word, token and size_bytes")
        word = LeaseWord(fields.get("word"))
        token, size_bytes = fields.get("token", ""), fields.get("size_bytes", 0)
        if not isinstance(token, str) or type(size_bytes) is not int:
            raise ValueError("token is hexadecimal text, size_bytes a whole number")
        if not 0 <= size_bytes <= MAX_LEASE_BYTES:
            raise ValueError(f"size_bytes is 0 to {MAX_LEASE_BYTES}")
        raw = bytes.fromhex(token)
        if len(raw) != (TOKEN_BYTES if word in (LeaseWord.LEASED, LeaseWord.RELEASE) else 0):
            raise ValueError(f"a token has {TOKEN_BYTES} bytes")
        return cls(word, raw, size_bytes)
