"""What operators wish of connectors: create, pause, resume, skip, reset, snapshots, delete.

Each wish has two halves: why not, which looks and changes nothing, and what follows, which is only
asked where nothing speaks against it. A caller that got no answer asks again: what is done already
is not done a second time, but for a reset, which begins anew whenever it is asked for.

Invariant: what is skipped, or begun elsewhere, is an operator's explicit choice, never a default.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from headgate.decide.connectors import rules as connector_rules
from headgate.decide.connectors.unknown_connector import unknown_connector
from headgate.decide.coordination.connectors import intakes
from headgate.decide.coordination.effects import Effect
from headgate.decide.coordination.sources import moving
from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics.operating import learning_refusal
from headgate.decide.coordination.topics.topology_changes import changed
from headgate.decide.produce.unknown_topic import unknown_topic
from headgate.errors import ConnectorExists, HeadgateError, InvalidRequest, TooLarge
from headgate.model.connector import Connector, Skipped, Snapshot, intake_ref

SKIPPED_MAX = 20
"""So many of the changes that operators had left out are remembered per connector."""
SNAPSHOTS_MAX = 20
"""So many may be wanted of a connector at a time."""


@dataclass(frozen=True, slots=True)
class Create:
    """Its beginning is decided here. `snapshot`: read what is there, too."""

    connector: Connector
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Let the reader rest, or, where it isn't `paused`, go on."""

    name: str
    paused: bool


@dataclass(frozen=True, slots=True)
class Skip:
    """Let it leave out the change that it has stopped at, if that is at `position` (empty: wherever
    it is); `wall_ms` is when that is wished."""

    name: str
    wall_ms: int
    position: str = ""


@dataclass(frozen=True, slots=True)
class Reset:
    """Let it begin anew at `begin_at` (`Connector.begin_at`). `snapshot`: read what is there, and
    compare it with the log."""

    name: str
    begin_at: str
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Let the connector read `collections` as they are; none: all that it reads."""

    name: str
    collections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelSnapshots:
    """Let it read changes alone; what was read of snapshots stays."""

    name: str


@dataclass(frozen=True, slots=True)
class Delete:
    name: str


Wish = Create | Pause | Skip | Reset | TakeSnapshot | CancelSnapshots | Delete


def refusal(state: State, wish: Wish) -> HeadgateError | None:
    """Why that can't be; None when it can."""
    if (error := learning_refusal(state)) is not None:
        return error
    if isinstance(wish, Create):
        return _creation_refusal(state, wish.connector)
    if wish.name not in state.connectors:
        return unknown_connector(wish.name, state.connectors)
    if isinstance(wish, TakeSnapshot):
        return _snapshot_refusal(state, wish)
    return _skip_refusal(state, wish) if isinstance(wish, Skip) else None


def done(state: State, wish: Wish) -> list[Effect]:
    """Only for what nothing speaks against (`refusal`)."""
    match wish:
        case Create(connector, snapshot):
            return _created(state, connector, snapshot=snapshot)
        case Pause(name, paused):
            return _put(state, replace(state.connectors[name], paused=paused))
        case Skip():
            return _put(state, _skipping(state, wish))
        case Reset(name, begin_at, snapshot):
            return _reset(state, name, begin_at, snapshot=snapshot)
        case TakeSnapshot(name, collections):
            return _snapshot_taken(state, name, collections)
        case CancelSnapshots(name):
            return _snapshots_cancelled(state, name)
        case Delete(name):
            return _deleted(state, name)


def _put(state: State, connector: Connector) -> list[Effect]:
    """Change the connector; its reader keeps it, under its epoch, and hears of the change."""
    if state.connectors[connector.name] == connector:
        return []
    state.connectors[connector.name] = connector
    return changed(state)


# --- create and delete -------------------------------------------------------------------------


def _creation_refusal(state: State, connector: Connector) -> HeadgateError | None:
    if (error := connector_rules.refusal(connector)) is not None:
        return error
    # Case alone is no difference that people should have to see.
    twin = next((n for n in state.connectors if n.lower() == connector.name.lower()), None)
    if twin is not None:
        return None if _is_same(state.connectors[twin], connector) else _exists(twin)
    if missing := next((topic for topic in connector.topics if topic not in state.topics), None):
        return unknown_topic(missing, state.topics)
    for name in connector.topics:
        if state.topics[name].placement != "keyed":
            return InvalidRequest(
                f"topic {name} is opportunistic and keeps no order, but changes of one key come "
                "one after the other; name a keyed topic",
                name=name,
            )
    if len(state.connectors) >= connector_rules.CONNECTORS_MAX:
        return TooLarge(
            f"there are {connector_rules.CONNECTORS_MAX} connectors, the most there can be"
        )
    return None


def _is_same(known: Connector, asked: Connector) -> bool:
    """Whether it is the connector that is there already."""
    same = (known.name, known.type, known.routes, known.settings)
    return same == (asked.name, asked.type, asked.routes, asked.settings)


