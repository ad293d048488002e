"""All checks of a host, from the outside in: nodes, variables, libraries, runtime, devices."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from opferry_server.backends.aclnn.inspection import candidates
from opferry_server.backends.aclnn.symbols import LIBRARIES
from opferry_server.backends.base import BackendSettings
from opferry_server.config import ServerConfig
from opferry_server.doctor import devices, libraries, nodes
from opferry_server.doctor.children import StepResult, run_stage
from opferry_server.doctor.environment import (
    environment_checks,
    source_hint,
    timeout_check,
)
from opferry_server.doctor.outcomes import Check, Outcome

MOST_AT_A_TIME = 8
"""How many devices are opened at a time; the server opens all at once."""


@dataclass(frozen=True)
class Examination:
    """What was found out about a host."""

    checks: tuple[Check, ...]
    """All lines, in order."""

    @property
    def failed(self) -> list[Check]:
        """What has to be mended before the backend starts."""
        return [check for check in self.checks if check.outcome is Outcome.FAILED]

    @property
    def will_start(self) -> bool:
        """Whether the backend starts on the devices that were asked for."""
        return not self.failed

    @property
    def simulated(self) -> bool:
        """Whether the runtime that was found is a simulator."""
        return _is_simulated(self.checks)

    @property
    def has_nothing(self) -> bool:
        """Whether there is neither a device node nor a library of CANN: an ordinary machine."""
        found = [check for check in self.checks if check.group in (nodes.GROUP, libraries.GROUP)]
        return not any(check.outcome is Outcome.OK for check in found)


def examine(config: ServerConfig, root: Path) -> Examination:
    """Check everything; what fails does not keep the rest from being checked, where it can be.

    Args:
        config: the server's options; each child gets `start_timeout_s`, as a worker does.
        root: the folder in which dev/, etc/ and usr/ of the host lie; "/" but in tests.
    """
    packages = config.operator_packages
    by_device = [config.backend_settings(device, packages) for device in range(config.workers)]
    settings = [by_package[packages.default] for by_package in by_device]
    others = [of for name, of in by_device[0].items() if name != packages.default]
    of_nodes = [*_nodes(settings[0], config.start_timeout_s, root), nodes.driver_check(root)]
    of_environment = [*environment_checks(os.environ, root, config), timeout_check(config)]
    of_libraries = _libraries(settings[0], config.start_timeout_s, source_hint(root))
    of_runtime = _runtime(config, settings[0], of_libraries)
    if _is_simulated(of_runtime):
        of_nodes = [_not_needed(check) for check in of_nodes]
    of_devices = _devices(config, settings, of_libraries, of_runtime)
    first = [check for check in of_devices if check.name.startswith("device 0 ")]
    of_others = _other_packages(config, others, _first_failed([*of_libraries, *of_runtime, *first]))
    return Examination(
        (*of_nodes, *of_environment, *of_libraries, *of_runtime, *of_devices, *of_others)
    )


def _nodes(settings: BackendSettings, limit_s: float, root: Path) -> list[Check]:
    paths = [str(path) for path in nodes.node_paths(root) if path.exists()]
    environment = os.environ
    steps = run_stage("nodes", settings, environment, limit_s, paths, goes_on=True)
    errors: dict[str, int | str | None] = {}
    for path, step in steps.items():
        errors[path] = None if step.ok else step.errno or f"opening it: {step.text}"
    return nodes.node_checks(root, errors, nodes.current_user())


def _libraries(settings: BackendSettings, limit_s: float, hint: str) -> list[Check]:
    folder = settings.package_folder
    wanted = candidates(Path(folder) if folder else None)
    steps = run_stage("libraries", settings, os.environ, limit_s, goes_on=True)
    found = libraries.supply(wanted, steps)
    return [
        *libraries.library_checks(wanted, steps, folder, hint),
        *libraries.symbol_checks(wanted, steps, found),
        *libraries.package_checks(wanted, steps, found, settings.package),
    ]


def _runtime(
    config: ServerConfig, settings: BackendSettings, of_libraries: list[Check]
) -> list[Check]:
    # without an operator's library the runtime itself can still be asked
    names = (*LIBRARIES["runtime"], libraries.RUNTIME_SYMBOLS)
    not_run = _first_failed(check for check in of_libraries if check.name in names)
    steps: dict[str, StepResult] = {}
    if not not_run:
        steps = run_stage("runtime", settings, os.environ, config.start_timeout_s)
    return devices.runtime_checks(steps, not_run, config)


def _devices(
    config: ServerConfig,
    settings: list[BackendSettings],
    of_libraries: list[Check],
    of_runtime: list[Check],
) -> list[Check]:
    counts = [check.facts["count"] for check in of_runtime if "count" in check.facts]
    others = [check for check in of_runtime if "count" not in check.facts]
    not_run = _first_failed([*of_libraries, *others])

    def run(one: BackendSettings) -> list[Check]:
        why = not_run
        if counts and one.device >= counts[0]:
            why = why or f"there are {counts[0]} devices"
        steps: dict[str, StepResult] = {}
        if not why:
            steps = run_stage("device", one, os.environ, config.start_timeout_s)
        return devices.device_checks(one.device, steps, why, config)

    with ThreadPoolExecutor(MOST_AT_A_TIME) as pool:
        return [check for checks in pool.map(run, settings) for check in checks]


def _other_packages(
    config: ServerConfig, packages: list[BackendSettings], not_run: str
) -> list[Check]:
    """Try the packages that are served when somebody asks for them, on the first device.

    One that does not work keeps the server from serving it, not from starting.
    """
    checks = []
    for settings in packages:
        steps: dict[str, StepResult] = {}
        if not not_run:
            steps = run_stage("device", settings, os.environ, config.start_timeout_s)
        found = devices.device_checks(0, steps, not_run, config)
        checks.append(libraries.other_package_check(settings, found))
    return checks


def _first_failed(checks: Iterable[Check]) -> str:
    """Return why what depends on some checks is not tried, "" if nothing speaks against it."""
    failed = [check.name for check in checks if check.outcome is Outcome.FAILED]
    return f"not tried after {failed[0]} failed" if failed else ""


def _is_simulated(checks: Iterable[Check]) -> bool:
    return any(check.facts.get("simulated", False) for check in checks)


def _not_needed(check: Check) -> Check:
    if check.outcome is not Outcome.FAILED:
        return check
    found = f"{check.found}; the runtime that was found is a simulator, which needs none"
    return replace(check, outcome=Outcome.WARNING, found=found, remedy="")
