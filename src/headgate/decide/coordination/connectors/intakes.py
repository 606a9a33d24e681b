"""Which node reads each connector, and what its reader reports.

A connector is planned like a log partition and changes hands in one step: the stores of the log
refuse its former reader, by its epoch. So no reader has to be asked to let go, and a reader that is
cut off harms nobody.

Invariant: every connector has a row in `intakes`, under an epoch that isn't below the one in which
it began; nobody else has one. Epochs of connectors that are deleted are at most `above`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from headgate.decide.coordination.connectors.heard import Heard
from headgate.decide.coordination.effects import Effect
from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics.topology_changes import changed
from headgate.model.connector import Connector, ConnectorReport, Snapshot, intake_ref
from headgate.model.control import to_coordinator
from headgate.model.control.reports import ConnectorReports
from headgate.model.topology import Owner, Topology

# --- members come and go -----------------------------------------------------------------------


def renew(state: State, node_id: str, *, kept: Collection[Owner] = ()) -> None:
    """A new epoch for all that a node reads but `kept`: it doesn't know of it."""
    for owner in state.intakes.of_node(node_id):
        if owner not in kept:
            state.intakes.take(owner.ref, node_id)


def release(state: State, node_id: str) -> None:
    """A node is gone; what it read waits for another."""
    for owner in state.intakes.of_node(node_id):
        state.intakes.release(owner.ref)


# --- what readers say --------------------------------------------------------------------------


def told(
    state: State,
    node_id: str,
    message: ConnectorReports | to_coordinator.ConnectorTooLow,
    now_ms: int,
) -> list[Effect]:
    if isinstance(message, ConnectorReports):
        return _reported(state, node_id, message.reports, now_ms)
    return _overtaken(state, node_id, message)


def is_news(state: State, reports: Iterable[ConnectorReport]) -> bool:
    """Whether something must be kept of what a reader says."""
    return any(_has_begun(state, one) or _has_taken(state, one) for one in reports)


def _reported(
    state: State, node_id: str, reports: Iterable[ConnectorReport], now_ms: int
) -> list[Effect]:
    """What a reader says under another epoch than its own is of no interest any more."""
    news = False
    for report in reports:
        owner = state.intakes.owners.get(intake_ref(report.name))
        is_known = report.name in state.connectors and owner is not None
        if not is_known or owner != Owner(intake_ref(report.name), node_id, report.epoch):
            continue
        before = state.heard.get(report.name)
        state.heard[report.name] = (
            Heard(report, now_ms, now_ms) if before is None else before.then(report, now_ms)
        )
        connector = state.connectors[report.name]
        begun = connector.begun or _has_begun(state, report)
        left = _snapshots_left(connector, report)
        if (begun, left) != (connector.begun, connector.snapshots) and not state.learning.is_on:
            state.connectors[report.name] = replace(connector, begun=begun, snapshots=left)
            news = True
    return changed(state) if news else []


def _snapshots_left(connector: Connector, report: ConnectorReport) -> tuple[Snapshot, ...]:
    """Those that are wanted and not done, as far as its reader knows."""
    said = report.snapshot
    if said is None:
        return connector.snapshots
    return tuple(
        one
        for one in connector.snapshots
        if one.id > said.id or (one.id == said.id and not said.done)
    )


def _has_taken(state: State, report: ConnectorReport) -> bool:
    connector = state.connectors.get(report.name)
    owner = state.intakes.owners.get(intake_ref(report.name))
    return (
        not state.learning.is_on
        and connector is not None
        and owner is not None
        and owner.epoch == report.epoch
        and _snapshots_left(connector, report) != connector.snapshots
    )


def _has_begun(state: State, report: ConnectorReport) -> bool:
    connector = state.connectors.get(report.name)
    owner = state.intakes.owners.get(intake_ref(report.name))
    return (
        report.begun
        and not state.learning.is_on
        and connector is not None
        and not connector.begun
        and owner is not None
        and owner.epoch == report.epoch
    )


def last_heard(state: State, name: str) -> Heard | None:
    """What the present reader of a connector said last."""
    heard, owner = state.heard.get(name), state.intakes.owners.get(intake_ref(name))
    is_present = heard is not None and owner is not None and owner.epoch == heard.report.epoch
    return heard if is_present else None


def _overtaken(state: State, node_id: str, said: to_coordinator.ConnectorTooLow) -> list[Effect]:
    """The stores have met a connector under a higher epoch than was given out, or under this one
    from another node: go above it. A former reader has only met its successor.

    The epoch may be that of an older connector of this name, of which everything else is forgotten.
    So a connector that has stored nothing yet begins anew above it, or it would go on from where
    the older one was.
    """
    ref = intake_ref(said.name)
    connector, current = state.connectors.get(said.name), state.intakes.owners.get(ref)
    is_reader = current == Owner(ref, node_id, said.own)
    if connector is None or not is_reader or said.own > said.epoch:
        return []
    owner = state.intakes.raise_above(ref, said.epoch)
    if not connector.begun:
        # A snapshot of the beginning goes with it.
        snapshots = tuple(
            replace(one, id=owner.epoch) if one.id == connector.beginning else one
            for one in connector.snapshots
        )
        again = replace(connector, beginning=owner.epoch, snapshots=snapshots)
        state.connectors[said.name] = again
    return changed(state)


# --- learning ----------------------------------------------------------------------------------


def recall(state: State, topology: Topology) -> None:
    """The newest memory is right about which connectors there are.

    Whether one has stored something is news that may not have come so far. It counts as begun: none
    begins anew because of what nobody remembers, and who finds nothing stored says so.
    """
    state.connectors = {one.name: replace(one, begun=True) for one in topology.connectors}
    for owner in topology.intakes:
        state.intakes.claim(owner)


def believe(state: State, owners: Iterable[Owner]) -> None:
    """A node says that it reads these."""
    for owner in owners:
        state.intakes.claim(owner)


def end_learning(state: State) -> None:
    """A connector whose node hasn't come back has no reader; one that isn't known any more has no
    row, every other one has one from here on."""
    nodes = {node.id for node in state.nodes() if node.role == "ingest"}
    for owner in state.intakes.all():
        is_known = owner.ref in map(intake_ref, state.connectors)
        if owner.node_id not in nodes or not is_known:
            state.intakes.release(owner.ref)
        if not is_known:
            state.intakes.forget([owner.ref])
    for connector in state.connectors.values():
        enter(state, connector)


def enter(state: State, connector: Connector) -> None:
    """See to its row, where it was never read or nobody remembers that."""
    ref = intake_ref(connector.name)
    known = state.intakes.owners.get(ref)
    if known is None or known.epoch < connector.beginning:
        state.intakes.claim(Owner(ref, NOBODY, max(connector.beginning, state.intakes.above)))
