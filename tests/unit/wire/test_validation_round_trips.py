"""What validation says survives its messages, and hostile bytes are Problems, never defects."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from opferry.core.dtypes import DType
from opferry.core.execution import ExecutionOptions
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators import operator_named
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGradAttributes
from opferry.v1 import validation_pb2 as pb
from opferry.validation.case import Tolerance
from opferry.validation.comparison import Comparison, Element
from opferry.validation.findings import (
    ErrorStatistics,
    FailingSlice,
    Findings,
    HeatMap,
    Histogram,
    WorstElement,
)
from opferry.validation.outcome import GoldenMode
from opferry.validation.ranges import ValueRange
from opferry.validation.recipes import Distribution, Recipe
from opferry.validation.requests import (
    CaseRequest,
    ClientData,
    JudgedOutput,
    ValidationSettings,
)
from opferry.validation.standards import EDITIONS, STANDARDS
from opferry.wire.validation import (
    MOST_CASE_BYTES,
    case_from_message,
    case_message,
    judged_output,
    output_message,
    settings_from_message,
    settings_message,
)

OPERATOR = operator_named("ApplyRotaryPosEmbGrad")
LIMITS = LimitsConfig()
TEXT = st.text(max_size=20)
NUMBERS = st.floats()
COUNTS = st.integers(0, 2**63 - 1)
INDEXES = st.lists(COUNTS, max_size=8).map(tuple)
DIGESTS = st.binary(min_size=8, max_size=8)

SETTINGS = st.builds(
    ValidationSettings,
    options=st.builds(
        ExecutionOptions,
        check=st.booleans(),
        repeat=st.integers(1, LIMITS.repeat_count),
        warmup=st.integers(0, LIMITS.repeat_count),
        exclusive=st.booleans(),
        deterministic=st.booleans(),
        poison_outputs=st.booleans(),
    ),
    operator_package=TEXT,
    standard=st.sampled_from(STANDARDS),
    edition=st.sampled_from(EDITIONS),
    golden_mode=st.sampled_from(GoldenMode),
    worst_count=st.integers(1, 64),
    failing_slices=st.booleans(),
    dump_outputs=st.booleans(),
    dump_goldens=st.booleans(),
    dump_on_fail=st.booleans(),
).map(lambda some: some if some.standard == "mixed" else replace(some, edition=EDITIONS[0]))

SPECS = st.builds(
    TensorSpec, st.sampled_from(DType), st.lists(st.integers(1, 100), max_size=4).map(tuple)
)
RANGES = st.builds(
    lambda ends, forced: ValueRange(*ends, forced=tuple(forced)),
    st.tuples(NUMBERS, NUMBERS).map(lambda ends: ends[::-1] if ends[0] > ends[1] else ends),
    st.lists(NUMBERS, max_size=5),
)
TOLERANCES = st.builds(
    Tolerance,
    *[st.none() | st.floats(0, allow_infinity=False, allow_nan=False)] * 3,
)


@st.composite
def _cases(draw: st.DrawFn) -> CaseRequest:
    name = draw(TEXT)
    inputs = draw(st.dictionaries(TEXT, SPECS, max_size=6))
    sources: dict[str, Any] = {}
    for key, spec in inputs.items():
        recipe = st.builds(
            Recipe,
            spec=st.just(spec),
            values=RANGES,
            distribution=st.sampled_from(Distribution),
            seed=st.integers(-(2**63), 2**63 - 1),
            case_name=st.just(name) | TEXT,
            input_name=st.just(key),
        )
        data = st.builds(ClientData, st.just(b"") | st.binary(min_size=32, max_size=32))
        sources[key] = draw(recipe | data)
    outputs = [output.name for output in OPERATOR.outputs]
    return CaseRequest(
        case_id=draw(st.integers(-(2**63), 2**63 - 1)),
        name=name,
        operator=OPERATOR,
        attributes=draw(
            st.builds(
                ApplyRotaryPosEmbGradAttributes,
                st.sampled_from(["half", "interleave", "quarter"]),
                st.integers(-(2**31), 2**31 - 1),
            )
        ),
        inputs=inputs,
        sources=sources,
        digests={key: draw(DIGESTS) for key in inputs if draw(st.booleans())},
        tolerances=draw(
            st.dictionaries(
                st.sampled_from(outputs), TOLERANCES.filter(lambda some: some != Tolerance())
            )
        ),
        expects_refusal=draw(st.booleans()),
    )


ELEMENTS = st.builds(Element, INDEXES, NUMBERS, NUMBERS)
HISTOGRAMS = st.builds(
    Histogram, COUNTS, st.dictionaries(st.integers(-(2**31), 2**31 - 1), COUNTS, max_size=5)
)
THREE = st.tuples(COUNTS, COUNTS, COUNTS)
BINS = st.tuples(*[st.integers(0, 2**31 - 1)] * 3)
FLOATS = st.lists(st.floats(width=32), max_size=5).map(tuple)


@st.composite
def _judged(draw: st.DrawFn) -> JudgedOutput:
    standard = draw(st.sampled_from(STANDARDS))
    comparison = st.builds(
        Comparison,
        passed=st.booleans(),
        standard=st.just(standard),
        edition=st.just("current" if standard == "mixed" else ""),
        thresholds=st.dictionaries(TEXT, NUMBERS, max_size=4),
        cosine_distance=st.none() | NUMBERS,
        element_count=st.integers(1, 2**63 - 1),
        passing_count=COUNTS,
        max_abs_error=NUMBERS,
        mean_rel_error=NUMBERS,
        max_rel_error=NUMBERS,
        mismatch_count=COUNTS,
        first_mismatch=st.none() | ELEMENTS,
        first_failing=st.none() | ELEMENTS,
        worst=st.none() | ELEMENTS,
        reason=TEXT,
    )
    findings = st.builds(
        Findings,
        worst=st.lists(st.builds(WorstElement, ELEMENTS, st.none() | COUNTS), max_size=4).map(
            tuple
        ),
        relative_errors=HISTOGRAMS,
        ulp_distances=HISTOGRAMS,
        statistics=st.builds(ErrorStatistics, NUMBERS, NUMBERS, NUMBERS, COUNTS),
        heat_map=st.none() | st.builds(HeatMap, THREE, BINS, st.lists(COUNTS).map(tuple)),
        failing_slice=st.none()
        | st.builds(FailingSlice, INDEXES, FLOATS, st.lists(NUMBERS, max_size=5).map(tuple)),
    )
    some = st.builds(JudgedOutput, TEXT, comparison, findings, DIGESTS, DIGESTS)
    none = st.builds(JudgedOutput, TEXT, st.none(), st.none(), DIGESTS, st.just(b""))
    return draw(some | none)


@given(SETTINGS)
def test_settings_survive_the_header(settings: ValidationSettings) -> None:
    """What all cases have in common comes back from the first frame's bytes the same."""
    message = pb.ValidateHeader.FromString(settings_message(settings).SerializeToString())
    assert settings_from_message(message, LIMITS) == settings


