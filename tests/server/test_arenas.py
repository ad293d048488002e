"""Arenas and their pool: sealed, within the budget, and gone when they are closed."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opferry.core.dtypes import DType
from opferry.core.execution import Timings
from opferry.core.tensors import TensorSpec
from opferry.operators.call import ALIGNMENT_BYTES, HOST_STEP_BYTES, Call, check_contract
from opferry_server.workers.arena import SLACK, Arena, ArenaPool
from opferry_server.workers.begun import BegunJobs
from opferry_server.workers.messages import (
    Placement,
    RunReply,
    RunRequest,
    Task,
    TaskKind,
    Work,
    decode,
    decode_for_worker,
)
from tests.support.calls import ROTARY_GRAD

PAGE = HOST_STEP_BYTES


def resident_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


@pytest.mark.parametrize("size", [0, PAGE // 2, PAGE * 4])
def test_an_arena_cannot_change_its_size(size: int) -> None:
    """A peer that could shrink it would kill its reader with SIGBUS."""
    arena = Arena(2 * PAGE)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked
        os.ftruncate(arena.fd, size)
    assert caught.value.errno == errno.EPERM
    arena.close()


def test_a_closed_arena_gives_its_memory_back_though_it_is_mapped_elsewhere() -> None:
    """A busy worker unmaps later; the pages are free at once."""
    arena = Arena(64 * PAGE)
    elsewhere = os.dup(arena.fd)
    mapped = mmap.mmap(elsewhere, 64 * PAGE)
    arena.view[:] = b"x" * (64 * PAGE)
    assert resident_bytes(elsewhere) == 64 * PAGE
    view = arena.view[:10]
    arena.close()
    assert resident_bytes(elsewhere) == 0
    assert mapped[:10] == bytes(10)
    view.release()
    mapped.close()
    os.close(elsewhere)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 80 * PAGE).map(lambda size: ("lease", size)),
            st.integers(0, 20).map(lambda which: ("release", which)),
            st.just(("shrink", 0)),
            st.just(("trim", 0)),
        ),
        max_size=40,
    )
)
def test_the_pool_keeps_its_budget(steps: list[tuple[str, int]]) -> None:
    """Whatever is leased and released: never over budget, nor refused in vain."""
    budget, idle_share = 100 * PAGE, 30 * PAGE
    closed: list[int] = []
    pool = ArenaPool(budget, idle_share, lambda arena: closed.append(arena.id))
    leased: list[Arena] = []
    for step, number in steps:
        if step == "lease":
            need = -(-max(number, 1) // PAGE) * PAGE
            arena = pool.lease(number)
            in_use = sum(item.capacity_bytes for item in leased)
            if arena is None:
                assert in_use + need > budget
            else:
                assert arena.capacity_bytes >= number
                assert arena.capacity_bytes <= max(need * SLACK, 64 * 1024)
                assert arena not in leased
                leased.append(arena)
        elif step == "release" and leased:
            pool.release(leased.pop(number % len(leased)))
        elif step == "shrink":
            pool.shrink()
            assert pool.total_bytes - sum(a.capacity_bytes for a in leased) <= idle_share
        elif step == "trim":
            pool.trim(0.0)
            assert pool.total_bytes == sum(a.capacity_bytes for a in leased)
        assert pool.total_bytes <= budget
        assert pool.leased_count == len(leased)
    assert len(closed) == len(set(closed))
    for arena in leased:
        pool.release(arena)
    pool.trim(0.0)
    assert pool.total_bytes == 0


def rotary_call(with_query: bool) -> Call:
    heads = TensorSpec(DType.FLOAT16, (3, 2, 6), (24, 12, 1), 5, (80,))
    one = TensorSpec(DType.FLOAT16, (3, 1, 6))
    names = ["grad_query_embed", "grad_key_embed", *(["query", "key"] if with_query else [])]
    inputs = {"cos": one, "sin": one, **dict.fromkeys(names, heads)}
    attributes = ROTARY_GRAD.parse_attributes({"layout": 4})
    return Call(ROTARY_GRAD, attributes, inputs, digests={"cos": b"12345678"})


@pytest.mark.parametrize("with_query", [False, True])
def test_a_placement_has_neither_overlap_nor_gap(with_query: bool) -> None:
    """Inputs in their order, then outputs, each aligned, none over another."""
    checked = check_contract(rotary_call(with_query))
    placement = Placement.of(checked)
    spans = sorted(
        (offset, offset + spec.data_bytes)
        for offsets, specs in (
            (placement.inputs, checked.call.inputs),
            (placement.outputs, checked.outputs),
        )
        for (name, offset) in offsets.items()
        for spec in [specs[name]]
    )
    assert len(spans) == len(checked.call.inputs) + len(checked.outputs)
    assert spans[0][0] == 0
    assert spans[-1][1] <= placement.size_bytes
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start < end + ALIGNMENT_BYTES
    assert all(start % ALIGNMENT_BYTES == 0 for start, _ in spans)


def test_messages_come_back_as_they_were() -> None:
    """What the front sends is what the worker reads, and the other way round."""
    checked = check_contract(rotary_call(True))
    work = Work(replace(checked.call, client="c"), checked.outputs, Placement.of(checked))
    digested = replace(checked.call, client="c", digests={"cos": b"\x00\xff"})
    task = Task(TaskKind.GOLDEN, b"\n", b"\xff\n", {"cos": "file"})
    for some in (work, work, replace(work, call=digested), replace(work, task=task)):
        request = RunRequest(7, 8, 9 * PAGE, "c", some)
        kind, fields, encoded = decode_for_worker(request.encode())
        assert kind == "run"
        assert RunRequest.decode(fields, encoded) == request
    other = RunRequest(8, 8, 9 * PAGE, "d", work)
    _, fields, encoded = decode_for_worker(other.encode())
    assert RunRequest.decode(fields, encoded).work.call.client == "d"
    for reply in (
        RunReply(7, Timings(1, kernel_ns=(2, 3)), {"grad_query": b"\x00\xff"}, verdict=b"\xff"),
        RunReply(7, problem={"reason": "DEVICE_FAULT"}, ends_worker=True, device_broken=True),
        RunReply(7, workspace_bytes=0, probes_device=True),
    ):
        kind, fields = decode(reply.encode())
        assert kind == "done"
        assert RunReply.decode(fields) == reply


def test_what_was_begun_outlives_who_began_it() -> None:
    """The page that a worker writes is read by the front, for each of its threads."""
    front = BegunJobs.make()
    worker = BegunJobs(os.dup(front.fd))
    assert 1 not in front
    worker.begin(0, 1)
    worker.begin(3, 2**40)
    assert 1 in front
    assert 2**40 in front
    worker.begin(0, 2)
    assert 1 not in front
    worker.close()
    assert 2 in front
    front.close()
