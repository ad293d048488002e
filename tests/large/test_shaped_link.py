"""Calls over a link with a rate and a round trip: the windows of TCP and HTTP/2 come into play."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import opferry
from opferry.embedded import EmbeddedServer
from opferry.operators import APPLY_ROTARY_POS_EMB_GRAD as OPERATOR
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGradAttributes
from tests.support.shaped_link import ADDRESSES, shaped_link

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

BITS_PER_S, ROUND_TRIP_S = 1e9, 0.03

_servers: list[EmbeddedServer] = []
"""At the far host: what lives as long as the host does."""


def arguments() -> dict[str, NDArray[np.float32]]:
    """16 MiB of gradients, two thirds of them the query's, and cos and sin."""
    random = np.random.default_rng(5)
    heads = {"grad_query_embed": 64, "grad_key_embed": 32, "cos": 1, "sin": 1}
    return {name: random.standard_normal((341, n, 128), np.float32) for name, n in heads.items()}


def serve() -> str:
    server = EmbeddedServer(options={"address": f"{ADDRESSES[0]}:0", "insecure": ""})
    _servers.append(server)
    return server.address


def call(address: str) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Make the call, and return its results and its seconds; the connection is there before."""
    with opferry.connect(address, timeout=120) as client:
        client.server_info()
        started_s = time.monotonic()
        result = client.apply_rotary_pos_emb_grad(**arguments(), layout=4)
        return result.grad_query, result.grad_key, time.monotonic() - started_s


def test_results_are_right_over_a_long_link() -> None:
    """1 Gbit/s and 30 ms: the same bits as here, and no sooner than the link can carry them."""
    inputs = arguments()
    specs = {name: opferry.TensorSpec(opferry.DType.FLOAT32, a.shape) for name, a in inputs.items()}
    plan = OPERATOR.check(specs, ApplyRotaryPosEmbGradAttributes(layout=4))
    wanted = OPERATOR.reference(inputs, plan)
    try:
        with shaped_link(BITS_PER_S, ROUND_TRIP_S) as hosts:
            address = hosts.far.submit(serve).result()
            grad_query, grad_key, seconds = hosts.near.submit(call, address).result()
    except OSError as error:
        pytest.skip(str(error))
    assert grad_query.tobytes() == wanted["grad_query"].tobytes()
    assert grad_key.tobytes() == wanted["grad_key"].tobytes()
    moved = sum(array.nbytes for array in (*inputs.values(), *wanted.values()))
    assert seconds > moved * 8 / BITS_PER_S + ROUND_TRIP_S
