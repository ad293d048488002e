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
    from collections.abc import Mapping

    from opferry import aio, errors
    from opferry.client import Client
    from opferry.config import KeepaliveConfig, RetryConfig, TlsConfig
    from opferry.core.dtypes import DType
    from opferry.core.execution import Execution, ServerInfo, Timings
    from opferry.core.layouts import Layout
    from opferry.core.malloc import tune_malloc
    from opferry.core.tensors import TensorSpec
    from opferry.errors import OpFerryError
    from opferry.operators.base import Plan
    from opferry.results import (
        ApplyRotaryPosEmbGradResult,
        ApplyRotaryPosEmbResult,
        CallOutcome,
        Progress,
        ProgressState,
    )

__all__ = [
    "ApplyRotaryPosEmbGradResult",
    "ApplyRotaryPosEmbResult",
    "CallOutcome",
    "Client",
    "DType",
    "Execution",
    "KeepaliveConfig",
    "Layout",
    "OpFerryError",
    "Plan",
    "Progress",
    "ProgressState",
    "RetryConfig",
    "ServerInfo",
    "TensorSpec",
    "Timings",
    "TlsConfig",
    "aio",
    "connect",
    "errors",
    "tune_malloc",
]

# Imported when first used: importing opferry loads neither grpc nor numpy.
_HOMES = {
    "ApplyRotaryPosEmbGradResult": "opferry.results",
    "ApplyRotaryPosEmbResult": "opferry.results",
    "CallOutcome": "opferry.results",
    "Client": "opferry.client",
    "DType": "opferry.core.dtypes",
    "Execution": "opferry.core.execution",
    "KeepaliveConfig": "opferry.config",
    "Layout": "opferry.core.layouts",
    "OpFerryError": "opferry.errors",
    "Plan": "opferry.operators.base",
    "Progress": "opferry.results",
    "ProgressState": "opferry.results",
    "RetryConfig": "opferry.config",
    "ServerInfo": "opferry.core.execution",
    "TensorSpec": "opferry.core.tensors",
    "Timings": "opferry.core.execution",
    "TlsConfig": "opferry.config",
    "tune_malloc": "opferry.core.malloc",
}


def connect(
    target: str | None = None,
    *,
    timeout: float = 600.0,
    retry: RetryConfig | None = None,
    shared_memory: bool = True,
    kept_result_bytes: int | None = None,
    token: str | None = None,
    tls: TlsConfig | None = None,
    context: str | None = None,
    insecure: bool = False,
    keepalive: KeepaliveConfig | None = None,
    metadata: Mapping[str, str] | None = None,
    device_lease: str | None = None,
) -> Client:
    """Return a client of a server; nothing is sent before the first call.

    Args:
        target: "host:port"; "dns:///host:port" for all servers that a name stands for, or
            "host:port,host:port": calls go to each in turn, but to none that is ill or ends, and
            to new servers of the name. None: what OPFERRY_TARGET says, or the context.
        timeout: seconds that a call may take, tries included, where it does not say.
        retry: when a call is tried again; None: the defaults of `RetryConfig`.
        shared_memory: exchange tensors of 64 KiB or more through shared memory if the server is on
            this host and offers it; results over 3 MiB altogether are then read-only views of it.
            False: always over the network.
        kept_result_bytes: so much memory of results that are no longer used stays for the next
            ones, until the client is closed; None: 1 GiB, 0: none.
        token: says who calls, to a server with credentials; None: what OPFERRY_TOKEN says, or the
            file that OPFERRY_TOKEN_FILE names, or the context's.
        tls: how the connection is encrypted, and who is on its other end; None: what
            OPFERRY_TLS_AUTHORITIES and its likes say, or the context, and without them it is not.
        context: the name of a context of `opferry context`, which gives target, TLS and token
            where they are not given here; None: if there is no target either, what OPFERRY_CONTEXT
            says, or the current one.
        insecure: send the token even where others can read it: to another host, without TLS.
        keepalive: when a silent server is pinged; None: OPFERRY_KEEPALIVE_S, or the defaults of
            `KeepaliveConfig`.
        metadata: what else goes with each call, for what is on the way: an Envoy of opferry's farm
            chooses a server by x-opferry-soc and x-opferry-cann. None: what OPFERRY_METADATA says,
            as KEY=VALUE,KEY=VALUE.
        device_lease: the token of a lease of a device, on which all calls run; None: what
            OPFERRY_DEVICE_LEASE says, without which they run on any. See `Client.lease_device`.

    Raises:
        RequestError: if there is no target or it is none, there is no such context, the token is
            none or would travel in clear, a file cannot be read, or *kept_result_bytes* is
            negative.
        TransportError: if a name in a list of servers has no address.
    """
    from opferry._connect import client_config
    from opferry.client import Client

    return Client(
        client_config(
            target,
            timeout=timeout,
            retry=retry,
            shared_memory=shared_memory,
            kept_result_bytes=kept_result_bytes,
            token=token,
            tls=tls,
            context=context,
            insecure=insecure,
            keepalive=keepalive,
            metadata=metadata,
            device_lease=device_lease,
        )
    )


def __getattr__(name: str) -> Any:
    if name in ("aio", "errors"):
        return import_module(f"opferry.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'opferry' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
