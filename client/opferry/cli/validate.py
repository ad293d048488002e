"""x"""

import click


@click.command()
def validate() -> None:
    """x."""
