"""The SDK's validation: what goes in, what comes out, and nothing that stays behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.validation import CaseStatus, GoldenMode, InputSource, Recipe, generate
from tests.support import servers, suites
from tests.support.calls import GRAD, HEAVY, Subject, assert_same_bits, reference
from tests.support.processes import (
    Threads,
    arena_count,
    descriptors,
    eventually,
    threads_return,
)
from tests.support.suites import TND, told


def arrays(subject: Subject, **fields: Any) -> dict[str, Any]:
    """Return the inputs of a call with layout TND."""
    found = subject.tnd(**fields)
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("mode", [GoldenMode.ENABLE, GoldenMode.PROMOTE])
def test_dumped_tensors_are_those_of_execute_and_of_the_reference(
    client: opferry.Client, subject: Subject, dtype: Any, mode: GoldenMode
) -> None:
    """Bit for bit: outputs as the typed method returns them, goldens as made here."""
    inputs = arrays(subject, tokens=300, dtype=dtype)
    result = client.validate(subject.name, inputs, attributes=TND, golden_mode=mode, dump=True)
    assert result.status is CaseStatus.PASS, result.reason
    executed = subject.call(client, **inputs, layout=4)
    assert_same_bits(executed, {name: result.dumped[name] for name in subject.outputs})
    specs = {
        name: TensorSpec(DType.of(array.dtype, name), array.shape) for name, array in inputs.items()
    }
    operator = subject.operator
    plan = operator.check(specs, operator.parse_attributes(TND))
    golden = operator.reference(inputs, plan, promote=mode is GoldenMode.PROMOTE)
    for name in subject.outputs:
        dumped = result.dumped[f"golden_{name}"]
        assert dumped.dtype == golden[name].dtype
        assert dumped.tobytes() == golden[name].tobytes()
    assert len(result.dumped) == 2 * len(subject.outputs)


def test_tensors_of_many_chunks_are_dumped_whole(client: opferry.Client, subject: Subject) -> None:
    """10 MB each way, in several chunks."""
    inputs = arrays(subject, tokens=40_000, query_heads=8, key_heads=1, with_query=False)
    result = client.validate(subject.name, inputs, attributes=TND, dump=True)
    assert result.status is CaseStatus.PASS
    expected = reference({**inputs, "layout": 4})
    assert result.dumped[subject.outputs[0]].nbytes > 10_000_000
    for name, array in expected.items():
        assert result.dumped[name].tobytes() == array.tobytes()
        assert result.dumped[f"golden_{name}"].tobytes() == array.tobytes()


def test_arrays_recipes_and_specs_may_be_mixed(client: opferry.Client, subject: Subject) -> None:
    """What a recipe stands for is what `generate` makes; a spec is a recipe of its own."""
    spec = TensorSpec(DType.FLOAT32, (2, 1, 8))
    query, key = subject.vectors
    optional = [item.name for item in subject.operator.inputs if item.optional]
    inputs: dict[str, Any] = {
        query: arrays(subject, query_heads=1)[query],
        key: Recipe(spec, seed=3, case_name="other"),
        "cos": spec,
        "sin": Recipe(spec, seed=5),
        **dict.fromkeys(optional[:1]),
    }
    mixed = client.validate(subject.name, inputs, attributes=TND, name="n", dump=True)
    sent = {
        query: inputs[query],
        key: Recipe(spec, seed=3, case_name="other", input_name=key),
        "cos": Recipe(spec, case_name="n", input_name="cos"),
        "sin": Recipe(spec, seed=5, case_name="n", input_name="sin"),
    }
    made = {
        name: np.frombuffer(generate(value).data, np.float32).reshape(2, 1, 8)
        if isinstance(value, Recipe)
        else value
        for name, value in sent.items()
    }
    plain = client.validate(subject.name, made, attributes=TND, name="n", dump=True)
    assert mixed.status is plain.status is CaseStatus.PASS
    assert told(mixed) == told(plain)
    assert_same_bits(
        subject.call(client, **made, layout=4),
        {name: mixed.dumped[name] for name in subject.outputs[:2]},
    )


def test_views_are_sent_as_they_are(client: opferry.Client, subject: Subject) -> None:
    """Transposed, reversed, broadcast and big-endian arrays mean their values."""
    plain = arrays(subject, tokens=4)
    query, key = subject.vectors
    shape = plain["cos"].shape
    views = {
        **plain,
        query: np.asfortranarray(plain[query]),
        key: plain[key][::-1][::-1],
        "cos": np.broadcast_to(plain["cos"][:1], shape),
        "sin": plain["sin"].astype(">f4"),
    }
    plain["cos"] = np.ascontiguousarray(views["cos"])
    one = client.validate(subject.name, views, attributes=TND, dump=True)
    two = client.validate(subject.name, plain, attributes=TND, dump=True)
    assert one.status is two.status is CaseStatus.PASS
    for name in subject.outputs:
        assert one.dumped[name].tobytes() == two.dumped[name].tobytes()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"operator": "apply_rotary"}, "OPERATOR_NOT_SUPPORTED"),
        ({"inputs": {}}, "INPUT_MISSING"),
        ({"attributes": {"layout": 7}}, "ENUM_UNKNOWN"),
        ({"attributes": {"layouts": 4}}, "ATTRIBUTE_INVALID"),
        ({"standard": "strict"}, "ATTRIBUTE_INVALID"),
        ({"edition": "1900"}, "ATTRIBUTE_INVALID"),
        ({"worst_count": 0}, "LIMIT_EXCEEDED"),
        ({"worst_count": 65}, "LIMIT_EXCEEDED"),
        ({"repeat": 0}, "LIMIT_EXCEEDED"),
        ({"deterministic": True}, "ATTRIBUTE_INVALID"),
        ({"operator_package": "mine"}, "OPERATOR_PACKAGE_UNKNOWN"),
        ({"name": "a" * 100_000}, "LIMIT_EXCEEDED"),
    ],
)
def test_what_is_wrong_is_raised(
    client: opferry.Client, wrong: dict[str, Any], reason: str, subject: Subject
) -> None:
    """A wrong name, word or number is the reason's own error."""
    arguments = {"operator": subject.name, "inputs": arrays(subject), "attributes": TND, **wrong}
    with pytest.raises(errors.OpFerryError) as caught:
        client.validate(**arguments)
    assert caught.value.reason == reason, caught.value


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda given: {**given, "cosine": given["cos"]}, "INPUT_UNKNOWN"),
        (lambda given: {"cos": given["cos"]}, "INPUT_MISSING"),
        (lambda given: {**given, "cos": given["cos"].astype(np.float64)}, "DTYPE_NOT_ALLOWED"),
        (lambda given: {**given, "cos": given["cos"][[0, 1, 1]]}, "SHAPE_MISMATCH"),
    ],
)
def test_wrong_inputs_are_raised(
    client: opferry.Client,
    wrong: Callable[[dict[str, Any]], dict[str, Any]],
    reason: str,
    subject: Subject,
) -> None:
    """A tensor too many or too few, or of another type or shape, is the reason's own error."""
    with pytest.raises(errors.OpFerryError) as caught:
        client.validate(subject.name, wrong(arrays(subject)), attributes=TND)
    assert caught.value.reason == reason, caught.value


