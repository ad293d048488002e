"""When and how a call is tried again: pure, for both clients."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import tenacity

from opferry.config import RetryConfig
from opferry.errors import OpFerryError, TransportError

_T = TypeVar("_T")


def after(error: Exception, once: Callable[[], _T]) -> Callable[[], _T]:
    """Return what raises *error* when first called, and does *once* from then on.

    So a first try needs nothing of tenacity's, which costs a small call a tenth of its time.
    """
    failed = [error]

    def next_try() -> _T:
        if failed:
            raise failed.pop()
        return once()

    return next_try


def after_async(
    error: Exception, once: Callable[[], Awaitable[_T]]
) -> Callable[[], Coroutine[Any, Any, _T]]:
    """Return the same for an asynchronous *once*."""
    failed = [error]

    async def next_try() -> _T:
        if failed:
            raise failed.pop()
        return await once()

    return next_try


def retry_options(config: RetryConfig, timeout_s: float, begun_s: float) -> dict[str, Any]:
    """Return the arguments of tenacity's Retrying or AsyncRetrying.

    Args:
        config: when to try again.
        timeout_s: the time for the whole call; no try begins after it.
        begun_s: when the call began, on the monotonic clock.
    """
    grow = tenacity.wait_random_exponential(config.first_wait_s, config.longest_wait_s)

    def wait(state: tenacity.RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        hint_s = getattr(error, "retry_after_s", None)
        if hint_s is None:
            return config.first_wait_s / 2 + grow(state)
        # spread, so that those who were refused together do not come back together
        return float(min(max(hint_s, 0.0), config.longest_wait_s)) * random.uniform(0.75, 1.75)  # noqa: S311

    def stop(state: tenacity.RetryCallState) -> bool:
        error = None if state.outcome is None else state.outcome.exception()
        patience_s = config.unreachable_s if isinstance(error, TransportError) else config.total_s
        after_s = time.monotonic() - begun_s + state.upcoming_sleep
        return state.attempt_number >= config.attempts or after_s >= min(patience_s, timeout_s)

    return {
        "retry": tenacity.retry_if_exception(may_retry),
        "wait": wait,
        "stop": stop,
        "reraise": True,
    }


class Outage:
    """The pauses in which a run that has begun tries to reach its server again."""

    def __init__(self, config: RetryConfig) -> None:
        """Pause as *config* says."""
        self._config = config
        self._since_s: float | None = None
        self._count = 0

    def over(self) -> None:
        """Note that the server does its work: the next pause is the first again."""
        self._since_s, self._count = None, 0

    def pause_s(self, error: OpFerryError, *, begun: bool) -> float | None:
        """Return how long to wait before the next try; None to give up.

        Args:
            error: what went wrong.
            begun: whether the server has taken the run before: then it is waited for.
        """
        if not may_retry(error):
            return None
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        patience_s = self._config.total_s
        if isinstance(error, TransportError):
            patience_s = self._config.reconnect_s if begun else self._config.unreachable_s
        grown_s = self._config.first_wait_s * 2.0 ** min(self._count, 30)
        longest_s = self._config.longest_wait_s
        hint_s = grown_s if error.retry_after_s is None else error.retry_after_s
        pause_s = min(hint_s, longest_s) * random.uniform(0.75, 1.25)  # noqa: S311 - a pause
        self._count += 1
        if self._count >= self._config.attempts or now_s + pause_s - self._since_s > patience_s:
            return None
        return pause_s


def may_retry(error: BaseException) -> bool:
    """Return whether sending the same request again is safe and may succeed."""
    return isinstance(error, OpFerryError) and error.may_retry
