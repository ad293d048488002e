"""Validation's requests and verdicts to messages and back."""

from __future__ import annotations

from typing import Any

from opferry.core.execution import ExecutionOptions
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec, malformed
from opferry.operators.base import Operator
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
from opferry.validation.problems import CellError
from opferry.validation.ranges import ValueRange
from opferry.validation.recipes import Distribution, Recipe
from opferry.validation.requests import (
    CaseRequest,
    ClientData,
    JudgedOutput,
    ValidationSettings,
)
from opferry.wire.attributes import attributes_message, operator_of
from opferry.wire.calls import options_from_message, options_message
from opferry.wire.specs import (
    check_names,
    over_limit,
    refuse_unknown_fields,
    spec_from_message,
    spec_message,
)

MOST_FORCED = 1024
"""The most values that a recipe may force to occur."""

MOST_CASE_BYTES = 64 * 1024
"""The largest message of a case: judges are given it in one datagram, with some more."""

SEED_BITS = 63
"""A seed's size in bits, beside its sign: what the schema holds."""

_DISTRIBUTIONS = {
    Distribution.UNIFORM: pb.DISTRIBUTION_UNIFORM,
    Distribution.NORMAL: pb.DISTRIBUTION_NORMAL,
}
_DISTRIBUTION_OF = {
    pb.DISTRIBUTION_UNSPECIFIED: Distribution.UNIFORM,
    **{int(number): distribution for distribution, number in _DISTRIBUTIONS.items()},
}

_GOLDEN_MODES = {
    GoldenMode.ENABLE: pb.GOLDEN_MODE_ENABLE,
    GoldenMode.PROMOTE: pb.GOLDEN_MODE_PROMOTE,
    GoldenMode.DISABLE: pb.GOLDEN_MODE_DISABLE,
}
_GOLDEN_MODE_OF = {
    pb.GOLDEN_MODE_UNSPECIFIED: GoldenMode.ENABLE,
    **{int(number): mode for mode, number in _GOLDEN_MODES.items()},
}


def settings_message(settings: ValidationSettings) -> pb.ValidateHeader:
    """Return what all cases have in common as the first frame's message."""
    return pb.ValidateHeader(
        operator_package=settings.operator_package,
        options=options_message(settings.options),
        standard=settings.standard,
        edition=settings.edition,
        golden_mode=_GOLDEN_MODES[settings.golden_mode],
        worst_count=settings.worst_count,
        failing_slices=settings.failing_slices,
        dump_outputs=settings.dump_outputs,
        dump_goldens=settings.dump_goldens,
        dump_on_fail=settings.dump_on_fail,
    )


def settings_from_message(message: pb.ValidateHeader, limits: LimitsConfig) -> ValidationSettings:
    """Return what all cases of a stream have in common.

    Raises:
        Problem: for a word that is not served, a number over a limit, or an unknown field.
    """
    refuse_unknown_fields(message)
    check_names((), message.operator_package, limits)
    options: ExecutionOptions = options_from_message(message.options)
    limits.check_repeats(options.repeat, options.warmup)
    settings = ValidationSettings(
        options=options,
        operator_package=message.operator_package,
        standard=message.standard,
        edition=message.edition or "current",
        golden_mode=_golden_mode(message),
        worst_count=message.worst_count or 8,
        failing_slices=message.failing_slices,
        dump_outputs=message.dump_outputs,
        dump_goldens=message.dump_goldens,
        dump_on_fail=message.dump_on_fail,
    )
    settings.check()
    return settings


def _golden_mode(message: pb.ValidateHeader) -> GoldenMode:
    number = int(message.golden_mode)
    if number not in _GOLDEN_MODE_OF:
        raise Problem(
            Reason.ENUM_UNKNOWN,
            f"golden_mode is unknown ({number})",
            argument="golden_mode",
            given=str(number),
        )
    return _GOLDEN_MODE_OF[number]


def case_message(request: CaseRequest) -> pb.ValidateCase:
    """Return a case as its message.

    Raises:
        Problem: ENUM_UNKNOWN or LIMIT_EXCEEDED for what the schema cannot express, or no server
            takes.
    """
    message = pb.ValidateCase(
        case_id=request.case_id,
        name=request.name,
        inputs=[_input_message(name, spec, request) for name, spec in request.inputs.items()],
        tolerances=[
            pb.OutputTolerance(output=name, rtol=given.rtol, ptol=given.ptol, atol=given.atol)
            for name, given in request.tolerances.items()
            if given != Tolerance()
        ],
        expects_refusal=request.expects_refusal,
        return_outputs=request.returns_outputs,
        outputs=request.outputs,
        **{request.operator.python_name: attributes_message(request.operator, request.attributes)},
    )
    _check_size(message)
    return message


def _check_size(message: pb.ValidateCase) -> None:
    if message.ByteSize() > MOST_CASE_BYTES:
        raise over_limit("the case's message", "bytes", message.ByteSize(), MOST_CASE_BYTES)