def test_a_layout_of_the_other_operator_is_raised(client: opferry.Client) -> None:
    """BNSD is the forward's alone."""
    with pytest.raises(errors.ContractError) as caught:
        client.validate(GRAD.name, arrays(GRAD), attributes={"layout": 3})
    assert caught.value.reason == "LAYOUT_NOT_SUPPORTED"


@pytest.mark.parametrize("subject", HEAVY)
def test_results_come_in_the_order_of_the_cases(subject: Subject) -> None:
    """Also where the first is the slowest, and others are refused, or not run at all."""
    cases = [
        suites.case(f"{n}", suites.recipes(cos=1.0 if n == 0 else 0.0, subject=subject))
        for n in range(100)
    ]
    cases[10] = suites.case("10", suites.recipes(subject=subject), is_enabled=False)
    cases[11] = suites.case(
        "11", {**suites.recipes(subject=subject), "cos": suites.recipes(3, subject=subject)["cos"]}
    )
    cases[12] = suites.case(
        "12",
        suites.recipes(subject=subject),
        problem=Problem(Reason.SHAPE_MISMATCH, "no such shape"),
    )
    with (
        servers.embedded("SleepBackend", workers=3) as server,
        opferry.connect(server.address, timeout=60) as client,
    ):
        results = list(client.validate_cases(cases))
    assert [result.case.name for result in results] == [case.name for case in cases]
    statuses = [result.status for result in results]
    assert statuses[10:13] == [CaseStatus.DISABLED, CaseStatus.ERROR, CaseStatus.ERROR]
    del statuses[10:13]
    assert set(statuses) == {CaseStatus.PASS}


