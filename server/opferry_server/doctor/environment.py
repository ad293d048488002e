"""The variables that CANN and the workers read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opferry_server.backends.ascend import VISIBLE_DEVICES
from opferry_server.config import ServerConfig
from opferry_server.doctor.outcomes import Check, Outcome
from opferry_server.packages import LIBRARY

GROUP = "environment"
_LOG_LEVELS = {"0": "debug", "1": "info", "2": "warning", "3": "error", "4": "none"}


def source_hint(root: Path) -> str:
    """Return what to source, naming the file if it is where installations usually have it."""
    places = sorted(root.glob("usr/local/Ascend/*/set_env.sh"))
    # the toolkit's own script before those of other packages beside it
    places.sort(key=lambda path: path.parent.name not in ("ascend-toolkit", "cann", "latest"))
    if places:
        return f"source {places[0]}"
    return (
        "source set_env.sh of the CANN installation, usually "
        "/usr/local/Ascend/ascend-toolkit/set_env.sh; if there is none, install CANN"
    )


def environment_checks(
    environment: Mapping[str, str], root: Path, config: ServerConfig
) -> list[Check]:
    """Return a line for each variable.

    Args:
        environment: the variables.
        root: "/" but in tests; where installations are looked for.
        config: the server's options.
    """
    hint = source_hint(root)
    return [
        _folder_check(environment, "ASCEND_HOME_PATH", hint),
        _folder_check(environment, "ASCEND_OPP_PATH", hint),
        _path_check(environment, hint),
        _custom_check(environment),
        _visible_check(environment, config.workers),
        _log_level_check(environment),
    ]


def _folder_check(environment: Mapping[str, str], name: str, hint: str) -> Check:
    value = environment.get(name, "")
    if not value:
        return Check(GROUP, name, Outcome.WARNING, "not set", hint)
    if not Path(value).is_dir():
        return Check(GROUP, name, Outcome.WARNING, f"{value} is no folder", hint)
    return Check(GROUP, name, Outcome.OK, value)


def _path_check(environment: Mapping[str, str], hint: str) -> Check:
    name = "LD_LIBRARY_PATH"
    value = environment.get(name, "")
    if not value:
        return Check(GROUP, name, Outcome.WARNING, "not set", hint)
    folders = [part for part in value.split(":") if part]
    absent = [part for part in folders if not Path(part).is_dir()]
    found = value + (f"; not there: {', '.join(absent)}" if absent else "")
    if len(absent) == len(folders):
        return Check(GROUP, name, Outcome.WARNING, found, hint)
    return Check(GROUP, name, Outcome.OK, found)


def _custom_check(environment: Mapping[str, str]) -> Check:
    name = "ASCEND_CUSTOM_OPP_PATH"
    folders = [part for part in environment.get(name, "").split(":") if part]
    if not folders:
        return Check(GROUP, name, Outcome.OK, "not set: no custom package from the environment")
    without = [folder for folder in folders if not Path(folder, LIBRARY).is_file()]
    if not without:
        return Check(GROUP, name, Outcome.OK, ", ".join(folders))
    found = f"{', '.join(folders)}; without {LIBRARY}: {', '.join(without)}"
    remedy = "these folders are passed over: name the package's own folder, or leave them out"
    return Check(GROUP, name, Outcome.WARNING, found, remedy)


def _visible_check(environment: Mapping[str, str], workers: int) -> Check:
    value = environment.get(VISIBLE_DEVICES)
    if value is None:
        found = "not set: worker 0 takes device 0, and so on"
        return Check(GROUP, VISIBLE_DEVICES, Outcome.OK, found)
    count = len([number for number in value.split(",") if number.strip()])
    if count >= workers:
        found = f"{value}: workers take these in their order"
        return Check(GROUP, VISIBLE_DEVICES, Outcome.OK, found)
    found = f"{value!r}: {count} for {workers} workers"
    remedy = f"--workers {count}, or show more devices"
    return Check(GROUP, VISIBLE_DEVICES, Outcome.FAILED, found, remedy)


def _log_level_check(environment: Mapping[str, str]) -> Check:
    name = "ASCEND_GLOBAL_LOG_LEVEL"
    value = environment.get(name, "")
    if not value:
        return Check(GROUP, name, Outcome.OK, "not set: CANN's own default")
    if value not in _LOG_LEVELS:
        remedy = f"one of {', '.join(f'{key} ({text})' for key, text in _LOG_LEVELS.items())}"
        return Check(GROUP, name, Outcome.WARNING, f"{value!r} is no level", remedy)
    found = f"{value} ({_LOG_LEVELS[value]})"
    if value in ("0", "1"):
        return Check(GROUP, name, Outcome.WARNING, found, "3 (error): what is logged costs time")
    return Check(GROUP, name, Outcome.OK, found)


def timeout_check(config: ServerConfig) -> Check:
    """Return whether each timeout ends before the one that waits for it."""
    times = {
        "device.operator_timeout_ms": config.device.operator_timeout_ms,
        "device.sync_timeout_ms": config.device.sync_timeout_ms,
        "limits.run_ms": config.limits_config.run_ms,
    }
    found = ", ".join(f"{name} {value}" for name, value in times.items())
    grow = sorted(set(times.values())) == list(times.values())
    if grow:
        return Check(GROUP, "timeouts", Outcome.OK, found, facts=times)
    remedy = "make each less than the next"
    return Check(GROUP, "timeouts", Outcome.FAILED, found, remedy, times)
