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
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout
from opferry.core.limits import KIB, MIB
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor, TensorSpec, view_array
from opferry.operators.call import Call, CallResult
from opferry.validation import Case, CaseFile, CaseFileError, CaseStatus, read_cases, run_cases
from opferry.validation.generation import LEVELS, GeneratedRow, generated_rows, write_rows

GRAD, FORWARD = NAMES = ("apply_rotary_pos_emb_grad", "apply_rotary_pos_emb")

VECTORS = {
    GRAD: {
        "uniform": "47951b6057e2c2dc7f793828e08f2ebe3674bddd647d432e8782cc8dda023c98",
        "both": "c18bfccb5167e21dce59ad2b8b585845725aa72300772cebfc26bcdbf4408d40",
    },
    FORWARD: {
        "uniform": "6be4ed07afbf60306988d0a82d5dc83c1ab9c921bd6d42e2f0a6c4eff46c116d",
        "both": "0f3e57dd81e3e77a8a22b837ed9c09fa6dafca3e165292872d83e946a0091e9b",
    },
}
"""SHA-256 of the file of level L0 with seed 0, by operator and distribution."""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The files of level L0, by operator."""
    folder = tmp_path_factory.mktemp("suites")
    found = {name: folder / f"{name}.csv" for name in NAMES}
    for name, path in found.items():
        assert write_rows(path, generated_rows(name, "L0")) == 5_000
    return found


@pytest.fixture(scope="module")
def files(paths: Mapping[str, Path]) -> Mapping[str, CaseFile]:
    """The same, read back."""
    return {name: read_cases(path) for name, path in paths.items()}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """An operator's name in Python."""
    found: str = request.param
    return found


@pytest.fixture
def l0_path(name: str, paths: Mapping[str, Path]) -> Path:
    """The file of level L0 of an operator."""
    return paths[name]


@pytest.fixture
def l0(name: str, files: Mapping[str, CaseFile]) -> CaseFile:
    """The same, read back."""
    return files[name]


@pytest.fixture
def grad(files: Mapping[str, CaseFile]) -> CaseFile:
    """Level L0 of the backward."""
    return files[GRAD]


@pytest.fixture
def forward(files: Mapping[str, CaseFile]) -> CaseFile:
    """Level L0 of the forward."""
    return files[FORWARD]


def input_bytes(specs: Mapping[str, TensorSpec]) -> int:
    return sum(spec.data_bytes for spec in specs.values())


def test_the_suite_of_level_l0_is_the_known_one(name: str, l0_path: Path) -> None:
    """Whoever makes it, on whatever machine, has the same file."""
    assert digest(l0_path) == VECTORS[name]["both"]


def test_hashes_of_strings_have_no_part_in_it(name: str, tmp_path: Path) -> None:
    """Another process with other string hashes writes the same bytes."""
    code = (
        "from opferry.validation.generation import generated_rows, write_rows\n"
        f"write_rows('suite.csv', generated_rows('{name}', 'L0', row_count=500))"
    )
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)
    assert digest(tmp_path / "1" / "suite.csv") == digest(tmp_path / "2" / "suite.csv")


def test_half_of_the_rows_are_normal(name: str, l0_path: Path, tmp_path: Path) -> None:
    """The default is both: nothing else differs, and the column says which it is."""
    path = tmp_path / "uniform.csv"
    write_rows(path, generated_rows(name, "L0", distribution="uniform"))
    assert digest(path) == VECTORS[name]["uniform"]
    both, uniform = l0_path.read_text().splitlines(), path.read_text().splitlines()
    normal = [line for line in both if re.search(r",True,(?=[^,]*$|\")", line)]
    assert 2_400 < len(normal) < 2_600
    assert [line.replace(",True,", ",,") for line in both] == uniform
    rows = list(generated_rows(name, "L0", row_count=20, distribution="normal"))
    assert all(row.normal for row in rows)


def test_fewer_rows_are_the_first_of_more(name: str, l0_path: Path, tmp_path: Path) -> None:
    """A trial of some rows is the beginning of the suite."""
    path = tmp_path / "short.csv"
    write_rows(path, generated_rows(name, "L0", row_count=70))
    assert l0_path.read_text().startswith(path.read_text())


def test_another_seed_gives_other_cases(name: str, l0: CaseFile) -> None:
    """Nearly no row has the shapes that it has with seed 0."""
    others = list(generated_rows(name, "L0", row_count=200, seed=1))
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
def test_78_rows_have_every_form_in_every_dtype(grad: CaseFile, first: int) -> None:
    """Layout, template, broadcast, dtype and query and key, each with each, in a short suite."""
    seen = Counter(traits(case)[:4] for case in grad.cases[first : first + 78])
    forms = {(layout, template, axes) for layout, template, axes, _ in seen}
    assert {(layout, template) for layout, template, _ in forms} == {
        *((layout, template) for layout in (1,) for template in ("A", "AB", "BAB")),
        *((2, template) for template in ("A", "AB")),
        *((4, template) for template in ("A", "BAB")),
    }
    assert len(forms) >= 9
    assert Counter(dtype for *_, dtype in seen.elements()) == dict.fromkeys(DType, 26)


