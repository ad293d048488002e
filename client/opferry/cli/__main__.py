"""The command line `opferry`."""

from __future__ import annotations

import click

from opferry.cli.cases import cases
from opferry.cli.context import context, login, logout
from opferry.cli.diff import diff
from opferry.cli.farm import cancel, lease, queue
from opferry.cli.info import info
from opferry.cli.plan import plan
from opferry.cli.report import report
from opferry.cli.run import run
from opferry.cli.validate import validate


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="opferry", prog_name="opferry")
def main() -> None:
    """Run NPU operators remotely, and validate them from the TTK case files that you have.

    \b
    Exit status of every command:
      0  done; for validate: every enabled case passed
      1  the operator or some cases failed; for diff: a case broke or is missing
      2  bad file or arguments
      3  could not run: no server, or it went away
    """  # noqa: D301 - click reads the escape


for command in (
    validate,
    report,
    diff,
    cases,
    run,
    plan,
    info,
    queue,
    cancel,
    lease,
    context,
    login,
    logout,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
