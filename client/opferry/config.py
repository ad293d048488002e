"""How a client behaves: one small value class for each concern."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_RESULT_BYTES = 2**30
"""What a client keeps: results of some 100 MiB, one after the other, use the same memory."""


@dataclass(frozen=True)
class RetryConfig:
    """When a call is tried again. Only what is safe ever is: see `may_retry` on errors."""

    attempts: int = 100
    """How often a call is tried at the most; 1: never again."""
    total_s: float = 60.0
    """For how long it is tried while the server is busy, within the call's own timeout."""
    unreachable_s: float = 10.0
    """For how long it is tried while the server cannot be reached, likewise."""
    reconnect_s: float = 60.0
    """For how long a validation that has begun waits for its server to come back."""
    first_wait_s: float = 0.1
    """The pause before the second try, doubled each time; a server's hint takes precedence."""
    longest_wait_s: float = 5.0
    """The longest pause."""


@dataclass(frozen=True)
class ClientConfig:
    """What a client was made with."""

    target: str
    """The server's address, "host:port"."""
    timeout_s: float = 600.0
    """How long a call may take, tries included, where the call does not say."""
    retry: RetryConfig = RetryConfig()
    """When a call is tried again."""
    shared_memory: bool = True
    """Whether tensors pass through memory shared with a server on this host that offers it."""
    kept_result_bytes: int = KEPT_RESULT_BYTES
    """How much memory of results that are no longer used is kept for the next ones."""