def _input_message(name: str, spec: TensorSpec, request: CaseRequest) -> pb.CaseInput:
    source = request.sources[name]
    message = spec_message(name, spec, request.digests.get(name, b""))
    if isinstance(source, ClientData):
        return pb.CaseInput(spec=message, client_data=pb.ClientData(sha256=source.sha256))
    if not -(2**SEED_BITS) <= source.seed < 2**SEED_BITS:
        raise Problem(
            Reason.LIMIT_EXCEEDED,
            f"seed is {source.seed}; a server takes seeds of {SEED_BITS} bits and a sign",
            argument="seed",
            given=str(source.seed)[:40],
            allowed=f"-2^{SEED_BITS} to 2^{SEED_BITS} - 1",
        )
    return pb.CaseInput(
        spec=message,
        recipe=pb.Recipe(
            version=source.version,
            distribution=_DISTRIBUTIONS[source.distribution],
            low=source.values.low,
            high=source.values.high,
            forced=source.values.forced,
            seed=source.seed,
            case_name=None if source.case_name == request.name else source.case_name,
        ),
    )


def case_from_message(message: pb.ValidateCase, limits: LimitsConfig) -> CaseRequest:
    """Return the case of a message.

    Raises:
        Problem: for anything that is not well formed, over a limit, or unknown.
    """
    _check_size(message)
    check_names((item.spec.name for item in message.inputs), "", limits)
    refuse_unknown_fields(message)
    operator, attributes = operator_of(message)
    inputs: dict[str, TensorSpec] = {}
    sources: dict[str, Recipe | ClientData] = {}
    digests: dict[str, bytes] = {}
    for item in message.inputs:
        name = item.spec.name
        inputs[name] = spec_from_message(name, item.spec, limits)
        sources[name] = _source(name, inputs[name], item, message.name)
        if item.spec.xxh3_64:
            digests[name] = item.spec.xxh3_64
    return CaseRequest(
        case_id=message.case_id,
        name=message.name,
        operator=operator,
        attributes=attributes,
        inputs=inputs,
        sources=sources,
        digests=digests,
        tolerances=_tolerances(operator, message),
        expects_refusal=message.expects_refusal,
        returns_outputs=message.return_outputs,
        outputs=_judged_names(operator, message),
    )


def _source(name: str, spec: TensorSpec, item: pb.CaseInput, case_name: str) -> Recipe | ClientData:
    if item.HasField("client_data"):
        if len(item.client_data.sha256) not in (0, 32):
            raise malformed(name, f"has a sha256 of {len(item.client_data.sha256)} bytes, not 32")
        return ClientData(item.client_data.sha256)
    if not item.HasField("recipe"):
        raise malformed(name, "has neither a recipe nor client_data")
    recipe = item.recipe
    if len(recipe.forced) > MOST_FORCED:
        raise over_limit(name, "forced values", len(recipe.forced), MOST_FORCED)
    if recipe.distribution not in _DISTRIBUTION_OF:
        raise Problem(
            Reason.ENUM_UNKNOWN,
            f"distribution of {name} is unknown ({int(recipe.distribution)})",
            argument=name,
            given=str(int(recipe.distribution)),
        )
    try:
        values = ValueRange(recipe.low, recipe.high, tuple(recipe.forced))
    except CellError as error:
        raise Problem(Reason.ATTRIBUTE_INVALID, f"{name} {error}", argument=name) from error
    return Recipe(
        spec=spec,
        values=values,
        distribution=_DISTRIBUTION_OF[recipe.distribution],
        seed=recipe.seed,
        case_name=recipe.case_name if recipe.HasField("case_name") else case_name,
        input_name=name,
        version=recipe.version,
    )


def _judged_names(operator: Operator, message: pb.ValidateCase) -> tuple[str, ...]:
    names = [output.name for output in operator.outputs]
    for given in message.outputs:
        if given not in names:
            raise Problem(
                Reason.ATTRIBUTE_INVALID,
                f"{given[:40]!r} is no output of {operator.name}; they are {', '.join(names)}",
                argument="outputs",
                given=given[:40],
                allowed=", ".join(names),
            )
    return tuple(name for name in names if name in message.outputs)


def _tolerances(operator: Operator, message: pb.ValidateCase) -> dict[str, Tolerance]:
    names = [output.name for output in operator.outputs]
    found: dict[str, Tolerance] = {}
    for item in message.tolerances:
        given = {
            field: getattr(item, field)
            for field in ("rtol", "ptol", "atol")
            if item.HasField(field)
        }
        wrong = [field for field, value in given.items() if not 0 <= value < float("inf")]
        if item.output not in names or wrong:
            raise Problem(
                Reason.ATTRIBUTE_INVALID,
                f"tolerances of {item.output[:40]!r} {' and '.join(wrong)} are not served; outputs "
                f"are {', '.join(names)}, and tolerances 0 or more",
                argument="tolerances",
                given=item.output[:40],
                allowed=", ".join(names),
            )
        found[item.output] = Tolerance(**given)
    return found


