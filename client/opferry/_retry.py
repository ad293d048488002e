"""When and how a call is tried again: pure, for both clients."""

from __future__ import annotations

import random
from typing import Any

import tenacity

from opferry.config import RetryConfig
from opferry.errors import OpFerryError, TransportError


def retry_options(config: RetryConfig, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of tenacity's Retrying or AsyncRetrying.

    Args:
        config: when to try again.
        timeout_s: the time for the whole call; no try begins after it.
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
        after_s = (state.seconds_since_start or 0.0) + state.upcoming_sleep
        return state.attempt_number >= config.attempts or after_s >= min(patience_s, timeout_s)

    return {
        "retry": tenacity.retry_if_exception(may_retry),
        "wait": wait,
        "stop": stop,
        "reraise": True,
    }


def may_retry(error: BaseException) -> bool:
    """Return whether sending the same request again is safe and may succeed."""
    return isinstance(error, OpFerryError) and error.may_retry
