"""Data that clients have sent are kept within bounds, and asked for again when they are gone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import opferry
from opferry.validation import CaseResult, CaseStatus
from opferry_server.folders import LOCK
from tests.support import raw, servers, suites, validating
from tests.support.calls import GRAD, Subject, subject_of
from tests.support.counting_proxy import counting_proxy
from tests.support.processes import eventually
from tests.support.validating import case, data, error_of, opened

pytestmark = pytest.mark.full

KIB = 1024
SPEC = raw.small_specs(tokens=128)[0]
"""A tensor of 4 KiB."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of the servers that are started."""
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """A server that keeps six tensors of 4 KiB."""
    limits = {"kept_bytes": 24 * KIB, "client_kept_bytes": 24 * KIB}
    with servers.embedded(limits=limits) as server:
        yield server.address


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)


def arguments(
    subject: Subject = GRAD, tokens: int = 20_000, seed: int = 0
) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Return the inputs of a call as arrays."""
    found = subject.tnd(tokens, 1, 1, seed=seed, with_query=False)
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


def validate(client: opferry.Client, inputs: dict[str, np.ndarray]) -> CaseResult:  # type: ignore[type-arg]
    return client.validate(subject_of(inputs).name, inputs, attributes=suites.TND)


def content(number: int) -> bytes:
    return bytes([number]) * SPEC.data_bytes


def run(subject: Subject, stream: validating.Stream, case_id: int, numbers: list[int]) -> list[int]:
    """Validate a case whose inputs are contents by number; return those that were asked for."""
    specs = raw.small_specs(tokens=128, subject=subject)
    inputs = [
        data(spec, sha256(content(number)).digest())
        for spec, number in zip(specs, numbers, strict=True)
    ]
    stream.send(case(case_id, inputs, subject=subject))
    frame = stream.read()
    assert frame is not None
    asked = []
    if frame.HasField("needed"):
        for index in frame.needed.input_indexes:
            asked.append(numbers[index])
            stream.send(validating.chunk(case_id, index, 0, content(numbers[index])))
        frame = stream.read()
        assert frame is not None
    assert not frame.verdict.error, error_of(frame.verdict)
    assert frame.verdict.outputs
    return asked


def test_a_second_run_sends_digests_only(folder: Path, subject: Subject) -> None:
    """2.5 MB go up the first time, some hundred bytes the second; the verdicts are the same."""
    with (
        servers.embedded() as server,
        counting_proxy(server.address) as proxy,
        opferry.connect(proxy.address) as client,
    ):
        inputs = arguments(subject)
        size = sum(array.nbytes for array in inputs.values())
        first = validate(client, inputs)
        sent = proxy.up_bytes
        assert sent > size
        second = validate(client, inputs)
        assert proxy.up_bytes - sent < 4 * KIB
        assert proxy.down_bytes < 64 * KIB
        assert suites.told(second) == suites.told(first)
        assert first.status is CaseStatus.PASS
        assert first.execution is not None
        assert first.execution.upload_bytes == size
        assert second.execution is not None
        assert second.execution.upload_bytes == 0
        # what has changed is sent again, and nothing else
        sent = proxy.up_bytes
        inputs["cos"] = inputs["cos"] + 1
        assert validate(client, inputs).status is CaseStatus.PASS
        assert inputs["cos"].nbytes < proxy.up_bytes - sent < inputs["cos"].nbytes + 8 * KIB
        assert len(files(folder)) == 5
        # another connection from the same host is the same client
        with opferry.connect(proxy.address) as other:
            sent = proxy.up_bytes
            validate(other, inputs)
            assert proxy.up_bytes - sent < 8 * KIB
    assert list(folder.iterdir()) == []


def test_the_longest_unused_go_first(address: str, folder: Path, subject: Subject) -> None:
    """Six tensors fit; using one keeps it."""
    with opened(address) as stream:
        assert run(subject, stream, 1, [1, 2, 3, 4]) == [1, 2, 3, 4]
        assert run(subject, stream, 2, [1, 2, 5, 6]) == [5, 6]
        assert len(files(folder)) == 6
        assert run(subject, stream, 3, [1, 2, 5, 7]) == [7]  # 3 goes
        assert run(subject, stream, 4, [4, 1, 2, 5]) == []
        assert run(subject, stream, 5, [3, 3, 3, 3]) == [3, 3, 3, 3]  # 6 goes
        assert run(subject, stream, 6, [6, 4, 1, 2]) == [6]
        assert sum(path.stat().st_size for path in files(folder)) == 6 * SPEC.data_bytes


def test_a_case_with_the_same_data_twice(address: str, folder: Path, subject: Subject) -> None:
    """They are kept once, and read for both inputs."""
    with opened(address) as stream:
        run(subject, stream, 1, [1, 1, 1, 2])
        assert len(files(folder)) == 2
        assert run(subject, stream, 2, [1, 1, 2, 1]) == []


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"kept_bytes": 0}, 0),
        ({"client_kept_bytes": 0}, 0),
        ({"client_kept_bytes": 4 * KIB - 1}, 0),
        ({"client_kept_bytes": 8 * KIB}, 2),
        ({"kept_bytes": 4 * KIB}, 1),
    ],
)
def test_the_bounds_hold(folder: Path, limits: dict[str, int], kept: int, subject: Subject) -> None:
    """One client's share and the whole; what does not fit is used, checked, and not kept."""
    with servers.embedded(limits=limits) as server, opened(server.address) as stream:
        for number in range(1, 4):
            run(subject, stream, number, [1, 2, 3, 4])
            assert len(files(folder)) == kept
        wrong = case(
            9,
            [data(spec, b"w" * 32) for spec in raw.small_specs(tokens=128, subject=subject)],
            subject=subject,
        )
        stream.send(wrong)
        stream.send_zeros(stream.needed(), wrong)
        assert error_of(stream.verdict()).reason == "CHECKSUM_MISMATCH"
        assert len(files(folder)) == kept


