"""What needs a process of its own: workers of a DataLoader, and a device torch does not know."""

from __future__ import annotations

import pytest

from tests.support.programs import said


@pytest.mark.full
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_loader(start: str) -> None:
    """Two workers and their parent call at the same time, and get right results."""
    assert said("tests.torch.loader_program", start) == ["8 items"]


@pytest.mark.full
def test_another_device() -> None:
    """Tensors go through the CPU, and results and gradients come back to where they are from.

    All tensors of a call have to be on one device.
    """
    refused, done = said("tests.torch.device_program")
    assert refused == "key is on cpu, query on elsewhere:0; give all tensors on one device"
    assert done == "done"
