"""A call that runs for minutes and moves no data meanwhile, over a connection that is pinged."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import opferry
from tests.support import servers


def long_call(folder: Path, seconds: float) -> None:
    """Make one call of so many seconds, with the periods that both sides have by default.

    Raises:
        OpFerryError: if the connection does not last.
    """
    ones = np.ones((2, 1, 8), np.float32)
    with (
        servers.tcp(folder, "SleepBackend", limits={"run_ms": round(seconds * 2000)}) as server,
        opferry.connect(
            server.address, retry=opferry.RetryConfig(attempts=1), timeout=seconds * 2
        ) as client,
    ):
        sleepy = np.full_like(ones, seconds)
        client.apply_rotary_pos_emb_grad(ones, ones, sleepy, ones, layout=4)
        client.server_info()
