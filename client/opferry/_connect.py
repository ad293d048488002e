"""From what the user of `connect` gives to a client's configuration."""

from __future__ import annotations

from opferry import errors
from opferry.config import KEPT_RESULT_BYTES, ClientConfig, RetryConfig
from opferry.core.problems import Problem, Reason
from opferry.envconfig import TARGET_VARIABLE, target_from_environment


def client_config(
    target: str | None,
    timeout: float,
    retry: RetryConfig | None,
    shared_memory: bool,
    kept_result_bytes: int | None,
) -> ClientConfig:
    """Return the configuration of a client.

    Raises:
        RequestError: if there is no target, it is not "host:port", or *kept_result_bytes* is
            negative.
    """
    found = target_from_environment() if target is None else target
    if not found:
        raise errors.RequestError(
            f"no target: give connect() a host:port, or set {TARGET_VARIABLE}", argument="target"
        )
    host, _, port = found.rpartition(":")
    if not (host and port.isdigit()) and not found.startswith("unix:"):
        problem = Problem(
            Reason.ATTRIBUTE_INVALID,
            f"target {found!r} is not host:port, such as 127.0.0.1:50051",
            argument="target",
            given=found,
            allowed="host:port",
        )
        raise errors.from_problem(problem)
    kept = KEPT_RESULT_BYTES if kept_result_bytes is None else kept_result_bytes
    if kept < 0:
        text = f"kept_result_bytes is {kept}; give bytes, or 0 to keep none"
        raise errors.RequestError(
            text, argument="kept_result_bytes", given=str(kept), allowed="0 or more"
        )
    return ClientConfig(
        found,
        timeout,
        RetryConfig() if retry is None else retry,
        shared_memory=shared_memory,
        kept_result_bytes=kept,
    )
