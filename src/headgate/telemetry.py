"""Every name of a log event, and how logs leave a process.

Invariant: a name is written here once and nowhere else, so that a search never depends on a string
in some module; metrics.roles does the same for metrics. Importing this module has no effect:
logging starts with `configure_logging`. A line that can't be written is lost; it never stops the
work it is about.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

from headgate.errors import DataFolderError

LEVELS: Final[dict[str, int]] = {
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "verbose": 15,
    "debug": logging.DEBUG,
    "silly": 5,
}
"""The six levels, most important first, on the scale of Python's logging."""


class LogLine(StrEnum):
    """What a log line may be about."""

    # processes
    READY = "ready"
    UNEXPECTED = "unexpected_error"
    TASK_DIED = "task_died"
    TASK_LINGERS = "task_lingers"
    CLOCK_JUMPED = "clock_jumped"
    # control sessions
    LEADS = "leads"
    LEADERSHIP_LOST = "leadership_lost"
    TERM_FAILED = "term_failed"
    DRAINING = "draining"
    RESTARTING = "restarting"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    TOPOLOGY_APPLIED = "topology_applied"
    CONNECTOR_STATE = "connector_state"
    ASSIGNED = "assigned"
    REFUSED = "refused"
    # connectors
    CONNECTOR_CREATED = "connector_created"
    CONNECTOR_DELETED = "connector_deleted"
    CONNECTOR_PAUSED = "connector_paused"
    CONNECTOR_RESET = "connector_reset"
    CHANGE_SKIPPED = "change_skipped"
    SNAPSHOT_WANTED = "snapshot_wanted"
    SNAPSHOTS_CANCELLED = "snapshots_cancelled"
    # topics and produce
    KEYS_NOT_FETCHED = "keys_not_fetched"
    TOKEN_CREATED = "token_created"  # noqa: S105  # a name of an event
    TOKEN_REVOKED = "token_revoked"  # noqa: S105  # a name of an event
    TOPIC_CREATED = "topic_created"
    TOPIC_DELETED = "topic_deleted"
    TOPIC_REPARTITIONED = "topic_repartitioned"
    PARTITION_OPENED = "partition_opened"
    APPEND_FAILED = "append_failed"
    HISTORY_LOST = "history_lost"
    RETENTION_FAILED = "retention_failed"
    FENCED = "fenced"
    # windows and lanes
    SPARK_STARTED = "spark_started"
    CLASS_ARCHIVE = "class_archive"
    QUERY_FAILED = "query_failed"
    WINDOW_ENDS = "window_ends"
    GAP_FOUND = "gap_found"
    POSITION_RESET = "position_reset"
    GROUP_RESET = "group_reset"
    DELIVERY_REJECTED = "delivery_rejected"
    LETTERS_FAILED = "letters_failed"
    PARTITION_STOPPED = "partition_stopped"
    PARTITION_GOES_ON = "partition_goes_on"
    TARGET_DELAYED = "target_delayed"
    HANDED_OFF = "handed_off"
    LANE_ENDED = "lane_ended"
    LANE_WAITS = "lane_waits"
    GOES_ON_ALONE = "goes_on_alone"
    WAITS_FOR_COORDINATOR = "waits_for_coordinator"
    NOTES_FAILED = "notes_failed"
    DELIVERY_FAILED = "delivery_failed"
    CHECKPOINT_FAILED = "checkpoint_failed"
    # letters
    LETTERS_REVIVED = "letters_revived"
    LETTERS_DELETED = "letters_deleted"
    LETTERS_SWEPT = "letters_swept"
    LETTERS_MENDED = "letters_mended"
    SWEEP_FAILED = "sweep_failed"
    # where gateways take deliveries
    TRANSPORT_OPEN = "transport_open"
    TRANSPORT_LOST = "transport_lost"
    TOKEN_REFUSED = "token_refused"  # noqa: S105 - the name of an event
    AUDIT_FAILED = "audit_failed"
    PASS_REFUSED = "pass_refused"  # noqa: S105 - the same
    # subscribers
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    CATCHING_UP = "subscriber_catching_up"