@pytest.mark.parametrize("where", ["before", "after", "alone"])
def test_rows_that_are_not_sent_are_no_hang(client: opferry.Client, where: str) -> None:
    """More of them than may be ahead, in one piece: nothing has to come for the run to go on."""
    off = [suites.case(f"{n}", is_enabled=False) for n in range(600)]
    on = [] if where == "alone" else [suites.case("on")]
    cases = off + on if where == "before" else on + off
    results = list(client.validate_cases(cases, timeout=10))
    assert [result.case for result in results] == cases
    expected = [CaseStatus.PASS if case.is_enabled else CaseStatus.DISABLED for case in cases]
    assert [result.status for result in results] == expected


@pytest.mark.full
def test_a_caller_who_takes_long_over_a_result_loses_nothing(subject: Subject) -> None:
    """The server may end a stream as idle meanwhile, and cases whose data nobody sends."""
    inputs = arrays(subject, tokens=200)
    cases = [suites.case(f"{n}", inputs) for n in range(140)]
    limits = {"stream_idle_ms": 300, "client_kept_bytes": 0, "case_count": 8}
    with (
        servers.embedded(limits=limits) as server,
        opferry.connect(server.address, timeout=30) as client,
    ):
        results = []
        for result in client.validate_cases(cases):
            results.append(result)
            if len(results) in (1, 30, 100):
                time.sleep(1.0)
    assert [result.status for result in results] == [CaseStatus.PASS] * 140, results[-1].reason


def endless(subject: Subject, drawn: list[int], cos: float | None = None) -> Iterator[Any]:
    while True:
        drawn.append(1)
        yield suites.case(f"{len(drawn)}", suites.recipes(500, cos=cos, subject=subject))


@pytest.mark.parametrize("subject", HEAVY)
def test_a_generator_that_is_closed_early_leaves_nothing(subject: Subject) -> None:
    """No thread here, no stream or memory there; cases are drawn only as they are sent."""
    with (
        servers.embedded(limits={"idle_memory_bytes": 0}) as server,
        opferry.connect(server.address, timeout=60) as client,
    ):
        client.validate(subject.name, suites.recipes(subject=subject), attributes=TND)
        assert eventually(lambda: arena_count(server.pid) == 0)
        held, threads = len(descriptors(server.pid)), Threads.of(server.pid)
        before = threading.active_count()
        for count in range(1, 8):
            drawn: list[int] = []
            results = client.validate_cases(
                endless(subject, drawn),
                inputs=list(InputSource)[count % 2],
                dump_outputs=count % 3 == 0,
            )
            for _ in range(count):
                assert next(results).status is CaseStatus.PASS
            results.close()
            assert len(drawn) < 500
        assert eventually(lambda: threading.active_count() <= before), threading.enumerate()
        assert eventually(lambda: arena_count(server.pid) == 0)
        assert eventually(lambda: len(descriptors(server.pid)) <= held)
        assert threads_return(server.pid, threads), (Threads.of(server.pid), threads)


