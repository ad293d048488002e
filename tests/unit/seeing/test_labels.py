"""Labels are bounded, whatever callers do."""

from __future__ import annotations

from opferry_server.seeing.labels import OTHER, Bounded


def test_known_values_and_the_first_others_have_their_names() -> None:
    """The rest shares one, also those that come again."""
    label = Bounded(3, ("known",))
    assert [label(value) for value in ("a", "b", "c", "a", "known", "d", "c")] == [
        "a",
        "b",
        OTHER,
        "a",
        "known",
        OTHER,
        OTHER,
    ]