def _exists(name: str) -> ConnectorExists:
    return ConnectorExists(
        f"connector {name} exists already, and is another one: see `headgate connector describe "
        f"{name}`, delete it first, or choose another name",
        name=name,
    )


def _created(state: State, connector: Connector, *, snapshot: bool) -> list[Effect]:
    if connector.name in state.connectors:
        return []
    # No node has the epoch of its beginning; its readers have higher ones.
    beginning = state.intakes.take(intake_ref(connector.name), NOBODY).epoch
    snapshots = (Snapshot(beginning),) if snapshot else ()
    state.connectors[connector.name] = replace(connector, beginning=beginning, snapshots=snapshots)
    return moving.place_ownerless(state)


def _deleted(state: State, name: str) -> list[Effect]:
    """One of the same name that comes later begins above all epochs that this one had."""
    del state.connectors[name]
    state.heard.pop(name, None)
    state.intakes.release(intake_ref(name))
    state.intakes.forget([intake_ref(name)])
    return changed(state)


# --- skip and reset ----------------------------------------------------------------------------


def _skip_refusal(state: State, wish: Skip) -> HeadgateError | None:
    name, heard = wish.name, intakes.last_heard(state, wish.name)
    report = None if heard is None else heard.report
    if report is None or report.state != "stopped" or not report.stopped_at:
        return InvalidRequest(
            f"connector {name} hasn't stopped at a change, so there is none to skip; see "
            f"`headgate connector describe {name}`",
            name=name,
        )
    if wish.position not in ("", report.stopped_at):
        return InvalidRequest(
            f"connector {name} has stopped at another change by now, {report.stopped_what} at "
            f"{report.stopped_at}; look at it before you skip it",
            name=name,
            position=report.stopped_at,
        )
    return None


def _skipping(state: State, wish: Skip) -> Connector:
    """Exactly that change may be left out, and it is remembered."""
    heard, connector = intakes.last_heard(state, wish.name), state.connectors[wish.name]
    assert heard is not None, "nothing to skip was refused"
    at, what = heard.report.stopped_at, heard.report.stopped_what
    if connector.skip == at:
        return connector
    skipped = (*connector.skipped, Skipped(at, what, wish.wall_ms))[-SKIPPED_MAX:]
    return replace(connector, skip=at, skipped=skipped)


def _reset(state: State, name: str, begin_at: str, *, snapshot: bool) -> list[Effect]:
    """The connector stays with its node, under the epoch of its new beginning. Snapshots that are
    under way begin anew, unless the new one reads everything. One that compares is asked for again:
    it compares with the records before the beginning that it is named by."""
    beginning = _next_epoch(state, name)
    connector = state.connectors[name]
    compares = snapshot or any(one.compares for one in connector.snapshots)
    snapshots = (Snapshot(beginning, compares=True),) if compares else connector.snapshots
    again = replace(
        connector,
        beginning=beginning,
        begin_at=begin_at,
        begun=False,
        skip="",
        snapshots=snapshots,
    )
    return _put(state, again)


# --- snapshots -----------------------------------------------------------------------------------


def _snapshot_refusal(state: State, wish: TakeSnapshot) -> HeadgateError | None:
    if (error := connector_rules.collections_refusal(wish.collections)) is not None:
        return error
    connector = state.connectors[wish.name]
    if len(connector.snapshots) >= SNAPSHOTS_MAX and not _is_asked_for(connector, wish.collections):
        return TooLarge(
            f"connector {wish.name} has {SNAPSHOTS_MAX} snapshots to take, the most there can be: "
            f"wait, or end them with `headgate connector snapshot {wish.name} --cancel`",
            name=wish.name,
        )
    return None


def _is_asked_for(connector: Connector, collections: tuple[str, ...]) -> bool:
    return any(one.collections == collections for one in connector.snapshots)


def _snapshot_taken(state: State, name: str, collections: tuple[str, ...]) -> list[Effect]:
    """Behind those that are wanted already. Its reader begins again, under a higher epoch than the
    one that the snapshot is named by."""
    connector = state.connectors[name]
    if _is_asked_for(connector, collections):
        return []
    snapshot = Snapshot(_next_epoch(state, name), collections)
    _next_epoch(state, name)
    return _put(state, replace(connector, snapshots=(*connector.snapshots, snapshot)))


def _snapshots_cancelled(state: State, name: str) -> list[Effect]:
    connector = state.connectors[name]
    if not connector.snapshots:
        return []
    _next_epoch(state, name)
    return _put(state, replace(connector, snapshots=()))


def _next_epoch(state: State, name: str) -> int:
    """Of the connector, which stays with the node that reads it."""
    owner = state.intakes.owners[intake_ref(name)]
    return state.intakes.take(owner.ref, owner.node_id).epoch
