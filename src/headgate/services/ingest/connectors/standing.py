"""How one connector's reader fares, as the coordinator and the log are told."""

from __future__ import annotations

import structlog
from msgspec.structs import replace

from headgate.decide.connectors.plan import ConnectorPlan
from headgate.decide.connectors.snapshots.places import of_stream
from headgate.model.connector import (
    Connector,
    ConnectorReport,
    ConnectorState,
    SnapshotReport,
)
from headgate.ports.origin import Standing
from headgate.telemetry import LogLine

log = structlog.get_logger()


class IntakeStanding:
    """`report` is the newest; a new value each time, so that it can be sent as it is."""

    def __init__(self, connector: Connector, epoch: int) -> None:
        self._has_heard = False
        """Since the last look."""
        self.report = ConnectorReport(
            name=connector.name, epoch=epoch, state="starting", begun=connector.begun
        )

    def say(self, state: ConnectorState, error: str = "", **more: object) -> None:
        report = self.report
        if (state, error) != (report.state, report.error):
            log.info(LogLine.CONNECTOR_STATE, connector=report.name, state=state, reason=error)
        self.report = replace(report, state=state, error=error, **more)

    def stands_at(self, planned: ConnectorPlan) -> None:
        """What is behind that is to be read. Where all partitions say how far they are, it has
        begun: the next reader is to know, also where this one gets no further."""
        begun = self.report.begun or not planned.unpinned()
        self.report = replace(self.report, position=of_stream(planned.resume), begun=begun)

    def begins(self) -> None:
        """Positions are stored."""
        self.report = replace(self.report, begun=True)

    def heard(self, position: str, lag_ms: int | None) -> None:
        """The origin's changes up to there are read."""
        self._has_heard = True
        self.report = replace(self.report, position=position, lag_ms=lag_ms)

    def looked(self, standing: Standing) -> None:
        """The origin has said how it stands. While nothing is read, because nobody may or can or
        takes it, that alone says how far behind this one is."""
        lag_ms = self.report.lag_ms
        if not self._has_heard:
            lag_ms = standing.age_ms if standing.behind != 0 else 0
        self._has_heard = False
        self.report = replace(
            self.report,
            lag_records=standing.behind,
            lag_ms=lag_ms,
            history_ms=standing.history_ms,
            age_ms=standing.age_ms,
            held_bytes=standing.held_bytes,
            warning=standing.warning,
        )

    def snapshot(self, report: SnapshotReport) -> None:
        """How far the present snapshot is."""
        self.report = replace(self.report, snapshot=report)

    def took(self, added: int) -> None:
        """Partitions have so many more records."""
        self.report = replace(self.report, taken=self.report.taken + added)

    def left_out(self, count: int) -> None:
        """So many changes go nowhere."""
        self.report = replace(self.report, left_out=self.report.left_out + count)
