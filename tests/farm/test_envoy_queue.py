"""Whichever server Envoy chose: a request is found there, and ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import opferry
from opferry import errors
from opferry._connect import client_config
from opferry._servers import Answer, ask_each, each_server
from tests.farm.running import Farm
from tests.support.calls import tnd
from tests.support.processes import eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROUNDS = 50
RUN_S = 1.0


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Three servers with mutual TLS, behind Envoy."""
    running = Farm(tmp_path_factory.mktemp("farm"), 3, tls=True, backend="SleepBackend")
    yield running
    running.close()


def test_requests_are_found_and_ended_on_any_server(farm: Farm) -> None:
    """50 of 50, by asking every server itself; the caller behind Envoy hears CANCELLED."""
    assert farm.access is not None
    target = ",".join(server.address for server in farm.servers)
    credentials = farm.access.direct()
    configs = each_server(client_config(target, **credentials))
    assert len(configs) == 3
    places: Counter[str] = Counter()
    ended: set[str] = set()

    def queues() -> list[Answer[opferry.Queue]]:
        return ask_each(configs, lambda client: client.queue(timeout=10))

    def found() -> list[tuple[str, str]]:
        # what was ended before may still run to its end
        return [
            (answer.target, request.request_id)
            for answer in queues()
            if answer.value is not None
            for request in answer.value.requests
            if request.request_id not in ended
        ]

    once = opferry.RetryConfig(attempts=1)
    with farm.client(retry=once, timeout=60) as client, ThreadPoolExecutor(1) as pool:
        for number in range(ROUNDS):
            tokens = 3000 if number % 5 == 0 else 2
            call = pool.submit(client.apply_rotary_pos_emb_grad, **tnd(tokens, cos=RUN_S))
            assert eventually(lambda: bool(found()))
            ((place, request_id),) = found()
            places[place] += 1
            ended.add(request_id)
            answers = ask_each(configs, lambda each, it=request_id: each.cancel(it, timeout=10))
            assert [answer.target for answer in answers if answer.error is None] == [place]
            refused = [answer.error for answer in answers if answer.error is not None]
            assert [error.reason for error in refused] == ["REQUEST_UNKNOWN"] * 2
            with pytest.raises(errors.CallCancelledError) as told:
                call.result()
            assert told.value.request_id == request_id
    assert set(places) == {server.address for server in farm.servers}
