"""Every limit of a server as an explicit number; the client learns them from GetServerInfo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MESSAGE_BYTES = 4 * MIB
"""The largest message, with its frame: gRPC's own default, so that every client can send it."""


def _limit(
    default: int,
    help: str,  # noqa: A002 - what it becomes
    least: int = 1,
    most: int = 2**50,
) -> int:
    """Return a field with a sentence that help texts show too, and the bounds that make sense."""
    value: int = field(default=default, metadata={"help": help, "least": least, "most": most})
    return value


@dataclass(frozen=True)
class LimitsConfig:
    """What a server allows. Both sides refuse by these numbers, in the same words."""

    message_bytes: int = _limit(
        MESSAGE_BYTES, "The largest message, with its frame.", most=2**31 - 1
    )
    unary_bytes: int = _limit(
        3 * MIB, "The most tensor data, in and out each, that a unary call carries."
    )
    tensor_bytes: int = _limit(4 * GIB, "The largest tensor.")
    request_bytes: int = _limit(
        16 * GIB, "The most that one request may take: inputs, outputs and workspace."
    )
    memory_bytes: int = _limit(8 * GIB, "The memory for all requests' inputs and outputs together.")
    idle_memory_bytes: int = _limit(
        4 * GIB,
        least=0,
        help="How much of that memory stays warm for the next request while nobody uses it.",
    )
    leased_bytes: int = _limit(
        4 * GIB,
        least=0,
        help="What of that memory clients on the server's own host may lease; at most half of it.",
    )
    client_leased_bytes: int = _limit(
        2 * GIB, least=0, help="What of it one client's connection may lease."
    )
    queue_count: int = _limit(64, "The requests that may wait, beyond those that run.")
    tensor_count: int = _limit(16, "The most tensors in one request.")
    name_bytes: int = _limit(128, "The longest name of a tensor or a package.")
    rank_count: int = _limit(8, "The most axes of one tensor.")
    stream_count: int = _limit(
        256, "The most streams that one connection may have open.", most=2**31 - 1
    )
    call_count: int = _limit(
        512, "The most calls that are open at a time, over all connections.", most=2**31 - 1
    )
    case_count: int = _limit(
        32, "The most cases that one stream of Validate may have under way.", most=10_000
    )
    kept_bytes: int = _limit(
        4 * GIB, least=0, help="The data of validations that are kept for a second run, in files."
    )
    client_kept_bytes: int = _limit(1 * GIB, least=0, help="What of them may be one client's.")
    repeat_count: int = _limit(1000, "How often one request may run the operator.", most=10_000)
    stream_idle_ms: int = _limit(
        30_000, "A stream on which the peer neither sends nor reads for so long is ended."
    )
    queue_ms: int = _limit(600_000, "A request that waits for so long is ended.")
    run_ms: int = _limit(
        600_000, "A request that runs for so long is ended together with its worker."
    )

    def check_tensors(self, specs: Mapping[str, TensorSpec]) -> None:
        """Check each tensor against `tensor_bytes`.

        Raises:
            Problem: TENSOR_TOO_LARGE, naming the tensor and both numbers.
        """
        for name, spec in specs.items():
            if max(spec.data_bytes, spec.view_bytes) > self.tensor_bytes:
                raise too_large(name, max(spec.data_bytes, spec.view_bytes), self.tensor_bytes)

    def check_request(self, total_bytes: int, host_bytes: int) -> None:
        """Check what one request takes.

        Args:
            total_bytes: inputs, outputs and workspace together.
            host_bytes: inputs and outputs, which lie in the server's memory.

        Raises:
            Problem: TENSOR_TOO_LARGE, naming both numbers.
        """
        if total_bytes > self.request_bytes:
            raise too_large(
                "the request (inputs, outputs and workspace)", total_bytes, self.request_bytes
            )
        if host_bytes > self.memory_bytes:
            raise too_large("the request (inputs and outputs)", host_bytes, self.memory_bytes)

    def check_repeats(self, repeat_count: int, warmup_count: int = 0) -> None:
        """Check how often the operator is to run.

        Raises:
            Problem: LIMIT_EXCEEDED for repeats outside 1 to `repeat_count`, or warm-up runs outside
                0 to `repeat_count`.
        """
        for what, count, least in (("repeat", repeat_count, 1), ("warmup", warmup_count, 0)):
            if not isinstance(count, int) or not least <= count <= self.repeat_count:
                raise Problem(
                    Reason.LIMIT_EXCEEDED,
                    f"{what} is {count}; allowed is {least} to {self.repeat_count}",
                    argument=what,
                    given=str(count),
                    allowed=f"{least} to {self.repeat_count}",
                )


def too_large(what: str, given_bytes: int, limit_bytes: int) -> Problem:
    """Return the problem of something over a limit, with both numbers in bytes."""
    return Problem(
        Reason.TENSOR_TOO_LARGE,
        f"{what} takes {given_bytes} bytes; the limit is {limit_bytes}",
        argument=what,
        given=str(given_bytes),
        allowed=str(limit_bytes),
    )