@given(_cases())
def test_cases_survive_their_message(case: CaseRequest) -> None:
    """A case comes back the same, its inputs in their order; NaN is compared by its text."""
    message = pb.ValidateCase.FromString(case_message(case).SerializeToString())
    back = case_from_message(message, LIMITS)
    assert repr(back) == repr(case)
    assert list(back.inputs) == list(case.inputs)


@given(_judged())
def test_verdicts_survive_their_message(judged: JudgedOutput) -> None:
    """Every figure and every finding comes back; a map has no order, and none is kept."""
    data = output_message(judged).SerializeToString()
    message = pb.OutputVerdict.FromString(data)
    standard = "mixed" if judged.comparison is None else judged.comparison.standard
    back = judged_output(message, standard, "current")
    if judged.comparison is not None:
        ordered = dict(sorted(judged.comparison.thresholds.items()))
        judged = replace(judged, comparison=replace(judged.comparison, thresholds=ordered))
    assert repr(back) == repr(judged)


@given(st.integers(2**63) | st.integers(max_value=-(2**63) - 1))
def test_seeds_beyond_the_schema_are_refused(seed: int) -> None:
    """They are not cut: other seeds mean other data."""
    spec = TensorSpec(DType.FLOAT32, (2,))
    attributes = ApplyRotaryPosEmbGradAttributes("half", 4)
    case = CaseRequest(
        1, "a", OPERATOR, attributes, {"cos": spec}, {"cos": Recipe(spec, seed=seed)}
    )
    with pytest.raises(Problem) as caught:
        case_message(case)
    assert caught.value.reason is Reason.LIMIT_EXCEEDED