def test_one_clients_data_leave_anothers_alone(folder: Path, subject: Subject) -> None:
    """Each host has its share, and cannot use what another has sent."""
    limits = {"client_kept_bytes": 16 * KIB}
    with (
        servers.embedded(limits=limits) as server,
        counting_proxy(server.address, source="127.0.0.2") as proxy,
        opened(server.address) as one,
        opened(proxy.address) as other,
    ):
        run(subject, one, 1, [1, 2, 3, 4])
        assert run(subject, other, 1, [5, 6, 7, 8]) == [5, 6, 7, 8]
        assert len(files(folder)) == 8
        assert run(subject, one, 2, [5, 6, 7, 8]) == [5, 6, 7, 8]
        assert run(subject, other, 2, [5, 6, 7, 8]) == []
        assert len(files(folder)) == 8


@pytest.mark.parametrize("how", ["files", "folder", "truncated"])
def test_data_that_somebody_has_deleted_are_asked_for_again(
    address: str, folder: Path, how: str, subject: Subject
) -> None:
    """Whoever empties the temporary folder costs a transfer, and no case."""
    with opened(address) as stream:
        assert run(subject, stream, 1, [1, 2, 3, 4]) == [1, 2, 3, 4]
        assert run(subject, stream, 2, [1, 2, 3, 4]) == []
        if how == "folder":
            for path in folder.iterdir():
                shutil.rmtree(path)
        for path in files(folder):
            path.write_bytes(b"short") if how == "truncated" else path.unlink()
        assert run(subject, stream, 3, [1, 2, 3, 4]) == [1, 2, 3, 4]
        assert run(subject, stream, 4, [1, 2, 3, 4]) == []
        assert len(files(folder)) == 4


