"""The audit trail of a role as a file of JSON lines, begun anew when it is large.

Invariant: a line is one line, whatever is in it; files are for their owner alone; at most `keep`
former ones are left. A flood of refusals costs so many lines in a second, and one that says how
many were left out.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from headgate.model.audit import AuditLine
from headgate.ports.machine import Machine
from headgate.telemetry import LogLine

log = structlog.get_logger()

REFUSALS_PER_S = 100

_encode = msgspec.json.Encoder().encode


class AuditFile:
    """Implements ports.audit.AuditTrail."""

    def __init__(
        self, path: Path, *, machine: Machine, max_bytes: int, keep: int, role: str, node_id: str
    ) -> None:
        self._path = path
        self._machine = machine
        self._max_bytes = max_bytes
        self._keep = keep
        self._of = {"role": role, "node": node_id}
        self._second = 0
        self._refusals = 0
        self._has_failed = False

    def note(self, line: AuditLine) -> None:
        second = int(self._machine.monotonic_s())
        if second != self._second:
            left_out, self._second, self._refusals = self._refusals, second, 0
            if left_out > REFUSALS_PER_S:
                self._write({"what": "refusals left out", "count": left_out - REFUSALS_PER_S})
        if line.outcome == "refused":
            self._refusals += 1
            if self._refusals > REFUSALS_PER_S:
                return
        self._write(msgspec.to_builtins(line))

    def _write(self, said: dict[str, object]) -> None:
        time = datetime.fromtimestamp(self._machine.wall_s(), UTC).isoformat()
        data = _encode({"time": time, **self._of, **said}) + b"\n"
        try:
            self._append(data)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                log.error(LogLine.AUDIT_FAILED, file=str(self._path), error=error.strerror)

    def _append(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.fstat(descriptor).st_size + len(data) > self._max_bytes:
                os.close(descriptor)
                self._begin_anew()
                descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def _begin_anew(self) -> None:
        for number in range(self._keep, 0, -1):
            former = self._path if number == 1 else self._former(number - 1)
            if former.exists():
                former.replace(self._former(number))

    def _former(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
