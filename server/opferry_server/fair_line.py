"""A line in which tenants share by weight, and in which what is urgent comes first.

Weighted fair queueing by virtual time: of each tenant it is known how much it has had, divided by
its weight, and who has had least is next. Whoever begins to wait starts level with the least served
of those who wait: nobody saves up, and nobody waits for others to catch up. Within a tenant its
interactive and its batch requests share by the same rule.

An interactive request counts as if `head_start` less had been had. So it passes what is batch, and
yet a flood of interactive requests does not keep batch from its share for longer than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Generic, Protocol, TypeVar

from opferry.core.execution import Priority


class Waiting(Protocol):
    """What can stand in a line."""

    account: str
    priority: Priority
    entered_s: float


W = TypeVar("W", bound=Waiting)


class _Share:
    """What somebody has had, beside the others who share with it."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.had = 0.0
        self.having = 0.0
        self.waiting_count = 0
        self.taken_count = 0

    @property
    def key(self) -> float:
        """What it has had, and what it is expected to have of what was taken."""
        return self.had + self.having

    def settle(self, cost: float, true_cost: float) -> None:
        self.taken_count -= 1
        self.having = self.having - cost / self.weight if self.taken_count else 0.0
        self.had += true_cost / self.weight


class _Sharers:
    """Those who share. Who begins to wait starts level with the least served who waits."""

    def __init__(self) -> None:
        self.level = 0.0

    def enter(self, share: _Share) -> None:
        """Count a request that waits."""
        if not share.waiting_count:
            share.had += max(0.0, self.level - share.key)
        share.waiting_count += 1

    def take(self, share: _Share, cost: float, all_of_them: Iterable[_Share]) -> None:
        """Count a request that waited as taken."""
        self.level = max(self.level, min(each.key for each in all_of_them if each.waiting_count))
        share.waiting_count -= 1
        share.taken_count += 1
        share.having += cost / share.weight


class _Class(_Share, Generic[W]):
    """The requests of one tenant in one class."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.line: deque[W] = deque()


class _Tenant(_Share, Generic[W]):
    """The requests of one tenant."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.classes: dict[Priority, _Class[W]] = {each: _Class() for each in Priority}
        self.sharers = _Sharers()


class FairLine(Generic[W]):
    """A line of requests, and what those who stood in it have had since.

    Every request is `appended`, later `taken` or `discarded`; one that was taken is at last
    `settled`, or `put_back`.
    """

    def __init__(
        self,
        cost_of: Callable[[W], float],
        weight_of: Callable[[W], float],
        head_start: float,
    ) -> None:
        """Make an empty line.

        Args:
            cost_of: what a request is expected to cost, in the unit in which is shared.
            weight_of: the weight of the account that a request goes to.
            head_start: how much less an interactive request counts, in that unit.
        """
        self._cost_of = cost_of
        self._weight_of = weight_of
        self._head_start = head_start
        self._tenants: dict[str, _Tenant[W]] = {}
        self._sharers = _Sharers()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[W]:
        """Yield the requests in the order in which they are to be taken, as things are now."""
        lines = [
            (tenant, [each for each in tenant.classes.values() if each.waiting_count])
            for tenant in self._tenants.values()
            if tenant.waiting_count
        ]
        if len(lines) == 1:
            return self._of_tenant(lines[0][1])
        return self._merged((tenant, self._of_tenant(classes)) for tenant, classes in lines)

    def append(self, request: W) -> None:
        """Put a request into the line."""
        tenant = self._tenants.get(request.account)
        if tenant is None:
            self._forget_equals()
            tenant = self._tenants[request.account] = _Tenant(self._weight_of(request))
        its_class = tenant.classes[request.priority]
        if not tenant.waiting_count and not tenant.taken_count:
            tenant.weight = self._weight_of(request)
        self._sharers.enter(tenant)
        tenant.sharers.enter(its_class)
        its_class.line.append(request)
        self._count += 1

    def take(self, request: W) -> None:
        """Take a request out of the line to be served."""
        tenant, its_class = self._where(request)
        cost = self._cost_of(request)
        self._sharers.take(tenant, cost, self._tenants.values())
        tenant.sharers.take(its_class, cost, tenant.classes.values())
        its_class.line.remove(request)
        self._count -= 1

    def put_back(self, request: W) -> None:
        """Put a request that was taken, and has cost nothing, back to the head of its class."""
        cost = self._cost_of(request)
        for share in self._where(request):
            share.settle(cost, 0.0)
            share.waiting_count += 1
        self._where(request)[1].line.appendleft(request)
        self._count += 1

    def settle(self, request: W, true_cost: float) -> None:
        """Note what a request that was taken has cost."""
        cost = self._cost_of(request)
        for share in self._where(request):
            share.settle(cost, true_cost)

    def discard(self, request: W) -> bool:
        """Take a request out of the line if it is there, without serving it."""
        tenant = self._tenants.get(request.account)
        if tenant is None:
            return False
        its_class = tenant.classes[request.priority]
        if request not in its_class.line:
            return False
        its_class.line.remove(request)
        tenant.waiting_count -= 1
        its_class.waiting_count -= 1
        self._count -= 1
        return True

    def _where(self, request: W) -> tuple[_Tenant[W], _Class[W]]:
        tenant = self._tenants[request.account]
        return tenant, tenant.classes[request.priority]

    def _forget_equals(self) -> None:
        """Forget those who have nothing here, and would start as newcomers do."""
        for account, tenant in list(self._tenants.items()):
            idle = not tenant.waiting_count and not tenant.taken_count
            if idle and tenant.key <= self._sharers.level:
                del self._tenants[account]

    def _of_tenant(self, classes: list[_Class[W]]) -> Iterator[W]:
        if len(classes) == 1:
            return iter(classes[0].line)
        return self._merged((each, iter(each.line)) for each in classes)

    def _merged(self, lines: Iterable[tuple[_Share, Iterator[W]]]) -> Iterator[W]:
        """Yield what several sharers have in line, always from whom has had least."""
        heap: list[tuple[float, float, int, float, _Share, W, Iterator[W]]] = []
        for number, (share, line) in enumerate(lines):
            first = next(line)
            had = share.key
            heap.append((self._rank(had, first), first.entered_s, number, had, share, first, line))
        heapify(heap)
        while heap:
            _, _, number, had, share, request, line = heap[0]
            yield request
            had += self._cost_of(request) / share.weight
            following = next(line, None)
            if following is None:
                heappop(heap)
            else:
                rank = self._rank(had, following)
                entry = (rank, following.entered_s, number, had, share, following, line)
                heapreplace(heap, entry)

    def _rank(self, had: float, request: W) -> float:
        return had - self._head_start * (request.priority is Priority.INTERACTIVE)