@pytest.mark.parametrize("first", [0, 1234])
def test_342_rows_of_the_forward_have_every_form_in_every_dtype_and_mode(
    forward: CaseFile, first: int
) -> None:
    """Layout and template, dtype, mode, and all or a part of D rotated, each with each."""
    seen = set()
    for case in forward.cases[first : first + 342]:
        template = case.operator.check(case.inputs, case.attributes).template
        whole = case.inputs["cos"].shape[-1] == case.inputs["query"].shape[-1]
        dtype, mode = case.inputs["cos"].dtype, case.attributes.rotary_mode
        seen.add((case.attributes.layout, template, dtype, mode, whole))
    pairs = [(1, "AB"), (1, "BAB"), (2, "AB"), (3, "ABA"), (3, "BA"), (4, "AB")]
    modes, both = ("half", "interleave", "quarter"), (True, False)
    assert {found[2:] for found in seen} == set(product(DType, modes, both))
    wanted = {(*pair, dtype, mode) for pair in pairs for dtype in DType for mode in modes}
    assert {found[:4] for found in seen} == wanted


def traits(case: Case) -> tuple[int, str, tuple[int, ...], DType]:
    plan = case.operator.check(case.inputs, case.attributes)
    return case.attributes.layout, plan.template, plan.broadcast_axes, case.inputs["cos"].dtype


def facts(case: Case) -> Iterator[str]:
    """Yield what a case is there for, in words that the counts below know."""
    inputs, plan = case.inputs, case.operator.check(case.inputs, case.attributes)
    axes = Layout(case.attributes.layout).axes
    first, second = (inputs[spec.name].shape for spec in case.operator.inputs[:2])
    # with the heads before the width, as all layouts but BNSD have them
    order = [at for at, axis in enumerate(axes) if axis not in "ND"] + [axes.index("N"), -1]
    query, key = tuple(first[at] for at in order), tuple(second[at] for at in order)
    yield f"layout {case.attributes.layout}"
    yield f"mode {case.attributes.rotary_mode}"
    yield "narrow cos" if inputs["cos"].shape[-1] < query[-1] else "full cos"
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


OF_GRAD = ("template", "tiling", "broadcast", "with", "D = 2", "layout")
LEAST_OF_FORWARD = {
    **{fact: least for fact, least in LEAST.items() if not fact.startswith(OF_GRAD)},
    **{f"layout {number}": 400 for number in (1, 2, 3, 4)},
    **{f"template {name}": 300 for name in ("AB", "BAB", "ABA", "BA")},
    **{f"tiling key {key}": 300 for key in (20010, 20011, 20020, 20030)},
    **{f"mode {mode}": 1600 for mode in ("half", "interleave", "quarter")},
    "D = 2": 150,
    "powers": 40,
    "non-contiguous": 900,
    "full cos": 2400,
    "narrow cos": 2000,
}
"""The same of the forward, whose D is at least 4 in a third of the rows."""


def test_everything_is_there_often_enough(name: str, l0: CaseFile) -> None:
    """Layouts, templates, dtypes, boundaries, special values and views."""
    wanted = LEAST if name == GRAD else LEAST_OF_FORWARD
    counts = Counter(fact for case in l0.cases for fact in facts(case))
    missing = {fact: counts[fact] for fact, least in wanted.items() if counts[fact] < least}
    assert not missing
    if name == GRAD:
        assert not {f for f in counts if f.startswith("broadcast")} - set(LEAST)


def sizes_of(name: str, level: str, **words: Any) -> list[int]:
    return [input_bytes(row.inputs) for row in generated_rows(name, level, **words)]


def test_level_l1_is_as_large_as_it_is_to_be(name: str) -> None:
    """Half of the cases take at least 1 MiB, the largest 128 MiB, and all together few GiB."""
    sizes = sizes_of(name, "L1")
    assert len(sizes) == 10_000
    # of the forward many are smaller by the part of cos that is not there
    assert statistics.median(sizes) >= (MIB if name == GRAD else 0.9 * MIB)
    assert max(sizes) == 128 * MIB
    assert sum(sizes) < 15 * 1024 * MIB


def test_level_l2_has_the_most_and_the_largest(name: str) -> None:
    """By its first rows, which have a full one among them."""
    assert LEVELS["L2"].row_count == 30_000
    assert max(sizes_of(name, "L2", row_count=100)) == 256 * MIB


@pytest.mark.parametrize("budget", [256 * KIB, 5 * MIB])
def test_a_budget_is_kept_and_used(name: str, budget: int) -> None:
    """Whatever the level would like to have."""
    sizes = sizes_of(name, "L1", row_count=3000, largest_bytes=budget)
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
        generated_rows(**{"operator": GRAD, "level": "L0", **words})
    assert caught.value.argument == argument
    unknown = Reason.OPERATOR_NOT_SUPPORTED if argument == "operator" else Reason.ATTRIBUTE_INVALID
    assert caught.value.reason is unknown


