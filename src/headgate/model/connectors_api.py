"""Connectors over HTTP: the bodies of requests and answers.

Invariant: nothing here shows a secret; settings are shown as they were written, with references
where the secrets are (model.connector).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.connector import BEGIN_NOW, ConnectorState

SnapshotState = Literal["waiting", "reading", "comparing", "failing"]


class RouteInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Collections whose name matches `pattern` (`*`, `?`, `[…]` and `[!…]` as in file names) go to
    `topic`."""

    topic: str
    pattern: str = "*"


class OriginSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings to reach an origin, by the `type` of connector that reads it."""

    type: str
    settings: dict[str, str]


class CreateConnector(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"begin_at": "from"}
):
    """`from` is where it begins: `now`, a time with its zone, or a position. `snapshot`: what is
    there already is read, too."""

    name: str
    type: str
    settings: dict[str, str]
    routes: list[RouteInfo]
    begin_at: str = BEGIN_NOW
    snapshot: bool = False


class SkipChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With a `position` it is refused unless the connector has stopped at that one."""

    position: str = ""


class ResetConnector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`to` is where it begins anew: `now`, a time with its zone, a position; or `snapshot`, which
    is now, and reads what is there, and tells what the log has and its origin lacks."""

    to: str


class SnapshotConnector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`collections` are read as they are; without any, all that the connector reads."""

    collections: list[str] = []


class ReleaseOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deleted connector, with its origin's settings."""

    name: str
    type: str
    settings: dict[str, str]


class DeletedConnector(msgspec.Struct, frozen=True):
    """`left` says what the connector has left at its origin, and what to do; empty: nothing."""

    name: str
    left: str = ""


class OriginFinding(msgspec.Struct, frozen=True):
    """One thing that a start needs, whether it is there, and what to do where it isn't.

    `warning`: it works without, with the consequence that `sentence` names.
    """

    what: str
    verdict: Literal["ok", "warning", "failed"]
    sentence: str = ""


class OriginChecked(msgspec.Struct, frozen=True):
    """`ok`: a connector could start; nothing was created."""

    ok: bool
    findings: list[OriginFinding]


class SkippedInfo(msgspec.Struct, frozen=True):
    """A change that an operator had left out."""

    position: str
    what: str
    time_ms: int


class FedTopic(msgspec.Struct, frozen=True):
    """A topic that a connector feeds, with the patterns that lead there."""

    topic: str
    patterns: list[str]
    exists: bool


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that isn't done. `state`: `waiting` for its turn, `reading`, `comparing`, or
    `failing`, for the `reason`, and tried again.

    `collection` is what is being read, after `through` of `of` collections; `rows` have been
    handed in since its reader began or went on with it, of about `expected` in all (None: unknown).
    """

    id: int
    collections: list[str] = []
    compares: bool = False
    state: SnapshotState = "waiting"
    reason: str = ""
    collection: str = ""
    through: int = 0
    of: int = 0
    rows: int = 0
    expected: int | None = None


class ConnectorInfo(msgspec.Struct, frozen=True, kw_only=True, rename={"begin_at": "from"}):
    """`reason` says why it isn't running, or what is the matter although it is; `warning` that the
    origin's history may not last. None: nobody can tell now.

    `since_ms` is for how long it has been in that state. `lag_ms` is how long ago the last change
    was made that has been read, `lag_records` how many wait, `history_ms` how far back the origin
    keeps its history, `held_bytes` how much of it is kept for this connector alone. `taken` and
    `left_out` count since its reader began.
    """

    name: str
    type: str
    state: ConnectorState
    reason: str = ""
    warning: str = ""
    since_ms: int | None = None
    node: str | None = None
    epoch: int = 0
    paused: bool = False
    topics: list[FedTopic] = []
    routes: list[RouteInfo] = []
    settings: dict[str, str] = {}
    begin_at: str = BEGIN_NOW
    begun: bool = False
    position: str = ""
    taken: int = 0
    left_out: int = 0
    lag_ms: int | None = None
    lag_records: int | None = None
    history_ms: int | None = None
    held_bytes: int | None = None
    stopped_at: str = ""
    stopped_what: str = ""
    skipped: list[SkippedInfo] = []
    snapshots: list[SnapshotInfo] = []


class ConnectorList(msgspec.Struct, frozen=True):
    connectors: list[ConnectorInfo]
