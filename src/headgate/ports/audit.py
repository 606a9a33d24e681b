"""Where administrative acts and refusals are written down."""

from __future__ import annotations

from typing import Protocol

from headgate.model.audit import AuditLine


class AuditTrail(Protocol):
    def note(self, line: AuditLine) -> None:
        """Write it down, at once. Never raises: what can't be written is said in the log, and the
        caller is answered all the same. Acts are always written; of refusals so many in a second,
        and then how many were left out."""


class NoAuditTrail:
    """Implements AuditTrail where nobody keeps one."""

    def note(self, line: AuditLine) -> None:
        pass
