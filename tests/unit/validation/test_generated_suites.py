"""Generated suites: the same bytes everywhere, valid, and with everything that is to be there."""

from __future__ import annotations

import hashlib
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opferry.core.dtypes import DType
from opferry.core.limits import KIB, MIB
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor, TensorSpec, view_array
from opferry.operators.call import Call, CallResult
from opferry.validation import Case, CaseFile, CaseFileError, CaseStatus, read_cases, run_cases
from opferry.validation.generation import LEVELS, GeneratedRow, generated_rows, write_rows

NAME = "apply_rotary_pos_emb_grad"

VECTORS = {
    "uniform": "47951b6057e2c2dc7f793828e08f2ebe3674bddd647d432e8782cc8dda023c98",
    "both": "c18bfccb5167e21dce59ad2b8b585845725aa72300772cebfc26bcdbf4408d40",
}
"""SHA-256 of the file of level L0 with seed 0, by distribution."""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def l0_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of level L0."""
    path = tmp_path_factory.mktemp("suite") / "l0.csv"
    assert write_rows(path, generated_rows(NAME, "L0")) == 5_000
    return path


@pytest.fixture(scope="module")
def l0(l0_path: Path) -> CaseFile:
    """The same, read back."""
    return read_cases(l0_path)


def input_bytes(specs: Mapping[str, TensorSpec]) -> int:
    return sum(spec.data_bytes for spec in specs.values())


def test_the_suite_of_level_l0_is_the_known_one(l0_path: Path) -> None:
    """Whoever makes it, on whatever machine, has the same file."""
    assert digest(l0_path) == VECTORS["both"]


def test_hashes_of_strings_have_no_part_in_it(tmp_path: Path) -> None:
    """Another process with other string hashes writes the same bytes."""
    code = (
        "from opferry.validation.generation import generated_rows, write_rows\n"
        f"write_rows('suite.csv', generated_rows('{NAME}', 'L0', row_count=500))"
    )
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)
    assert digest(tmp_path / "1" / "suite.csv") == digest(tmp_path / "2" / "suite.csv")


def test_half_of_the_rows_are_normal(l0_path: Path, tmp_path: Path) -> None:
    """The default is both: nothing else differs, and the column says which it is."""
    path = tmp_path / "uniform.csv"
    write_rows(path, generated_rows(NAME, "L0", distribution="uniform"))
    assert digest(path) == VECTORS["uniform"]
    both, uniform = l0_path.read_text().splitlines(), path.read_text().splitlines()
    normal = [line for line in both if re.search(r",True,(?=[^,]*$|\")", line)]
    assert 2_400 < len(normal) < 2_600
    assert [line.replace(",True,", ",,") for line in both] == uniform
    rows = list(generated_rows(NAME, "L0", row_count=20, distribution="normal"))
    assert all(row.normal for row in rows)


def test_fewer_rows_are_the_first_of_more(l0_path: Path, tmp_path: Path) -> None:
    """A trial of some rows is the beginning of the suite."""
    path = tmp_path / "short.csv"
    write_rows(path, generated_rows(NAME, "L0", row_count=70))
    assert l0_path.read_text().startswith(path.read_text())


def test_another_seed_gives_other_cases(l0: CaseFile) -> None:
    """Nearly no row has the shapes that it has with seed 0."""
    others = list(generated_rows(NAME, "L0", row_count=200, seed=1))
    same = sum(dict(case.inputs) == row.inputs for case, row in zip(l0.cases, others, strict=False))
    assert same < 10


def test_every_row_satisfies_the_contract(l0: CaseFile) -> None:
    """Read back, checked and within the level's budget; one row fills it."""
    for case in l0.cases:
        plan = case.operator.check(case.inputs, case.attributes)
        assert plan.template.lower() in case.name
        assert plan.input_bytes <= LEVELS["L0"].largest_bytes
        assert case.is_enabled
        assert case.remark
        assert l0.unknown_columns == ()
    assert len({case.name for case in l0.cases}) == 5_000
    assert max(input_bytes(case.inputs) for case in l0.cases) == LEVELS["L0"].largest_bytes


