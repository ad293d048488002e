"""Limits: what they count, at which number they refuse, and in which words."""

from __future__ import annotations

import pytest

from opferry.core.dtypes import DType
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec

LIMITS = LimitsConfig(tensor_bytes=100, request_bytes=1000, memory_bytes=500, repeat_count=3)


def test_a_tensor_at_the_limit_passes() -> None:
    """A limit is the largest number that is allowed."""
    LIMITS.check_tensors({"cos": TensorSpec(DType.FLOAT32, (25,))})
    LIMITS.check_request(1000, 500)
    LIMITS.check_repeats(1)
    LIMITS.check_repeats(3)


@pytest.mark.parametrize(
    ("spec", "given_bytes"),
    [
        (TensorSpec(DType.FLOAT32, (26,)), 104),
        (TensorSpec(DType.BFLOAT16, (2,), (1,), 0, (51,)), 102),
        (TensorSpec(DType.FLOAT16, (1000,), (0,), 0, (1,)), 2000),
        (TensorSpec(DType.FLOAT32, (2**31, 2**31, 2)), 2**65),
    ],
    ids=["view", "storage", "broadcast view", "beyond 64 bits"],
)
def test_a_tensor_over_the_limit_is_refused(spec: TensorSpec, given_bytes: int) -> None:
    """The larger of view and storage counts; name and both numbers are in the text."""
    with pytest.raises(Problem) as caught:
        LIMITS.check_tensors({"sin": TensorSpec(DType.FLOAT32, (1,)), "cos": spec})
    problem = caught.value
    assert problem.reason is Reason.TENSOR_TOO_LARGE
    assert problem.message == f"cos takes {given_bytes} bytes; the limit is 100"
    assert (problem.argument, problem.given, problem.allowed) == ("cos", str(given_bytes), "100")


@pytest.mark.parametrize(
    ("total", "host", "text"),
    [
        (1001, 0, "inputs, outputs and workspace) takes 1001 bytes; the limit is 1000"),
        (501, 501, "inputs and outputs) takes 501 bytes; the limit is 500"),
        (2000, 600, "inputs, outputs and workspace) takes 2000 bytes; the limit is 1000"),
    ],
)
def test_a_request_over_a_limit_is_refused(total: int, host: int, text: str) -> None:
    """All that a request takes, and what of it lies in the server's memory, are bounded."""
    with pytest.raises(Problem) as caught:
        LIMITS.check_request(total, host)
    assert (caught.value.reason, caught.value.message) == (
        Reason.TENSOR_TOO_LARGE,
        f"the request ({text}",
    )


@pytest.mark.parametrize("repeat", [0, -1, 4, 2**31 - 1])
def test_repeats_outside_the_limit_are_refused(repeat: int) -> None:
    """Fewer runs than one and more than the limit are refused with the range."""
    with pytest.raises(Problem) as caught:
        LIMITS.check_repeats(repeat)
    assert caught.value.reason is Reason.LIMIT_EXCEEDED
    assert caught.value.message == f"repeat is {repeat}; allowed is 1 to 3"


def test_every_limit_is_an_explicit_positive_number() -> None:
    """No default is unlimited."""
    assert all(isinstance(value, int) and value > 0 for value in vars(LimitsConfig()).values())
