"""Counters and histograms for one thread, the front's event loop.

Those of prometheus_client lock at each step, which is most of what they cost, and a request takes
several steps. The registry, the rules for names and the text are its.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
)  # fmt: skip
"""The bounds of histograms, in seconds."""

_Child = TypeVar("_Child")


class Tally:
    """A counter with its labels bound; whoever counts adds to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Spread:
    """A histogram of seconds with its labels bound."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one that took so long."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


class _Family(Collector, Generic[_Child]):
    """A metric: its children by the values of their labels."""

    def __init__(
        self,
        registry: CollectorRegistry,
        make: Callable[[], _Child],
        name: str,
        text: str,
        labels: Sequence[str],
    ) -> None:
        self._make = make
        self._name, self._text, self._labels = name, text, labels
        self._children: dict[tuple[str, ...], _Child] = {}
        registry.register(self)

    def labels(self, *values: str) -> _Child:
        """Return the child with these labels; to be kept by whoever needs it often."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = self._make()
        return child


class Tallies(_Family[Tally]):
    """A counter."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str]
    ) -> None:
        """Register a counter, whose name ends with "_total", with these labels."""
        super().__init__(registry, Tally, name, text, labels)

    def collect(self) -> Iterator[Metric]:
        """Yield what was counted."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class Spreads(_Family[Spread]):
    """A histogram of seconds."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str]
    ) -> None:
        """Register a histogram with these labels."""
        super().__init__(registry, Spread, name, text, labels)

    def collect(self) -> Iterator[Metric]:
        """Yield what was counted."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, child in self._children.items():
            buckets, below = [], 0
            for bound, count in zip((*SECONDS, float("inf")), child.counts, strict=True):
                below += count
                buckets.append((str(float(bound)).replace("inf", "+Inf"), float(below)))
            family.add_metric(values, buckets, child.total)
        yield family