@pytest.mark.parametrize("first", [0, 1234])
def test_78_rows_have_every_form_in_every_dtype(l0: CaseFile, first: int) -> None:
    """Layout, template, broadcast, dtype and query and key, each with each, in a short suite."""
    seen = Counter(traits(case)[:4] for case in l0.cases[first : first + 78])
    forms = {(layout, template, axes) for layout, template, axes, _ in seen}
    assert {(layout, template) for layout, template, _ in forms} == {
        *((layout, template) for layout in (1,) for template in ("A", "AB", "BAB")),
        *((2, template) for template in ("A", "AB")),
        *((4, template) for template in ("A", "BAB")),
    }
    assert len(forms) >= 9
    assert Counter(dtype for *_, dtype in seen.elements()) == dict.fromkeys(DType, 26)


def traits(case: Case) -> tuple[int, str, tuple[int, ...], DType]:
    plan = case.operator.check(case.inputs, case.attributes)
    return case.attributes.layout, plan.template, plan.broadcast_axes, case.inputs["cos"].dtype


def facts(case: Case) -> Iterator[str]:
    """Yield what a case is there for, in words that the counts below know."""
    inputs, plan = case.inputs, case.operator.check(case.inputs, case.attributes)
    query, key = inputs["grad_query_embed"].shape, inputs["grad_key_embed"].shape
    yield f"layout {case.attributes.layout}"
    yield f"template {plan.template}"
    yield f"tiling key {plan.tiling_key}"
    yield inputs["cos"].dtype.value
    yield "with query and key" if "query" in inputs else "without query and key"
    yield f"broadcast {plan.broadcast_axes}"
    yield from (f"D = {width}" for width in (2, 1024) if query[-1] == width)
    if query[-2] != key[-2]:
        yield "more query heads" if query[-2] > key[-2] else "more key heads"
        yield from ("one query head beside more",) if query[-2] == 1 else ()
        yield from ("one key head beside more",) if key[-2] == 1 else ()
    extents = [*query[:-1], key[-2]]
    yield from ("long heads",) if max(query[-2], key[-2]) > 1000 else ()
    yield from ("one position",) if 1 in query[:-2] else ()
    if min(extents) > 2:
        yield from ("powers",) if all(n & (n - 1) == 0 for n in extents) else ()
        yield from ("powers less one",) if all(n & (n + 1) == 0 for n in extents) else ()
    views = [spec for spec in inputs.values() if not spec.is_contiguous]
    yield from ("non-contiguous",) if views else ()
    yield from ("offset",) if any(spec.storage_offset for spec in views) else ()
    yield from ("stride 0",) if any(0 in spec.full_strides for spec in views) else ()
    yield from ("last stride 2",) if any(spec.full_strides[-1] == 2 for spec in views) else ()
    if any(list(s.full_strides) != sorted(s.full_strides, reverse=True) for s in views):
        yield "axes stored in another order"
    numbers = {n for r in case.ranges.values() for n in (r.low, r.high, *r.forced)}
    yield from ("NaN",) if any(n != n for n in numbers) else ()
    yield from (f"{n}" for n in (np.inf, -np.inf) if n in numbers)
    yield from ("forced",) if any(r.forced for r in case.ranges.values()) else ()
    yield from ("constant",) if any(r.low == r.high == 1 for r in case.ranges.values()) else ()
    yield from ("largest",) if any(6e4 < abs(n) < np.inf for n in numbers) else ()
    yield from ("default range",) if not case.columns["input_data_ranges"] else ()


LEAST = {
    **{f"layout {number}": 700 for number in (1, 2, 4)},
    **{f"template {name}": 1000 for name in ("A", "AB", "BAB")},
    **{f"tiling key {key}": 1000 for key in (203, 204, 205)},
    **dict.fromkeys(("float16", "bfloat16", "float32"), 1600),
    **dict.fromkeys(("with query and key", "without query and key"), 2400),
    **{f"broadcast {axes}": 300 for axes in ((), (0,), (1,), (2,), (0, 2), (1, 2))},
    **dict.fromkeys(("D = 2", "D = 1024"), 300),
    **dict.fromkeys(("more query heads", "more key heads"), 500),
    **dict.fromkeys(("one query head beside more", "one key head beside more"), 300),
    "long heads": 20,
    "one position": 300,
    "powers": 50,
    "powers less one": 50,
    "non-contiguous": 1000,
    "offset": 300,
    "stride 0": 30,
    "last stride 2": 100,
    "axes stored in another order": 100,
    **dict.fromkeys(("NaN", "inf", "-inf", "forced"), 500),
    "constant": 200,
    "largest": 200,
    "default range": 500,
}
"""How many rows of level L0 have each of these, at least."""


