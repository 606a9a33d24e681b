"""A connector as operators define it, and as its reader reports on it.

Invariant: no value here holds a secret. Settings name where a secret is found (`${NAME}` in the
environment of the ingest node that reads, `${file:PATH}` on it), never the secret itself.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.event import PartitionRef

ConnectorType = Literal["mongodb", "postgresql"]
BEGIN_NOW = "now"
"""Where to begin: with what changes from now on. Else `time:` with an instant in RFC 3339, or
`position:` with a position, such as a record's `source`."""

ConnectorState = Literal[
    "starting", "running", "retrying", "paused", "waiting", "history-lost", "stopped"
]
"""`retrying`: something is away, and is tried again by itself. `waiting`: for a topic, or for
somebody to run it. `history-lost`: the origin no longer has what comes next; an operator says where
to go on (`reset`). `stopped`: at one change that can't be taken; an operator may `skip` it."""


class ConnectorRoute(msgspec.Struct, frozen=True, array_like=True):
    """Collections whose name matches `pattern` (`*`, `?`, `[…]` and `[!…]` as in file names) go to
    `topic`."""

    pattern: str
    topic: str


class Skipped(msgspec.Struct, frozen=True, array_like=True):
    """A change that an operator had left out: its position, what it was, and when."""

    position: str
    what: str
    time_ms: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What shall be read of `collections` (empty: all) as they are, beside their changes.

    `id` is an epoch of the connector under which nobody reads: given out once, like a beginning.
    `compares`: what the log has of the connector and its origin lacks becomes a delete.
    """

    id: int
    collections: tuple[str, ...] = ()
    compares: bool = False


class Connector(msgspec.Struct, frozen=True):
    """`routes` are asked in turn, and the first that fits says the topic; what fits none is left
    out. `settings` are those of its type. `beginning` is the epoch in which it began at `begin_at`;
    `begun` says that it has stored positions since. `skip` is the position of the one change that
    it may leave out. `snapshots` are those that are wanted and not known to be done, one after the
    other."""

    name: str
    type: ConnectorType
    routes: tuple[ConnectorRoute, ...]
    settings: dict[str, str]
    paused: bool = False
    beginning: int = 0
    begin_at: str = BEGIN_NOW
    begun: bool = False
    skip: str = ""
    skipped: tuple[Skipped, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()

    @property
    def compares(self) -> bool:
        """Did it begin anew to find out what the log has and its origin lacks?"""
        return any(one.compares and one.id == self.beginning for one in self.snapshots)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it feeds, each once, in the order of its routes."""
        return tuple(dict.fromkeys(route.topic for route in self.routes))


def intake_ref(name: str) -> PartitionRef:
    """The partition that stands for a connector in tables of owners: partition 0 of its name."""
    return PartitionRef(name, 0)


class SnapshotReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far the snapshot `id` is. `done`: all of it, and of those before it, is in the log.

    `collection` is what it reads, after `through` of `collections`; `rows` were read since its
    reader began, or went on with it, of about `expected` in all (None: unknown). `compares`: it is
    looking for what the log has and the origin lacks. `error` says why it doesn't go on.
    """

    id: int
    done: bool = False
    collection: str = ""
    through: int = 0
    collections: int = 0
    rows: int = 0
    expected: int | None = None
    compares: bool = False
    error: str = ""


class ConnectorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader of a connector says of itself. None: nobody can tell now.

    `lag_ms` is how long ago the last change was made that has been read, 0 when there is none to
    read; `history_ms` how far back the origin keeps its history, `age_ms` how far back in that
    `position` is, `held_bytes` how much of it is kept for this connector alone, and `warning` what
    will go wrong there. `stopped_at` and `stopped_what` are position and description of the change
    that it stopped at, or, where its history is lost, of the last one that is known.
    """

    name: str
    epoch: int
    state: ConnectorState
    begun: bool = False
    error: str = ""
    position: str = ""
    taken: int = 0
    left_out: int = 0
    lag_ms: int | None = None
    lag_records: int | None = None
    history_ms: int | None = None
    age_ms: int | None = None
    held_bytes: int | None = None
    warning: str = ""
    stopped_at: str = ""
    stopped_what: str = ""
    snapshot: SnapshotReport | None = None
