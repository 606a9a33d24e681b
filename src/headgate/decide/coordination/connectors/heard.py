"""What the reader of a connector said last, and since when it says so."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.model.connector import ConnectorReport


@dataclass(frozen=True, slots=True)
class Heard:
    """`since_ms` is when the reader came to the state it is in, `at_ms` when it was heard last."""

    report: ConnectorReport
    since_ms: int
    at_ms: int

    def then(self, report: ConnectorReport, now_ms: int) -> Heard:
        """What is known once `report` has come, too."""
        is_same = (report.epoch, report.state) == (self.report.epoch, self.report.state)
        return Heard(report, self.since_ms if is_same else now_ms, now_ms)
