"""What the stages "runtime" and "device" come to: the runtime's word, and whether devices work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opferry_server.backends.aclnn.operators import BINDINGS
from opferry_server.backends.ascend import SUPPORTED_SOCS, is_real, unsupported_text
from opferry_server.config import ServerConfig
from opferry_server.doctor.children import StepResult
from opferry_server.doctor.outcomes import Check, Outcome

RUNTIME, DEVICES = "runtime", "devices"
RUNTIME_STEPS = ("aclInit", "device count", "SoC", "CANN version")
DEVICE_STEPS = ("open", "known answer", "memory")

_DRIVER = (
    "see the device nodes above and npu-smi info; driver and CANN must fit each other, and "
    "ASCEND_PROCESS_LOG_PATH holds the runtime's log"
)
_REMEDIES = {
    "aclInit": _DRIVER,
    "device count": _DRIVER,
    "SoC": _DRIVER,
    "CANN version": "reinstall CANN: the runtime does not say its version",
    "open": _DRIVER,
    "memory": "npu-smi info shows it; requests that the pools cannot serve will fail here",
    "known answer": "the operator package must be of this CANN and for this system on chip",
}
_NOT_NEEDED = ("memory",)
"""What keeps no server from starting."""

_CRASHED = (
    "a library with another signature crashes here: compare its header, opferry-server doctor "
    "--abi FOLDER, and see which package runs above"
)


def runtime_checks(
    steps: Mapping[str, StepResult], not_run: str, config: ServerConfig
) -> list[Check]:
    """Return a line for each thing that the runtime says without a device.

    Args:
        steps: of the stage "runtime".
        not_run: why the stage was not run, or "".
        config: the server's options.
    """
    words: dict[str, Callable[[Mapping[str, Any]], Check]] = {
        "aclInit": lambda facts: Check(RUNTIME, "aclInit", Outcome.OK, "done"),
        "device count": lambda facts: _count_check(facts["count"], config.workers),
        "SoC": lambda facts: soc_check(facts["name"]),
        "CANN version": lambda facts: Check(
            RUNTIME, "CANN version", Outcome.OK, facts["version"], facts=facts
        ),
    }
    return _in_order(RUNTIME, RUNTIME_STEPS, steps, not_run, words, "")


def _count_check(count: int, workers: int) -> Check:
    found = f"{count}; --workers is {workers}, one device each"
    facts = {"count": count}
    if count == 0:
        remedy = "no device is visible to this process: see the device nodes above"
        return Check(RUNTIME, "device count", Outcome.FAILED, found, remedy, facts)
    if workers > count:
        remedy = f"--workers {count} at most"
        return Check(RUNTIME, "device count", Outcome.FAILED, found, remedy, facts)
    return Check(RUNTIME, "device count", Outcome.OK, found, "", facts)


def soc_check(name: str) -> Check:
    """Return whether a system on chip has the operators, and whether it is a simulated one."""
    simulated = not is_real(name)
    facts = {"name": name, "simulated": simulated, "supported": name.startswith(SUPPORTED_SOCS)}
    if not name:
        remedy = "the runtime does not name the chip; the server needs the name, " + _DRIVER
        return Check(RUNTIME, "SoC", Outcome.FAILED, "the runtime says nothing", remedy, facts)
    if not facts["supported"]:
        found = unsupported_text(name, BINDINGS)
        remedy = "use a host with such a device: nothing on this one can run the operator"
        return Check(RUNTIME, "SoC", Outcome.FAILED, found, remedy, facts)
    text = f"{name}: supported"
    text += "; a simulator, no device" if simulated else ""
    return Check(RUNTIME, "SoC", Outcome.OK, text, "", facts)


def device_checks(
    device: int, steps: Mapping[str, StepResult], not_run: str, config: ServerConfig
) -> list[Check]:
    """Return the lines of one device: opened as a worker does, its known answer, its memory."""
    label = f"device {device} "

    def opened(facts: Mapping[str, Any]) -> Check:
        seconds = steps["open"].seconds
        text = f"in {seconds:g} s; operator timeout {facts['operator_timeout_ms']} ms"
        return Check(DEVICES, label + "open", Outcome.OK, text, "", {**facts, "seconds": seconds})

    def memory(facts: Mapping[str, Any]) -> Check:
        limit = config.device.device_memory_bytes
        text = f"{facts['free_bytes']} bytes free of {facts['total_bytes']}"
        if facts["free_bytes"] >= limit:
            return Check(DEVICES, label + "memory", Outcome.OK, text, "", facts)
        text += f"; device.device_memory_bytes is {limit}"
        remedy = "lower --device.device-memory-bytes, or end what else uses the device"
        return Check(DEVICES, label + "memory", Outcome.WARNING, text, remedy, facts)

    def answer(facts: Mapping[str, Any]) -> Check:
        seconds = steps["known answer"].seconds
        text = f"{facts['answer']}, in {seconds:g} s"
        facts = {**facts, "seconds": seconds}
        name = label + "known answer"
        remedies = []
        if facts["answer"] != "PASSED":
            text += "; a custom package is served all the same, and flagged in every reply"
            remedies.append("mend the kernel")
        for operator, said in facts["refused"].items():
            text += f"; {operator} is not served: {said}"
            remedies.append(f"install a CANN, or an operator package, that can run {operator}")
        outcome = Outcome.WARNING if remedies else Outcome.OK
        return Check(DEVICES, name, outcome, text, "; ".join(remedies), facts)

    words = {"open": opened, "memory": memory, "known answer": answer}
    return _in_order(DEVICES, DEVICE_STEPS, steps, not_run, words, label)


def _in_order(
    group: str,
    names: tuple[str, ...],
    steps: Mapping[str, StepResult],
    not_run: str,
    words: Mapping[str, Callable[[Mapping[str, Any]], Check]],
    label: str,
) -> list[Check]:
    """Return a line for each step; what follows a failed one is unknown."""
    checks: list[Check] = []
    blocked = not_run
    for name in names:
        # what ends the child before its first step, ends it in the first
        step = steps.get(name) or (None if checks else steps.get(""))
        if blocked or step is None:
            text = blocked or "it was not reached"
            checks.append(Check(group, label + name, Outcome.UNKNOWN, text))
            continue
        if step.ok:
            checks.append(words[name](step.facts))
            continue
        if name in _NOT_NEEDED:
            checks.append(Check(group, label + name, Outcome.UNKNOWN, step.text, _REMEDIES[name]))
            continue
        remedy = _CRASHED if step.ended_child and name == "known answer" else _REMEDIES[name]
        checks.append(Check(group, label + name, Outcome.FAILED, step.text, remedy))
        blocked = f"not tried after {label}{name} failed"
    return checks
