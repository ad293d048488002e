"""What the package offers, and what it does not pull in."""

from __future__ import annotations

import subprocess
import sys
from typing import get_origin

import opferry.validation


def test_the_list_is_sorted_and_right() -> None:
    """Every listed name is there, in order, and documented where it can be."""
    names = opferry.validation.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))
    for name in names:
        value = getattr(opferry.validation, name)
        # a type alias cannot carry a docstring of its own
        if callable(value) and get_origin(value) is None:
            assert value.__doc__


def test_neither_grpc_nor_protobuf_is_imported() -> None:
    """Reading, judging and writing need no transport."""
    check = (
        "import sys, opferry.validation\n"
        "bad = {'grpc', 'google.protobuf', 'opferry.wire', 'opferry.v1', 'click', 'rich'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