def test_a_case_too_large_for_a_datagram_is_refused_on_both_sides() -> None:
    """The client says so before it sends, and the server to whoever sends it all the same."""
    case = CaseRequest(1, "", OPERATOR, ApplyRotaryPosEmbGradAttributes("half", 4), {}, {})
    room = MOST_CASE_BYTES - case_message(case).ByteSize() - 4
    message = case_message(replace(case, name="a" * room))
    assert message.ByteSize() == MOST_CASE_BYTES
    case_from_message(message, LIMITS)
    with pytest.raises(Problem) as caught:
        case_message(replace(case, name="a" * (room + 1)))
    assert caught.value.reason is Reason.LIMIT_EXCEEDED
    message.name += "a"
    with pytest.raises(Problem) as caught:
        case_from_message(message, LIMITS)
    assert caught.value.reason is Reason.LIMIT_EXCEEDED


def _read(data: bytes) -> None:
    """Read bytes as everything that a peer may send."""
    for kind, read in (
        (pb.ValidateHeader, lambda message: settings_from_message(message, LIMITS)),
        (pb.ValidateCase, lambda message: case_from_message(message, LIMITS)),
        (pb.OutputVerdict, lambda message: judged_output(message, "mixed", "current")),
    ):
        try:
            message: Any = kind.FromString(data)
        except DecodeError:
            continue
        with contextlib.suppress(Problem):
            read(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Whatever they are, nothing but a Problem is raised."""
    _read(data)


@given(_cases(), st.data())
def test_a_damaged_case_is_read_or_refused(case: CaseRequest, data: st.DataObject) -> None:
    """Bytes of a case with some of them changed, cut out or added."""
    content = bytearray(case_message(case).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 3))
        content[at : at + length] = data.draw(st.binary(max_size=3))
    _read(bytes(content))


NUMBERS_64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS_32 = st.integers(-(2**31), 2**31 - 1)
WILD_SPECS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["cos", "sin", "", "a"]),
        "data_type": st.integers(-1, 5),
        "shape": st.lists(NUMBERS_64, max_size=9),
        "strides": st.lists(NUMBERS_64, max_size=9),
        "storage_shape": st.lists(NUMBERS_64, max_size=9),
        "storage_offset": NUMBERS_64,
        "data_bytes": NUMBERS_64,
        "xxh3_64": st.binary(max_size=9),
    }
)


@given(st.data())
def test_wild_cases_are_read_or_refused(data: st.DataObject) -> None:
    """Well formed messages whose every number may be anything."""
    message = pb.ValidateCase(
        case_id=data.draw(NUMBERS_64),
        inputs=[
            pb.CaseInput(
                spec=data.draw(WILD_SPECS),  # type: ignore[arg-type]
                recipe=pb.Recipe(
                    version=data.draw(st.sampled_from(["opferry-inputs-2", "", "x" * 50])),
                    distribution=data.draw(NUMBERS_32),  # type: ignore[arg-type]
                    low=data.draw(NUMBERS),
                    high=data.draw(NUMBERS),
                    forced=data.draw(st.lists(NUMBERS, max_size=3)),
                    seed=data.draw(NUMBERS_64),
                ),
            )
            for _ in range(data.draw(st.integers(0, 3)))
        ],
        tolerances=[
            pb.OutputTolerance(output=data.draw(st.sampled_from(["grad_query", ""])), rtol=value)
            for value in data.draw(st.lists(NUMBERS, max_size=3))
        ],
        apply_rotary_pos_emb_grad={  # type: ignore[arg-type]
            "rotary_mode": data.draw(NUMBERS_32),
            "layout": data.draw(NUMBERS_32),
        },
    )
    try:
        case = case_from_message(message, LIMITS)
    except Problem:
        return
    assert all(not math.isnan(some.rtol or 0.0) for some in case.tolerances.values())
