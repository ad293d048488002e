"""The soak of `make soak`, in short."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.run import assert_steady, soak
from tests.support.calls import SUBJECTS


@pytest.mark.full
@pytest.mark.timeout(300)
def test_two_hundred_requests_with_faults_leave_nothing(tmp_path: Path) -> None:
    """Every failure has its reason, every success its bits; handles, memory, threads are back."""
    outcome = soak(tmp_path, 200, seed=1, first_at=50)
    assert outcome.requests == 200
    assert outcome.restarts > 0
    for subject in SUBJECTS:
        assert any(kind.startswith(f"{subject}: ") for kind in outcome.kinds), outcome.kinds
    # so early on caches and the allocator are still warming up
    assert_steady(outcome, growth=0.5)