def test_two_runs_on_one_client_do_not_mix(client: opferry.Client, subject: Subject) -> None:
    """In two threads, with seeds of their own: each has what it has alone."""
    cases = [
        suites.case(f"{n}", arrays(subject, seed=n) if n % 3 else suites.recipes(subject=subject))
        for n in range(60)
    ]

    def run(offset: int) -> list[Any]:
        part = cases[offset:] + cases[:offset]
        return [told(result) for result in client.validate_cases(part)]

    expected = [run(0), run(20)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, (0, 20))) == expected


def test_the_aio_twin_returns_the_same(client: opferry.Client, subject: Subject) -> None:
    """One case with its tensors, and many; two runs at a time."""
    cases = [
        suites.case(f"{n}", arrays(subject, seed=n) if n % 3 else suites.recipes(subject=subject))
        for n in range(60)
    ]
    off = [suites.case(f"off-{n}", is_enabled=False) for n in range(600)]
    expected = [told(result) for result in client.validate_cases(cases)]
    one = client.validate(subject.name, arrays(subject), attributes=TND, dump=True)

    async def run(connected: Any, some: list[Any]) -> list[Any]:
        return [told(result) async for result in await connected.validate_cases(some)]

    async def main() -> None:
        async with opferry.aio.connect(client.config.target, timeout=60) as connected:
            first, second = await asyncio.gather(run(connected, cases), run(connected, cases + off))
            assert first == expected
            assert second[:60] == expected
            assert len(second) == 660
            found = await connected.validate(
                subject.name, arrays(subject), attributes=TND, dump=True
            )
            assert told(found) == told(one)
            assert set(found.dumped) == set(one.dumped)
            for name, array in one.dumped.items():
                assert found.dumped[name].tobytes() == array.tobytes()
            with pytest.raises(errors.ContractError):
                await connected.validate(subject.name, {}, attributes=TND)

    asyncio.run(main())


@pytest.mark.parametrize("subject", HEAVY)
def test_an_aio_run_that_is_cancelled_or_closed_leaves_nothing(subject: Subject) -> None:
    """No task here, no stream or memory there."""
    with servers.embedded("SleepBackend", limits={"idle_memory_bytes": 0}) as server:

        async def main() -> None:
            async with opferry.aio.connect(server.address, timeout=60) as connected:
                await connected.validate(
                    subject.name, suites.recipes(cos=0.0, subject=subject), attributes=TND
                )

                async def sleeping() -> None:
                    inputs = suites.recipes(cos=1.0, subject=subject)
                    await connected.validate(subject.name, inputs, attributes=TND)

                task = asyncio.ensure_future(sleeping())
                while not (await connected.server_info()).workers[0].running_count:
                    await asyncio.sleep(0.02)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                results = await connected.validate_cases(endless(subject, [], cos=0.0))
                assert (await anext(results)).status is CaseStatus.PASS
                await results.aclose()
                others = asyncio.all_tasks() - {asyncio.current_task()}
                assert not [task for task in others if "alid" in repr(task)], others

        asyncio.run(main())
        assert eventually(lambda: arena_count(server.pid) == 0)


def test_a_closed_client_says_so(cpu_server: str, subject: Subject) -> None:
    """A run on a client that is closed in the middle ends; a new one is refused."""
    client = opferry.connect(cpu_server)
    results = client.validate_cases(
        [suites.case(f"{n}", suites.recipes(subject=subject)) for n in range(300)]
    )
    next(results)
    client.close()
    statuses = {result.status for result in results}
    assert statuses <= {CaseStatus.PASS, CaseStatus.NOT_RUN}
    with pytest.raises(errors.OpFerryError, match="closed"):
        client.validate(subject.name, suites.recipes(subject=subject), attributes=TND)
