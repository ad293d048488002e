"""Messages on the lease socket: what is said comes back, and a stranger's bytes are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opferry.core.leases import (
    MAX_LEASE_BYTES,
    MAX_MESSAGE_BYTES,
    TOKEN_BYTES,
    LeaseMessage,
    LeaseWord,
)

TOKENS = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)
WITH_TOKEN = (LeaseWord.LEASED, LeaseWord.RELEASE)


@st.composite
def messages(draw: st.DrawFn) -> LeaseMessage:
    word = draw(st.sampled_from(list(LeaseWord)))
    token = draw(TOKENS) if word in WITH_TOKEN else b""
    return LeaseMessage(word, token, draw(st.integers(0, MAX_LEASE_BYTES)))


@given(messages())
def test_messages_come_back_as_they_were(message: LeaseMessage) -> None:
    """Every word, token and size, within the largest message."""
    data = message.encode()
    assert len(data) <= MAX_MESSAGE_BYTES
    assert LeaseMessage.decode(data) == message


@given(st.binary(max_size=2 * MAX_MESSAGE_BYTES))
def test_any_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    """Nothing else comes of bytes from a stranger."""
    try:
        message = LeaseMessage.decode(data)
    except ValueError:
        return
    assert LeaseMessage.decode(message.encode()) == message


TOKEN = "00" * TOKEN_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        [],
        "lease",
        {},
        {"word": "steal"},
        {"word": ["lease"]},
        {"word": "lease", "more": 1},
        {"word": "lease", "size_bytes": -1},
        {"word": "lease", "size_bytes": MAX_LEASE_BYTES + 1},
        {"word": "lease", "size_bytes": True},
        {"word": "lease", "size_bytes": 1.0},
        {"word": "lease", "size_bytes": "1"},
        {"word": "lease", "token": TOKEN},
        {"word": "release"},
        {"word": "release", "token": TOKEN[2:]},
        {"word": "release", "token": TOKEN + "00"},
        {"word": "release", "token": "zz" * TOKEN_BYTES},
        {"word": "release", "token": 7},
    ],
    ids=str,
)
def test_what_is_no_message_is_refused(fields: object) -> None:
    """JSON that is not exactly a message."""
    with pytest.raises(ValueError, match=r".+"):
        LeaseMessage.decode(json.dumps(fields).encode())
