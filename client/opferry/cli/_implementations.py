"""What `opferry validate` runs cases on: a server, and for cross_check another implementation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import connected, say

if TYPE_CHECKING:
    from opferry.client import Client
    from opferry.core.execution import ServerInfo
    from opferry.validation import Case, CaseResult, RunSettings
    from opferry.validation.dumps import DumpWriter


def connect_to(address: str, words: dict[str, Any]) -> Client:
    """Return a client that waits as the options say."""
    return connected(address, words["timeout"], words["reconnect"])


def other_client(
    stack: contextlib.ExitStack, client: Client, info: ServerInfo, words: dict[str, Any]
) -> Client:
    """Return the client of the other implementation.

    Raises:
        click.UsageError: if it is the one that is validated.
    """
    other, theirs = client, info
    if words["against_target"] is not None:
        other = stack.enter_context(connect_to(words["against_target"], words))
        theirs = other.server_info()
    mine = words["operator_package"] or info.operator_packages[0].name
    against = words["against_package"] or words["operator_package"]
    against = against or theirs.operator_packages[0].name
    if other.config.target == client.config.target and against == mine:
        raise click.UsageError(
            "both implementations are the same: give another server with --against-target, or "
            "another package with --against-package"
        )
    if theirs.reference_kernel and words["golden_mode"] == "Enable":
        say(
            "the other implementation is the reference, whose errors against its own golden are 0: "
            "a device passes only with the same bits; --golden-mode Promote measures both"
        )
    return other


def results_of(
    client: Client,
    other: Client | None,
    cases: Iterable[Case],
    settings: RunSettings,
    dumps: DumpWriter | None,
    words: dict[str, Any],
) -> Iterator[CaseResult]:
    """Return the results of cases as they come; of two implementations, of both in step."""
    crossed = settings.standard == "cross_check"
    options = settings.options
    common: dict[str, Any] = {
        "seed": settings.seed,
        "standard": "mixed" if crossed else settings.standard,
        "edition": "current" if crossed else settings.edition,
        "golden_mode": settings.golden_mode,
        "check": options.check,
        "repeat": options.repeat,
        "warmup": options.warmup,
        "exclusive": options.exclusive,
        "deterministic": options.deterministic,
        "priority": options.priority,
        "inputs": settings.inputs,
        "batch_consistency": settings.batch_consistency,
        "timeout": words["timeout"],
    }
    dumped: dict[str, Any] = {}
    if dumps is not None:
        dumped = {
            "dump_outputs": dumps.wants_outputs,
            "dump_goldens": dumps.wants_goldens,
            # which rows fail is known when both results are there
            "dump_on_fail": dumps.only_on_fail and not crossed,
        }
    package = settings.operator_package
    if other is None:
        return client.validate_cases(cases, operator_package=package, **common, **dumped)
    from opferry.validation.crossing import cross_checked

    chosen = list(cases)
    against = words["against_package"] or package
    firsts = client.validate_cases(chosen, operator_package=package, **common, **dumped)
    seconds = other.validate_cases(chosen, operator_package=against, **common)
    return (
        cross_checked(first, second, words["level"])
        for first, second in zip(firsts, seconds, strict=True)
    )
