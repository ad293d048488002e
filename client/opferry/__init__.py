"""Run NPU operators remotely.

    import opferry

    with opferry.connect("host:50051") as client:
        dq, dk, dcos, dsin = client.apply_rotary_pos_emb_grad(gq, gk, cos, sin, query=q, key=k)

`opferry.aio` has the asynchronous twin, `opferry.errors` all errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opferry import aio, errors
    from opferry.client import Client
    from opferry.config import RetryConfig
    from opferry.core.dtypes import DType
    from opferry.core.execution import Execution, ServerInfo, Timings
    from opferry.core.layouts import Layout
    from opferry.core.malloc import tune_malloc
    from opferry.core.tensors import TensorSpec
    from opferry.errors import OpFerryError
    from opferry.operators.base import Plan
    from opferry.results import (
        ApplyRotaryPosEmbGradResult,
        CallOutcome,
        Progress,
        ProgressState,
    )

__all__ = [
    "ApplyRotaryPosEmbGradResult",
    "CallOutcome",
    "Client",
    "DType",
    "Execution",
    "Layout",
    "OpFerryError",
    "Plan",
    "Progress",
    "ProgressState",
    "RetryConfig",
    "ServerInfo",
    "TensorSpec",
    "Timings",
    "aio",
    "connect",
    "errors",
    "tune_malloc",
]

# Imported when first used: importing opferry loads neither grpc nor numpy.
_HOMES = {
    "ApplyRotaryPosEmbGradResult": "opferry.results",
    "CallOutcome": "opferry.results",
    "Client": "opferry.client",
    "DType": "opferry.core.dtypes",
    "Execution": "opferry.core.execution",
    "Layout": "opferry.core.layouts",
    "OpFerryError": "opferry.errors",
    "Plan": "opferry.operators.base",
    "Progress": "opferry.results",
    "ProgressState": "opferry.results",
    "RetryConfig": "opferry.config",
    "ServerInfo": "opferry.core.execution",
    "TensorSpec": "opferry.core.tensors",
    "Timings": "opferry.core.execution",
    "tune_malloc": "opferry.core.malloc",
}


def connect(
    target: str | None = None,
    *,
    timeout: float = 600.0,
    retry: RetryConfig | None = None,
    shared_memory: bool = True,
    kept_result_bytes: int | None = None,
) -> Client:
    """Return a client of a server; nothing is sent before the first call.

    Args:
        target: "host:port"; None: what OPFERRY_TARGET says.
        timeout: seconds that a call may take, tries included, where it does not say.
        retry: when a call is tried again; None: the defaults of `RetryConfig`.
        shared_memory: exchange large tensors through shared memory if the server is on this host
            and offers it; results are then read-only views of it. False: always over the network.
        kept_result_bytes: so much memory of results that are no longer used stays for the next
            ones, until the client is closed; None: 1 GiB, 0: none.

    Raises:
        RequestError: if there is no target, it is not "host:port", or *kept_result_bytes* is
            negative.
    """
    from opferry._connect import client_config
    from opferry.client import Client

    return Client(client_config(target, timeout, retry, shared_memory, kept_result_bytes))


def __getattr__(name: str) -> Any:
    if name in ("aio", "errors"):
        return import_module(f"opferry.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'opferry' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