def test_without_a_folder_nothing_is_kept(address: str, folder: Path, subject: Subject) -> None:
    """A temporary folder that is gone altogether keeps no case from its verdict."""
    with opened(address) as stream:
        run(subject, stream, 1, [1, 2, 3, 4])
        shutil.rmtree(folder)
        for number in (2, 3):
            assert run(subject, stream, number, [1, 2, 3, 4]) == [1, 2, 3, 4]
        folder.mkdir()
        run(subject, stream, 4, [1, 2, 3, 4])
        assert run(subject, stream, 5, [1, 2, 3, 4]) == []


def test_changed_files_are_found_out(folder: Path, subject: Subject) -> None:
    """Data that were changed where they are kept are no verdict on others' data."""
    with servers.embedded() as server, opferry.connect(server.address) as client:
        inputs = arguments(subject, 200)
        validate(client, inputs)
        for path in files(folder):
            path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(opferry.errors.InvalidTensorError) as caught:
            validate(client, inputs)
    assert caught.value.reason == "CHECKSUM_MISMATCH"


def test_a_digest_of_another_size_is_no_hit(address: str, subject: Subject) -> None:
    """A tensor that is smaller than what is kept under its digest does not take a part of it."""
    with opened(address) as stream:
        run(subject, stream, 1, [1, 2, 3, 4])
        digest = sha256(content(1)).digest()
        small = case(
            2,
            [data(spec, digest) for spec in raw.small_specs(tokens=2, subject=subject)],
            subject=subject,
        )
        stream.send(small)
        stream.send_zeros(stream.needed(), small)
        assert error_of(stream.verdict()).reason == "CHECKSUM_MISMATCH"
        assert run(subject, stream, 3, [1, 2, 3, 4]) == []


def test_what_a_failed_case_has_written_is_deleted(
    address: str, folder: Path, subject: Subject
) -> None:
    """Files that nobody counts would fill the disk."""
    specs = raw.small_specs(tokens=128, subject=subject)
    with opened(address) as stream:
        for number in range(1, 20):
            good = sha256(content(number)).digest()
            inputs = [data(spec, good) for spec in specs[:3]] + [data(specs[3], b"w" * 32)]
            stream.send(case(number, inputs, subject=subject))
            for index in stream.needed().input_indexes:
                stream.send(validating.chunk(number, index, 0, content(number)))
            assert error_of(stream.verdict()).reason == "CHECKSUM_MISMATCH"
        assert files(folder) == []


def test_clients_that_leave_while_data_are_kept_leave_no_file_uncounted(
    address: str, folder: Path, subject: Subject
) -> None:
    """Cancelled at any point of it: the bound holds, and the next run goes well."""
    for number in range(40):
        with opened(address) as stream:
            specs = raw.small_specs(tokens=128, subject=subject)
            digests = [sha256(content(number + 4 * at)).digest() for at in range(4)]
            pairs = zip(specs, digests, strict=True)
            stream.send(case(1, [data(spec, digest) for spec, digest in pairs], subject=subject))
            frame = stream.read()
            assert frame is not None
            for index in frame.needed.input_indexes:
                stream.send(validating.chunk(1, index, 0, content(number + 4 * index)))
    with opened(address) as stream:
        run(subject, stream, 1, [201, 202, 203, 204])
    assert eventually(lambda: len(files(folder)) <= 6), files(folder)


def test_what_a_killed_server_has_left_is_deleted(folder: Path) -> None:
    """The next server that keeps data deletes it, and leaves alone what another one lives in."""
    environment = {"TMPDIR": str(folder)}
    with (
        servers.embedded_server(environment=environment) as killed,
        servers.embedded_server(environment=environment) as alive,
        servers.embedded_server(environment=environment) as last,
    ):
        found = []
        for server in (killed, alive, last):
            if server is last:
                killed.process.kill()
                killed.process.wait()
            with opferry.connect(server.address) as client:
                validate(client, arguments())
            found.append({path.parent for path in files(folder)})
        assert len(found[0]) == 1
        assert len(found[1]) == 2
        assert len(found[2]) == 2
        assert not found[0] & found[2]
    left = {path.parent for path in files(folder)}
    assert not left
