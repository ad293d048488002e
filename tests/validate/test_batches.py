"""Batch consistency: slices with one seed are made alike, and must come out alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opferry
from opferry.core.execution import Timings
from opferry.operators.call import Call
from opferry.validation import BatchConsistency, CaseStatus, read_cases
from tests.support import servers
from tests.support.backends import Arrays, MoodyBackend
from tests.support.calls import Subject
from tests.support.suite_runs import bsnd_cells, rows_of, run, write_rows_of

pytestmark = pytest.mark.full


class BatchDependent(MoodyBackend):
    """Of more than four batches it rounds the later ones less well."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        timings = self.compute(call, inputs, outputs)
        late = outputs[call.operator.outputs[0].name][4:]
        late[...] = np.nextafter(late, np.float32(np.inf))
        return timings


def bsnd(subject: Subject, batch: int, cos_batch: int) -> dict[str, str]:
    """Return the cells of a BSND row whose first axis can be sliced."""
    return {
        **bsnd_cells(subject, f"({batch},3,2,8)", f"({cos_batch},3,1,8)"),
        "tensor_dtypes": "('float32',)",
        "batch_axis": "",
        "batch_slice_info": "",
        "batch_seed": "",
    }


def sliced(start: int, stop: int, seed: int) -> dict[str, str]:
    return {
        "batch_axis": "((0,),)",
        "batch_slice_info": f"(((({start},{stop},1),),),)",
        "batch_seed": f"((({seed},),),)",
    }


@pytest.fixture(params=[1, "B"], ids=["cos shared", "cos of each batch"])
def cases(request: pytest.FixtureRequest, tmp_path: Path, subject: Subject) -> Path:
    """Three rows with the same four batches at different places, and one without slices."""

    def row(batch: int) -> dict[str, str]:
        return bsnd(subject, batch, 1 if request.param == 1 else batch)

    return write_rows_of(
        tmp_path / "cases.csv",
        [
            {**row(4), **sliced(0, 4, 100)},
            {**row(8), **sliced(0, 4, 100)},
            {**row(8), **sliced(4, 8, 100)},
            {**row(8), **sliced(4, 8, 200)},
            row(4),
        ],
    )


def test_an_operator_that_computes_each_batch_alike_agrees(
    cpu_server: str, cases: Path, subject: Subject
) -> None:
    """The group of three slices agrees; the one alone is not judged."""
    result = cases.with_name("result.csv")
    done = run("validate", "-i", cases, "--target", cpu_server, "--dl", "3", "-o", result)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "batch consistency: 1 of 1 groups agree; 1 have but one slice" in done.stdout
    digests = [row[f"{subject.outputs[0]}_digest"] for row in rows_of(result)]
    assert len(set(digests)) == len(digests), "what lies outside the slices differs"


def test_an_operator_that_depends_on_the_place_is_found(cases: Path, subject: Subject) -> None:
    """The row whose slice comes out otherwise fails, and names the row that it differs from."""
    path = f"{__name__}:BatchDependent"
    with servers.embedded_server(
        backend=path, environment={"PYTHONPATH": servers.PYTHONPATH}
    ) as server:
        words = ["--target", server.address, "--dl", "3"]
        done = run("validate", "-i", cases, *words)
        without = run("validate", "-i", cases, "--target", server.address)
    assert done.returncode == 1
    assert "batch consistency: 0 of 1 groups agree" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("row "))
    assert "case_2" in line
    assert f"{subject.outputs[0]} of seed 100" in line
    assert "than case_0 at" in line
    assert without.returncode == 0, "one place off is within the standard"


def test_the_sdk_judges_slices(cpu_server: str, cases: Path, subject: Subject) -> None:
    """The same by hand: outputs come back, and the same slices have the same inputs."""
    consistency = BatchConsistency()
    with opferry.connect(cpu_server) as client:
        found = client.validate_cases(read_cases(cases).cases, batch_consistency=True)
        results = [consistency.check(result) for result in found]
    assert {result.status for result in results} == {CaseStatus.PASS}
    name = subject.outputs[0]
    assert np.array_equal(results[0].dumped[name], results[2].dumped[name][4:], equal_nan=True)
    assert not results[4].dumped