def test_the_e2e_file_has_the_same_cases(name: str, l0: CaseFile, tmp_path: Path) -> None:
    """The Python path and the Python names; all else is equal."""
    path = tmp_path / "e2e.csv"
    write_rows(path, generated_rows(name, "L0", row_count=100), "e2e")
    for case, twin in zip(read_cases(path).cases, l0.cases, strict=False):
        assert case.columns["api_name"] == f"torch.ops.cann_ops_transformer.{name}"
        mode = case.attributes.rotary_mode
        c_name = "rotaryModeOptional" if name == GRAD else "rotaryMode"
        assert f"'rotary_mode': '{mode}'" in case.columns["attributes"]
        assert f"'{c_name}': '{mode}'" in twin.columns["attributes"]
        assert case.attributes == twin.attributes
        assert (case.inputs, case.name) == (twin.inputs, twin.name)
        for output, spec in case.outputs.items():
            other = twin.outputs[output]
            assert (spec and (spec.dtype, spec.shape)) == (other and (other.dtype, other.shape))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """One line that names it."""
    with pytest.raises(CaseFileError, match=r"cases\.csv: cannot be written: "):
        write_rows(tmp_path / "none" / "cases.csv", generated_rows(GRAD, "L0", row_count=1))


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


def _rotated(call: Call, inputs: Arrays, outputs: Arrays, mode: str, width: int = 0) -> None:
    """Compute the outputs again, in another mode, or by pairs of another width."""
    for name in ("query", "key"):
        x = inputs[name].astype(np.float32)
        cos, sin = (inputs[table].astype(np.float32) for table in ("cos", "sin"))
        step = 1 if mode == "interleave" else (width or cos.shape[-1]) // 2
        places = np.arange(cos.shape[-1])
        first = places // step % 2 == 0
        partner = np.where(first, places + step, places - step)
        turned = x[..., partner % x.shape[-1]] * np.where(first, -1, 1).astype(np.float32)
        outputs[f"{name}_out"][..., : len(places)] = x[..., places] * cos + turned * sin


def neighbours_for_halves(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """Mode half is computed as interleave."""
    if call.attributes.rotary_mode == "half":
        _rotated(call, inputs, outputs, "interleave")


def first_half_of_cos_for_both(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """Only the first half of cos and sin is read, as if the second were the same."""
    if call.attributes.rotary_mode == "half":
        half = inputs["cos"].shape[-1] // 2
        tables = {n: np.concatenate([inputs[n][..., :half]] * 2, -1) for n in ("cos", "sin")}
        _rotated(call, {**inputs, **tables}, outputs, "half")


def tail_cleared(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """What is not rotated is not passed on."""
    for output in outputs.values():
        output[..., inputs["cos"].shape[-1] :] = 0


def halves_of_all_of_d(call: Call, inputs: Arrays, outputs: Arrays) -> None:
    """With a narrow cos the halves of D are taken, and not those of what is rotated."""
    width = inputs["query"].shape[-1]
    if call.attributes.rotary_mode == "half" and inputs["cos"].shape[-1] < width:
        _rotated(call, inputs, outputs, "half", width)


FORWARD_MISTAKES = (
    neighbours_for_halves,
    first_half_of_cos_for_both,
    tail_cleared,
    halves_of_all_of_d,
)
"""The mistakes that the forward's suite is to find; the others are the backward's."""


@pytest.mark.parametrize(
    ("mistake", "rows"),
    [
        (half_precision_sums, 2),
        (first_batch_alone, 20),
        (key_dropped_beside_one_query_head, 5),
        (last_head_unwritten, 100),
        (tokens_off_by_one, 20),
        (neighbours_for_halves, 50),
        (first_half_of_cos_for_both, 50),
        (tail_cleared, 50),
        (halves_of_all_of_d, 10),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_classic_mistakes_are_caught(
    files: Mapping[str, CaseFile],
    reference_call: Callable[..., CallResult],
    mistake: Callable[[Call, Arrays, Arrays], None],
    rows: int,
) -> None:
    """A slice of the suite has rows on which each mistake shows."""

    def execute(call: Call, tensors: Mapping[str, HostTensor]) -> CallResult:
        inputs = {name: view_array(tensor.spec, tensor.data) for name, tensor in tensors.items()}
        return reference_call(call, tensors, after=lambda outputs: mistake(call, inputs, outputs))

    name = FORWARD if mistake in FORWARD_MISTAKES else GRAD
    results = list(run_cases(files[name].cases[100:400], execute))
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


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (GRAD, wider_sums),
        (FORWARD, wider_sums),
        # the forward adds nothing up
        pytest.param(GRAD, other_order, marks=pytest.mark.full),
    ],
)
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