def test_everything_is_there_often_enough(l0: CaseFile) -> None:
    """Layouts, templates, dtypes, boundaries, special values and views."""
    counts = Counter(fact for case in l0.cases for fact in facts(case))
    missing = {fact: counts[fact] for fact, least in LEAST.items() if counts[fact] < least}
    assert not missing
    assert not {f for f in counts if f.startswith("broadcast")} - set(LEAST)


def sizes_of(level: str, **words: Any) -> list[int]:
    return [input_bytes(row.inputs) for row in generated_rows(NAME, level, **words)]


def test_level_l1_is_as_large_as_it_is_to_be() -> None:
    """Half of the cases take at least 1 MiB, the largest 128 MiB, and all together few GiB."""
    sizes = sizes_of("L1")
    assert len(sizes) == 10_000
    assert statistics.median(sizes) >= MIB
    assert max(sizes) == 128 * MIB
    assert sum(sizes) < 15 * 1024 * MIB


def test_level_l2_has_the_most_and_the_largest() -> None:
    """By its first rows, which have a full one among them."""
    assert LEVELS["L2"].row_count == 30_000
    assert max(sizes_of("L2", row_count=100)) == 256 * MIB


@pytest.mark.parametrize("budget", [256 * KIB, 5 * MIB])
def test_a_budget_is_kept_and_used(budget: int) -> None:
    """Whatever the level would like to have."""
    sizes = sizes_of("L1", row_count=3000, largest_bytes=budget)
    assert max(sizes) == budget


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ({"level": "L3"}, "level"),
        ({"row_count": 0}, "row_count"),
        ({"largest_bytes": 1000}, "largest_bytes"),
        ({"distribution": "poisson"}, "distribution"),
        ({"operator": "Softmax"}, "operator"),
    ],
)
def test_what_cannot_be_made_is_refused(words: dict[str, Any], argument: str) -> None:
    """At the call, before a file is touched."""
    with pytest.raises(Problem) as caught:
        generated_rows(**{"operator": NAME, "level": "L0", **words})
    assert caught.value.argument == argument
    unknown = Reason.OPERATOR_NOT_SUPPORTED if argument == "operator" else Reason.ATTRIBUTE_INVALID
    assert caught.value.reason is unknown


def test_the_e2e_file_has_the_same_cases(l0: CaseFile, tmp_path: Path) -> None:
    """The Python path and the Python names; all else is equal."""
    path = tmp_path / "e2e.csv"
    write_rows(path, generated_rows(NAME, "L0", row_count=100), "e2e")
    for case, twin in zip(read_cases(path).cases, l0.cases, strict=False):
        assert case.columns["api_name"] == f"torch.ops.cann_ops_transformer.{NAME}"
        assert "'rotary_mode': 'half'" in case.columns["attributes"]
        assert "'rotaryModeOptional': 'half'" in twin.columns["attributes"]
        assert case.attributes == twin.attributes
        assert (case.inputs, case.name, case.outputs) == (twin.inputs, twin.name, twin.outputs)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """One line that names it."""
    with pytest.raises(CaseFileError, match=r"cases\.csv: cannot be written: "):
        write_rows(tmp_path / "none" / "cases.csv", generated_rows(NAME, "L0", row_count=1))


Arrays = Mapping[str, Any]


def _view(case: GeneratedRow | Call, array: Any) -> Any:
    """Return an array with the axes (B, S, N, D)."""
    layout = case.attributes.layout  # type: ignore[union-attr]
    return array[None] if layout == 4 else array.swapaxes(0, 1) if layout == 2 else array


