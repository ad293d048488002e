"""The SDK in forked processes and in running event loops: it works, or says what is wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import numpy as np
import pytest

import opferry
from opferry._forks import VARIABLE
from tests.support.programs import said


def forked(case: str, **environment: str) -> list[str]:
    """Return the lines of a case of fork_program.py."""
    return said("tests.sdk.fork_program", case, without=(VARIABLE,), **environment)


def test_a_child_calls() -> None:
    """A client from before the fork, a new one, and an asynchronous one work in the child."""
    assert forked("idle") == ["ok", "ok", "ok", "parent ok"]


def test_a_child_calls_though_other_threads_did() -> None:
    """A fork waits for other threads' calls, so that its child can call; they go on after it."""
    assert forked("threads") == ["ok"] * 5 + ["parent ok"]


@pytest.mark.full
def test_threads_fork_together() -> None:
    """While others call, and clients come and go: no child hangs; one amid a call is told so."""
    *children, parent = forked("together")
    assert parent == "parent ok"
    assert len(children) == 75
    assert "ok" in children
    assert all(child == "ok" or child.startswith("TransportError") for child in children), children


def test_a_client_that_nobody_closes_leaves_no_connection() -> None:
    """GRPC keeps each channel that is not closed, for the sake of forks."""
    left, parent = forked("unclosed")
    assert parent == "parent ok"
    assert int(left) <= 2


@pytest.mark.full
def test_a_fork_amid_a_call() -> None:
    """A stream that the forking thread is reading goes on in the parent; the child is refused."""
    *refused, parent = forked("amid")
    assert parent == "parent ok"
    assert len(refused) == 2
    for line in refused:
        assert line.startswith("TransportError: this process was forked while its parent had calls")


def test_an_asynchronous_client_from_before_the_fork() -> None:
    """An event loop does not outlive a fork: its client is refused in the child, and goes on."""
    refused, parent = forked("asynchronous")
    assert refused.startswith("TransportError: this client was made before this process was forked")
    assert parent == "parent ok"


@pytest.mark.parametrize("case", ["foreign", "idle"])
def test_where_grpc_was_not_told(case: str) -> None:
    """Loaded by somebody else before, or told otherwise, gRPC is not used in a child."""
    *refused, parent = forked(case) if case == "foreign" else forked(case, **{VARIABLE: "0"})
    assert parent == "parent ok"
    closed = refused.pop() if case == "foreign" else "ok"
    assert closed == "ok"
    for line in refused:
        assert line.startswith("TransportError: this process was forked after its parent had used")
        assert VARIABLE in line


def test_an_embedded_server_is_its_parents() -> None:
    """A child that stops the server which its parent started does not."""
    assert forked("stop") == ["ok", "parent ok"]


def test_what_is_told_to_grpc_is_not_left_behind() -> None:
    """Importing the client leaves the environment as it was."""
    program = f"import os, opferry.client; print(os.environ.get({VARIABLE!r}))"
    without = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", program], env=without, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"


def test_the_synchronous_client_in_a_running_loop(client: opferry.Client) -> None:
    """A cell of a notebook runs inside of an event loop; the synchronous client works there."""

    async def cell() -> opferry.ApplyRotaryPosEmbGradResult:
        ones = np.ones((1, 2, 1, 8), np.float32)
        return client.apply_rotary_pos_emb_grad(ones, ones, ones, ones)

    assert asyncio.run(cell()).grad_query[0, 0, 0, 0] == 2
