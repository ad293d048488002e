"""What the stage "libraries" comes to: which files there are, and which supplies each symbol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from opferry_server.backends.aclnn.inspection import STAGES, Candidate
from opferry_server.backends.aclnn.operators import BINDINGS, Binding
from opferry_server.backends.aclnn.symbols import SYMBOLS
from opferry_server.backends.base import BackendSettings
from opferry_server.doctor.children import StepResult
from opferry_server.doctor.outcomes import Check, Outcome
from opferry_server.packages import LIBRARY, file_digest

GROUP = "libraries"
NEEDED_BY_ALL = ("runtime", "nnopbase")
RUNTIME_SYMBOLS = "symbols of runtime"
WITH_OPERATORS = ("custom", "operators")


class Supply(NamedTuple):
    """Which file supplies which symbol, as the backend would bind them."""

    files: dict[str, str]
    """By symbol; "" where no library has it."""

    @property
    def operators(self) -> list[Binding]:
        """The operators of which both functions are there; the backend serves with one of them."""
        return [
            binding
            for binding in BINDINGS.values()
            if all(self.files[stage.name] for stage in binding.stages)
        ]


def supply(candidates: Sequence[Candidate], steps: Mapping[str, StepResult]) -> Supply:
    """Return where the backend would take each symbol from: the first library that has it."""
    files = {symbol.name: "" for symbol in (*SYMBOLS, *STAGES)}
    for candidate in candidates:
        step = steps.get(candidate.name)
        if step is None or not step.ok:
            continue
        for name, file in step.facts["symbols"].items():
            files[name] = files[name] or file
    return Supply(files)


def library_checks(
    candidates: Sequence[Candidate], steps: Mapping[str, StepResult], package: str, hint: str
) -> list[Check]:
    """Return a line for each library.

    Args:
        candidates: what the backend would load.
        steps: what came of it, by name.
        package: the folder of the operator package that the server shall run, or "".
        hint: what to source.
    """
    checks = []
    has_operators = _any_loads(candidates, steps, WITH_OPERATORS)
    for candidate in candidates:
        step = steps.get(candidate.name)
        if candidate.group == "custom" and step is None:
            if package:
                text = f"there is no file {candidate.name}"
                remedy = f"build the package, or correct its folder {package}"
                checks.append(Check(GROUP, candidate.name, Outcome.FAILED, text, remedy))
            continue
        checks.append(_library_check(candidate, step, has_operators, hint))
    return checks


def _library_check(
    candidate: Candidate, step: StepResult | None, has_operators: bool, hint: str
) -> Check:
    name = candidate.name
    if step is None:
        return Check(GROUP, name, Outcome.UNKNOWN, "it was not tried")
    if step.ok:
        own = [
            file for file in step.facts["symbols"].values() if Path(file).name == Path(name).name
        ]
        return Check(GROUP, name, Outcome.OK, own[0] if own else "loads", "", step.facts)
    if step.ended_child:
        remedy = "the library itself is broken, or does not fit this host: reinstall its package"
        return Check(GROUP, name, Outcome.FAILED, f"loading it: {step.text}", remedy)
    if candidate.group == "operators" and has_operators:
        return Check(
            GROUP, name, Outcome.OK, f"not there, nor needed beside the other: {step.text}"
        )
    if candidate.group == "custom":
        remedy = "rebuild the package against this host's CANN, or take it out of the environment"
        return Check(GROUP, name, Outcome.FAILED, step.text, remedy)
    return Check(GROUP, name, Outcome.FAILED, step.text, hint)


def _any_loads(
    candidates: Sequence[Candidate], steps: Mapping[str, StepResult], groups: Sequence[str]
) -> bool:
    tried = [steps.get(item.name) for item in candidates if item.group in groups]
    return any(step is not None and step.ok for step in tried)


def symbol_checks(
    candidates: Sequence[Candidate], steps: Mapping[str, StepResult], found: Supply
) -> list[Check]:
    """Return a line for the symbols of each base library, and for each function of an operator."""
    checks = []
    for library in NEEDED_BY_ALL:
        names = [symbol.name for symbol in SYMBOLS if symbol.library == library]
        loaded = _any_loads(candidates, steps, (library,))
        checks.append(_symbols_check(f"symbols of {library}", names, found, loaded))
    loaded = _any_loads(candidates, steps, WITH_OPERATORS)
    enough = bool(found.operators)
    for operator, binding in BINDINGS.items():
        for stage in binding.stages:
            check = _symbols_check(stage.name, [stage.name], found, loaded)
            if enough and check.outcome is Outcome.FAILED:
                said = f"{check.found}: calls of {operator} will be refused"
                check = replace(check, outcome=Outcome.WARNING, found=said)
            checks.append(check)
    return checks


def _symbols_check(name: str, names: Sequence[str], found: Supply, loaded: bool) -> Check:
    if not loaded:
        return Check(GROUP, name, Outcome.UNKNOWN, "the library cannot be loaded")
    facts = {symbol: found.files[symbol] for symbol in names}
    files = sorted({file for file in facts.values() if file})
    missing = [symbol for symbol, file in facts.items() if not file]
    if not missing:
        count = "" if len(names) == 1 else f"all {len(names)} "
        return Check(GROUP, name, Outcome.OK, f"{count}from {', '.join(files)}", "", facts)
    text = f"missing: {', '.join(missing)}"
    if len(names) == 1:
        text = "in none of the libraries above"
    remedy = "install a CANN, or an operator package, that has it"
    return Check(GROUP, name, Outcome.FAILED, text, remedy, facts)


def package_checks(
    candidates: Sequence[Candidate], steps: Mapping[str, StepResult], found: Supply, name: str
) -> list[Check]:
    """Return a line for each library with operators: its SHA-256, and which one runs.

    Args:
        candidates: what the backend would load.
        steps: what came of it.
        found: which file supplies which symbol.
        name: the name under which the server would run the package.
    """
    stages = [item.stages[0].name for item in found.operators] or [STAGES[0].name]
    first = {found.files[stage] for stage in stages}
    files: dict[str, str] = {}
    for candidate in candidates:
        step = steps.get(candidate.name)
        if candidate.group not in WITH_OPERATORS or step is None or not step.ok:
            continue
        custom = candidate.group == "custom"
        of_stages = [step.facts["symbols"][stage] for stage in stages]
        for path in [candidate.name] if custom else filter(None, of_stages):
            files.setdefault(str(Path(path).resolve()), "custom" if custom else "vendor's")
    checks = []
    for file, kind in files.items():
        digest = file_digest(file)
        runs = file in first
        text = f"{kind}, {file}, SHA-256 {digest}" + ("" if runs else "; not the one that runs")
        label = f"package {name}" if runs else "package beside it"
        facts = {"file": file, "digest": digest, "kind": kind, "runs": runs}
        checks.append(Check(GROUP, label, Outcome.OK, text, "", facts))
    return checks


def other_package_check(settings: BackendSettings, tried: Sequence[Check]) -> Check:
    """Return the line of a package that is not the default.

    Args:
        settings: with its name and folder; none for the vendor's.
        tried: what came of opening a device with it.
    """
    group, name, where = "packages", f"package {settings.package}", "the vendor's"
    facts: dict[str, Any] = {}
    if settings.package_folder:
        file = str(Path(settings.package_folder, LIBRARY).resolve())
        facts = {"file": file, "digest": file_digest(file)}
        where = f"{file}, SHA-256 {facts['digest']}"
    bad = [check for check in tried if check.outcome is Outcome.FAILED]
    if bad:
        text = f"{where}; requests for it will be refused: {bad[0].found}"
        remedy = bad[0].remedy
        if bad[0].name.endswith(" open"):
            # the device itself was opened with the default package before
            remedy = "build the package with this operator, for this host's CANN"
        return Check(group, name, Outcome.WARNING, text, remedy, facts)
    answers = [check for check in tried if "answer" in check.facts]
    if not answers:
        return Check(group, name, Outcome.UNKNOWN, f"{where}; {tried[0].found}", "", facts)
    facts["answer"] = answers[0].facts["answer"]
    text = f"{where}; known answer {facts['answer']}"
    return Check(group, name, answers[0].outcome, text, answers[0].remedy, facts)