def half_precision_sums(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """grad_cos is summed in the dtype of the tensors."""
    if "grad_cos" in outputs:
        total = _view(call, outputs["grad_cos"])
        total[:] = 0
        for names in (("grad_query_embed", "query"), ("grad_key_embed", "key")):
            product = np.multiply(*(_view(call, inputs[name]) for name in names))
            for head in range(product.shape[2]):
                for batch in range(product.shape[0]):
                    total[batch % len(total)] += product[batch, :, head : head + 1]


def first_batch_alone(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """The sums over B are missing where one cos serves all batches."""
    if "grad_cos" in outputs and len(_view(call, outputs["grad_cos"])) == 1:
        total = _view(call, outputs["grad_cos"])
        total[:] = 0
        for names in (("grad_query_embed", "query"), ("grad_key_embed", "key")):
            product = np.multiply(*(_view(call, inputs[n]).astype(np.float32) for n in names))
            total += product[:1].sum(axis=2, keepdims=True).astype(total.dtype)


def key_dropped_beside_one_query_head(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """With Nq = 1 the key's part of grad_cos is lost."""
    if "grad_cos" in outputs and inputs["query"].shape[-2] == 1 < inputs["key"].shape[-2]:
        gradient, query = (_view(call, inputs[n]) for n in ("grad_query_embed", "query"))
        total = _view(call, outputs["grad_cos"])
        product = gradient.astype(np.float32) * query.astype(np.float32)
        total[:] = product if len(product) == len(total) else product.sum(axis=0, keepdims=True)


def last_head_unwritten(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """The last head of grad_key stays as the memory was."""
    outputs["grad_key"][..., -1, :] = 0


def tokens_off_by_one(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """In TND every token but the first is read one row too early."""
    if call.attributes.layout == 4:
        outputs["grad_query"][1:] = outputs["grad_query"][:-1].copy()


@pytest.mark.parametrize(
    ("mistake", "rows"),
    [
        (half_precision_sums, 2),
        (first_batch_alone, 20),
        (key_dropped_beside_one_query_head, 5),
        (last_head_unwritten, 100),
        (tokens_off_by_one, 20),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_classic_mistakes_are_caught(
    l0: CaseFile,
    reference_call: Callable[..., CallResult],
    mistake: Callable[[Call, Arrays, Arrays], None],
    rows: int,
) -> None:
    """A slice of the suite has rows on which each mistake shows."""

    def execute(call: Call, tensors: Mapping[str, HostTensor]) -> CallResult:
        inputs = {name: view_array(tensor.spec, tensor.data) for name, tensor in tensors.items()}
        return reference_call(call, tensors, after=lambda outputs: mistake(call, inputs, outputs))

    results = list(run_cases(l0.cases[100:400], execute))
    failed = [result for result in results if result.status is CaseStatus.FAIL]
    assert len(failed) >= rows
    assert {result.status for result in results} <= {CaseStatus.PASS, CaseStatus.FAIL}


def wider_sums(call: Call, inputs: Arrays) -> Mapping[str, Any]:
    """Return what a device gives that rounds no product and no partial sum."""
    plan = call.operator.check(call.inputs, call.attributes)
    exact = call.operator.reference(inputs, plan, promote=True)
    return {
        name: array.astype(np.float32).astype(plan.outputs[name].dtype.numpy)
        for name, array in exact.items()
    }


def other_order(call: Call, inputs: Arrays) -> Mapping[str, Any]:
    """Return what a device gives that adds heads and batches from the last to the first."""
    plan = call.operator.check(call.inputs, call.attributes)
    axes = {1: (0, -2), 2: (1, -2), 4: (-2,)}[call.attributes.layout]

    def turned(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: np.ascontiguousarray(np.flip(a, axes)) for name, a in arrays.items()}

    return turned(call.operator.reference(turned(inputs), plan))


@pytest.mark.parametrize("device", [wider_sums, pytest.param(other_order, marks=pytest.mark.full)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_correct_device_passes_in_its_own_order(
    l0: CaseFile,
    reference_call: Callable[..., CallResult],
    device: Callable[[Call, Arrays], Mapping[str, Any]],
) -> None:
    """Neither a fused product nor another order of a sum decides over a verdict."""

    def execute(call: Call, tensors: Mapping[str, HostTensor]) -> CallResult:
        inputs = {name: view_array(tensor.spec, tensor.data) for name, tensor in tensors.items()}
        return replace(reference_call(call, tensors), outputs=device(call, inputs))

    results = list(run_cases(l0.cases[2000:2500], execute))
    assert {result.reason for result in results} == {""}
    different = [
        output
        for result in results
        for output in result.outputs
        if output.comparison is not None and output.comparison.max_abs_error > 0
    ]
    assert len(different) > 20
