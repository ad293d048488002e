"""What the inputs of a case are made of, and the cases whose inputs nobody could make."""

from __future__ import annotations

from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem
from opferry.core.tensors import HostTensor, check_storage
from opferry.errors import from_problem
from opferry.validation._batches import batch_input
from opferry.validation.binaries import load_binary
from opferry.validation.case import Case
from opferry.validation.digests import file_digest
from opferry.validation.inputs import generate
from opferry.validation.outcome import InputSource, RunSettings
from opferry.validation.recipes import Distribution, Recipe
from opferry.validation.requests import CaseRequest, ClientData


def refuse_what_cannot_be_made(case: Case, limits: LimitsConfig) -> None:
    """Refuse tensors whose data nobody could generate: malformed or over the limit.

    Raises:
        OpFerryError: a RequestError.
    """
    try:
        try:
            for name, spec in case.inputs.items():
                check_storage(name, spec)
        except Problem:
            # the operator's own check reports the first rule in the device's order
            case.operator.check(case.inputs, case.attributes)
            raise
        limits.check_tensors(case.inputs)
    except Problem as problem:
        raise from_problem(problem) from problem


def request_of(case: Case, settings: RunSettings) -> CaseRequest:
    """Return a case as a server is given it; its number is still to come.

    Raises:
        Problem: TENSOR_MALFORMED for a tensor that is not well formed.
    """
    sources: dict[str, Recipe | ClientData] = {}
    for name, source in sources_of(case, settings).items():
        if isinstance(source, HostTensor):
            sources[name] = ClientData(file_digest(source.data))
        else:
            sources[name] = source if settings.inputs is InputSource.SERVER else ClientData()
    return CaseRequest(
        case_id=0,
        name=case.name,
        operator=case.operator,
        attributes=case.attributes,
        inputs=case.inputs,
        sources=sources,
        tolerances=case.tolerances,
        expects_refusal=case.expected_status is not None,
        outputs=tuple(case.outputs),
        returns_outputs=bool(case.golden_files)
        or (settings.batch_consistency and case.batch is not None),
    )


def data_of(case: Case, settings: RunSettings, name: str) -> HostTensor:
    """Return the data of an input, wherever they come from."""
    source = _source(case, settings, name)
    return source if isinstance(source, HostTensor) else generate(source)


def sources_of(case: Case, settings: RunSettings) -> dict[str, HostTensor | Recipe]:
    """Return what each input of a case is: data that are there, or what they are made of.

    Raises:
        Problem: TENSOR_MALFORMED for a tensor that is not well formed.
    """
    return {name: _source(case, settings, name) for name in case.inputs}


def _source(case: Case, settings: RunSettings, name: str) -> HostTensor | Recipe:
    if name in case.given:
        return case.given[name]
    if name in case.input_files:
        return load_binary(case.input_files[name], case.inputs[name])
    if settings.batch_consistency and case.batch is not None:
        return batch_input(case, case.batch, name, settings.seed)
    normal = case.normal_distribution
    return Recipe(
        case.inputs[name],
        case.ranges[name],
        Distribution.NORMAL if normal else Distribution.UNIFORM,
        settings.seed,
        case.name,
        name,
    )