class Sink:
    """Where finished lines go, and which levels get that far."""

    def __init__(self, stream: TextIO, floor: int) -> None:
        self.stream = stream
        self.floor = floor

    def write(self, line: str) -> None:
        # A full disk or a stream that was closed must not end the process that logs.
        with suppress(OSError, ValueError):
            self.stream.write(line + "\n")
            self.stream.flush()


class Log(structlog.BoundLoggerBase):
    """A logger with the six levels; `bind(...)` gives one that adds fields to every line."""

    def error(self, event: str, **fields: object) -> None:
        self._emit("error", event, fields)

    def warn(self, event: str, **fields: object) -> None:
        self._emit("warn", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._emit("info", event, fields)

    def verbose(self, event: str, **fields: object) -> None:
        self._emit("verbose", event, fields)

    def debug(self, event: str, **fields: object) -> None:
        self._emit("debug", event, fields)

    def silly(self, event: str, **fields: object) -> None:
        self._emit("silly", event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._emit("error", event, {"exc_info": True, **fields})

    warning = warn
    """The name that Python programmers type."""

    def _emit(self, level: str, event: str, fields: dict[str, Any]) -> None:
        sink: Sink = self._logger
        if LEVELS[level] < sink.floor:
            return
        (line,), _ = self._process_event(level, event, fields)
        sink.write(line)


def configure_logging(
    level: str,
    *,
    stream: TextIO | None = None,
    file: Path | None = None,
    role: str = "",
    node_id: str = "",
) -> Log:
    """Send this process's logs to `file`, or else to `stream` (stderr).

    People get columns on a terminal, everything else gets one JSON object per line. What libraries
    log through Python's own logging comes out the same way. Returns the logger to hand around;
    `structlog.get_logger()` gives an equal one. A second call replaces the first.
    """
    target = _opened(file) if file else stream or sys.stderr
    fields = {name: value for name, value in (("role", role), ("node", node_id)) if value}
    final = _final_processors(human=target.isatty())
    sink = Sink(target, LEVELS[level])

    def describe(_: object, method: str, event: EventDict) -> EventDict:
        return {"level": method, **fields, **event}

    structlog.configure(
        processors=[describe, *_COMMON, *final],
        wrapper_class=Log,
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    handler = _LibraryHandler(target, owned=file is not None)
    _route_libraries(handler, level, fields, final)
    log: Log = structlog.get_logger().bind()
    return log


def _opened(file: Path) -> TextIO:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise DataFolderError(
            f"can't write the log {file}: {error.strerror}; free the path or choose another folder"
        ) from error


_COMMON: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
)


def _final_processors(*, human: bool) -> list[Processor]:
    if human:
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


class _LibraryHandler(logging.StreamHandler[TextIO]):
    """Ours among the handlers of Python's logging; closes the file it was given, if any."""

    def __init__(self, target: TextIO, *, owned: bool) -> None:
        super().__init__(target)
        self._owned = owned

    def close(self) -> None:
        super().close()
        if self._owned:
            self.stream.close()


def _route_libraries(
    handler: logging.Handler, level: str, fields: dict[str, str], final: list[Processor]
) -> None:
    """Libraries speak up from warnings on; from everything on when somebody debugs."""

    names = {"warning": "warn", "critical": "error"}

    def describe(_: object, method: str, event: EventDict) -> EventDict:
        record: logging.LogRecord = event["_record"]
        named = names.get(method, method)
        return {"level": named, **fields, "logger": record.name, **event}

    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[describe, *_COMMON],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    for former in [other for other in root.handlers if isinstance(other, _LibraryHandler)]:
        root.removeHandler(former)
        former.close()
    root.addHandler(handler)
    floor = LEVELS[level]
    root.setLevel(floor if floor <= logging.DEBUG else max(floor, logging.WARNING))