def output_message(judged: JudgedOutput) -> pb.OutputVerdict:
    """Return the verdict on an output as its message."""
    comparison, findings = judged.comparison, judged.findings
    if comparison is None or findings is None:
        return pb.OutputVerdict(name=judged.name, digest=judged.digest)
    return pb.OutputVerdict(
        name=judged.name,
        passed=comparison.passed,
        reason=comparison.reason,
        digest=judged.digest,
        golden_digest=judged.golden_digest,
        element_count=comparison.element_count,
        passing_count=comparison.passing_count,
        max_abs_error=comparison.max_abs_error,
        mean_rel_error=comparison.mean_rel_error,
        max_rel_error=comparison.max_rel_error,
        mismatch_count=comparison.mismatch_count,
        first_mismatch=_element_message(comparison.first_mismatch),
        first_failing=_element_message(comparison.first_failing),
        worst=_element_message(comparison.worst),
        thresholds=comparison.thresholds,
        cosine_distance=comparison.cosine_distance,
        worst_elements=[
            pb.WorstElement(element=_element_message(worst.element), ulps=worst.ulps)
            for worst in findings.worst
        ],
        relative_errors=_histogram_message(findings.relative_errors),
        ulp_distances=_histogram_message(findings.ulp_distances),
        statistics=pb.ErrorStatistics(**vars(findings.statistics)),
        heat_map=None if findings.heat_map is None else pb.HeatMap(**vars(findings.heat_map)),
        failing_slice=None
        if findings.failing_slice is None
        else pb.FailingSlice(**vars(findings.failing_slice)),
    )


def judged_output(message: pb.OutputVerdict, standard: str, edition: str) -> JudgedOutput:
    """Return the verdict of a message, by the standard and edition that were asked for."""
    if not message.element_count:
        return JudgedOutput(message.name, None, None, message.digest, b"")
    comparison = Comparison(
        passed=message.passed,
        standard=standard,
        edition=edition if standard == "mixed" else "",
        # a map has no order of its own
        thresholds=dict(sorted(message.thresholds.items())),
        cosine_distance=message.cosine_distance if message.HasField("cosine_distance") else None,
        element_count=message.element_count,
        passing_count=message.passing_count,
        max_abs_error=message.max_abs_error,
        mean_rel_error=message.mean_rel_error,
        max_rel_error=message.max_rel_error,
        mismatch_count=message.mismatch_count,
        first_mismatch=_optional_element(message, "first_mismatch"),
        first_failing=_optional_element(message, "first_failing"),
        worst=_optional_element(message, "worst"),
        reason=message.reason,
    )
    heat_map, failing_slice, statistics = None, None, message.statistics
    if message.HasField("heat_map"):
        heat_map = HeatMap(
            _three(message.heat_map.extents),
            _three(message.heat_map.bins),
            tuple(message.heat_map.failing),
        )
    if message.HasField("failing_slice"):
        told = message.failing_slice
        failing_slice = FailingSlice(tuple(told.index), tuple(told.actual), tuple(told.golden))
    findings = Findings(
        worst=tuple(
            WorstElement(_element(worst.element), worst.ulps if worst.HasField("ulps") else None)
            for worst in message.worst_elements
        ),
        relative_errors=_histogram(message.relative_errors),
        ulp_distances=_histogram(message.ulp_distances),
        statistics=ErrorStatistics(
            statistics.max_rel_error,
            statistics.mean_rel_error,
            statistics.rmse,
            statistics.small_error_count,
        ),
        heat_map=heat_map,
        failing_slice=failing_slice,
    )
    return JudgedOutput(message.name, comparison, findings, message.digest, message.golden_digest)


def _element_message(element: Element | None) -> pb.Element | None:
    if element is None:
        return None
    return pb.Element(index=element.index, actual=element.actual, golden=element.golden)


def _element(message: pb.Element) -> Element:
    return Element(tuple(message.index), message.actual, message.golden)


def _optional_element(message: pb.OutputVerdict, field: Any) -> Element | None:
    return _element(getattr(message, field)) if message.HasField(field) else None


def _histogram_message(histogram: Histogram) -> pb.Histogram:
    return pb.Histogram(
        exact_count=histogram.exact_count,
        exponents=list(histogram.counts),
        counts=list(histogram.counts.values()),
    )


def _histogram(message: pb.Histogram) -> Histogram:
    # a server may send lists of two lengths; what has no partner says nothing
    return Histogram(
        message.exact_count, dict(zip(message.exponents, message.counts, strict=False))
    )


def _three(numbers: Any) -> tuple[int, int, int]:
    first, second, third = [*numbers, 0, 0, 0][:3]
    return int(first), int(second), int(third)
