"""The stand-ins for torch_npu and cann_ops_transformer, as a server's environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

import opferry
from opferry.embedded import EmbeddedServer, embedded_server
from tests.support.servers import PYTHONPATH, ROOT
from tests.support.simulator import own_devices

STAND_INS = ROOT / "tests" / "support" / "torch_npu_stand_in"


def environment(folder: Path = STAND_INS, **settings: str) -> dict[str, str]:
    """Return what lets a server find the stand-ins; skips where torch is not installed.

    Args:
        folder: where the packages are.
        settings: other variables, without their prefix OPFERRY_STAND_IN_, in lower case.
    """
    if find_spec("torch") is None:
        pytest.skip("torch is not installed; the extra dev has it")
    found = {"PYTHONPATH": os.pathsep.join([str(folder), PYTHONPATH]), **own_devices()}
    return found | {f"OPFERRY_STAND_IN_{name.upper()}": value for name, value in settings.items()}


@contextmanager
def server(
    options: Mapping[str, str] | None = None, workers: int = 1, **settings: str
) -> Iterator[tuple[EmbeddedServer, opferry.Client]]:
    """Run a server on the stand-ins, with a client; *settings* as for `environment`."""
    with (
        embedded_server(
            backend="torch-npu",
            workers=workers,
            options=options,
            environment=environment(**settings),
        ) as running,
        opferry.connect(running.address, timeout=60) as client,
    ):
        yield running, client
