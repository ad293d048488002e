"""Who a request is from: a tenant and a role, from its credential and never from its body."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from opferry.core.problems import Problem, Reason


class Role(IntEnum):
    """What somebody may do; each may do what those before it may."""

    VIEWER = 1
    """See the server, its queue, and plans."""
    USER = 2
    """Run operators, and end one's own tenant's requests."""
    ADMIN = 3
    """See and end everybody's."""

    @property
    def word(self) -> str:
        """The role's name in files and messages."""
        return self.name.lower()


@dataclass(frozen=True)
class Identity:
    """Who a request is from."""

    tenant: str
    """The team that its limits and its share belong to."""
    role: Role
    """What it may do."""
    subject: str = ""
    """The name of the credential, for the audit log; never the credential itself."""

    def require(self, role: Role) -> None:
        """Check that so much is allowed.

        Raises:
            Problem: PERMISSION_DENIED.
        """
        if self.role < role:
            raise Problem(
                Reason.PERMISSION_DENIED,
                f"the credential's role is {self.role.word}; this takes the role {role.word}",
                argument="role",
                given=self.role.word,
                allowed=" or ".join(able.word for able in Role if able >= role),
            )

    def owns(self, tenant: str) -> bool:
        """Return whether a tenant's requests are one's own, as all are an admin's."""
        return self.role is Role.ADMIN or self.tenant == tenant


ANYONE = Identity("anonymous", Role.USER)
"""Who everybody is on a server without credentials."""
