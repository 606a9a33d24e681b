"""Lanes and their windows: who may read what, and when a window has to end.

Invariant: of two lanes that claim a partition the newer one reads it; the other lets go of that
partition and keeps the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headgate.decide.coordination.effects import Effect, Send
from headgate.decide.coordination.lanes.lanes import Lane
from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.state import State
from headgate.model.control import from_coordinator
from headgate.model.control.reports import RouterReport
from headgate.model.control.to_coordinator import Hello
from headgate.model.topology import Owner


def lane_opened(state: State, session: int, hello: Hello, now_ms: int) -> list[Effect]:
    """Only for one that nothing speaks against (`refusal`)."""
    may_read = _readable(state, hello, _planned(hello), learns=state.learning.is_on)
    effects: list[Effect] = []
    if state.learning.is_on:
        learn(state, may_read, now_ms)
        effects = _out_of_date(state, may_read, now_ms)
    state.sessions[session] = ("lane", hello.node_id)
    # A lane that starts reads nothing before it has applied the snapshot, so it counts as having
    # adopted it; one that reconnects goes on with its own revision. A revision of another
    # coordinator counts for nothing: a coordinator without memory may have given the number to
    # another state.
    adopted = state.registry.revision if hello.revision == 0 else hello.revision
    if hello.revision and not state.lanes.knows(hello):
        adopted = 0
    owns = [owner for owner in hello.owns if owner in may_read]
    hello = replace(hello, wants=tuple(owner for owner in hello.wants if owner in may_read))
    taken = state.lanes.start(session, hello, owns, adopted=adopted, now_ms=now_ms)
    effects += [*overtaken(taken), *not_theirs(session, hello.owns, owns)]
    effects.append(Send(session, state.out.message))
    if state.registry.complete:
        effects += [Send(session, part) for part in state.registry.snapshot()]
    effects += let_go(state, owns) + all_read(state, hello.node_id)
    router = state.members.get(hello.node_id)
    if router is not None and hello.assignment < router.grown_at:
        if hello.node_id not in state.unassigned:
            effects += end_window(state, hello.node_id, "the assignment changed")
    elif state.window_ends.is_over(hello):
        hand_over = not state.window_ends.is_over_for_good(hello)
        effects += end_window(state, hello.node_id, "the window ended early", hand_over=hand_over)
    return effects


def learn(state: State, owners: Sequence[Owner], now_ms: int) -> list[Owner]:
    """Believe these; returns those that nothing speaks against. Partitions that are news may be
    read, or about to be claimed, by lanes that nobody has heard of yet."""
    news = [owner.ref for owner in owners if state.sources.owners.get(owner.ref) != owner]
    believed = [owner for owner in owners if state.sources.claim(owner)]
    state.lanes.suspect_all({owner.ref for owner in believed}.intersection(news), now_ms=now_ms)
    return believed


def refusal(state: State, hello: Hello, *, learns: bool) -> str:
    """Why a lane need not go on; empty when it may."""
    planned = _planned(hello)
    if planned and not _readable(state, hello, planned, learns=learns):
        return f"nothing of what window {hello.window} reads is this lane's any more"
    return ""


def lane_claimed(
    state: State, session: int, said: Sequence[Owner], asked_ms: int, now_ms: int
) -> list[Effect]:
    """A lane holds the positions: from now on it counts as the reader, and nobody else."""
    owns = _readable(state, state.lanes.by_session[session].hello, said, learns=False)
    taken = state.lanes.claim(session, owns, asked_ms=asked_ms, now_ms=now_ms)
    told = [*overtaken(taken), *not_theirs(session, said, owns), *let_go(state, owns)]
    return told + all_read(state, state.lanes.by_session[session].hello.node_id)


def all_read(state: State, node_id: str) -> list[Effect]:
    """Tell a router that starts, once there is nothing of its own that no lane reads."""
    router = state.members.get(node_id)
    if router is None or router.session is None or not router.is_starting:
        return []
    running = state.lanes.running()
    owned = state.sources.of_node(node_id)
    is_read = bool(owned) and all(
        owner.ref in running or owner.ref in state.unclaimed for owner in owned
    )
    return [Send(router.session, from_coordinator.AllRead())] if is_read else []


def ask_for_proof(state: State, now_ms: int) -> list[Effect]:
    return [
        Send(session, from_coordinator.Prove(now_ms)) for session in state.lanes.to_prove(now_ms)
    ]


def not_theirs(session: int, said: Sequence[Owner], owns: Sequence[Owner]) -> list[Effect]:
    """Tell a lane which of the partitions that it speaks of belong to others."""
    lost = tuple(owner for owner in said if owner not in owns)
    return [Send(session, from_coordinator.LetGo(lost, settle=False))] if lost else []


def _out_of_date(state: State, owners: Sequence[Owner], now_ms: int) -> list[Effect]:
    """A lane that reads one of these under a lower epoch lets go, and may be reading until it hears
    of it."""
    running = state.lanes.running()
    outdated = [owner for owner in owners if running.get(owner.ref) not in (None, owner)]
    effects = overtaken(state.lanes.take_from_others(outdated))
    state.lanes.suspect([owner.ref for owner in outdated], now_ms=now_ms)
    return effects


def _planned(hello: Hello) -> Sequence[Owner]:
    return (*hello.owns, *hello.wants)


def _readable(state: State, hello: Hello, planned: Sequence[Owner], *, learns: bool) -> list[Owner]:
    """The partitions that a lane may read of those planned for it; a coordinator that learns
    believes it."""
    owners = state.sources.owners
    return [
        owner
        for owner in planned
        if (state.sources.is_credible(owner) if learns else owners.get(owner.ref) == owner)
        and not state.lanes.is_overtaken(hello, owner)
    ]


def overtaken(taken: Mapping[int, Sequence[Owner]]) -> list[Effect]:
    """Tell lanes which partitions newer lanes have taken from them."""
    return [
        Send(session, from_coordinator.LetGo(tuple(owners), settle=False))
        for session, owners in sorted(taken.items())
    ]


def let_go(state: State, owners: Sequence[Owner]) -> list[Effect]:
    """Ask the lanes that read `owners` to hand over those that are on their way elsewhere, or whose
    position is to be put elsewhere."""
    asked: dict[int, list[Owner]] = {}
    for owner in owners:
        session = state.lanes.reader(owner.ref)
        if session is not None and _is_releasing(state, owner):
            asked.setdefault(session, []).append(owner)
    return [
        Send(session, from_coordinator.LetGo(tuple(leaving), settle=True))
        for session, leaving in asked.items()
    ]


def _is_releasing(state: State, owner: Owner) -> bool:
    if owner.ref in state.resets.releasing:
        return True
    is_moving = owner.ref in state.handoffs.by_ref
    return is_moving and state.handoffs.phase(owner.ref, state.sources) == "releasing"


def of(state: State, router_id: str) -> list[tuple[int, Lane]]:
    return state.lanes.of_router(router_id)


def end_window(
    state: State, router_id: str, reason: str, *, hand_over: bool = True
) -> list[Effect]:
    effects: list[Effect] = []
    newest = 0
    for session, lane in of(state, router_id):
        state.window_ends.end(lane.hello.incarnation, lane.hello.window)
        if not (lane.told_to_end and hand_over):
            lane.told_to_end = True
            newest = max(newest, lane.hello.window)
            effects.append(Send(session, from_coordinator.EndWindow(reason, hand_over)))
    router = state.members.get(router_id)
    if effects and router is not None and router.session is not None:
        # So that it can expect the tallies, but not those of a window that has yet to start.
        effects.append(Send(router.session, from_coordinator.EndWindow(reason, hand_over, newest)))
    return effects


def end_crippled_window(state: State, router_id: str, now_ms: int) -> list[Effect]:
    """A window in which a partition has had no lane for too long makes room for the next."""
    lanes = [lane for _, lane in of(state, router_id)]
    newest = max((lane.hello.window for lane in lanes), default=0)
    patience_ms = state.timing.lane_report_timeout_ms
    started_ms = min((x.started_ms for x in lanes if x.hello.window == newest), default=now_ms)
    if now_ms - started_ms < patience_ms:
        return []
    awaited = state.lanes.awaited()
    for owner in state.sources.of_node(router_id):
        if owner.ref in awaited or owner.ref in state.unfenced:
            continue  # another window's lane would wait for the same, or not know of it
        if owner.ref in state.handoffs.by_ref:
            continue  # its donor has let go of it, and the recipient gets a window for it
        was_read = owner.ref in state.lanes.lost_since_ms or owner.ref in state.lanes.ended_ms
        if router_id in state.unassigned and not was_read:
            continue  # the router doesn't know of it yet, so no window can
        alone_ms = max(
            started_ms,
            state.lanes.lost_since_ms.get(owner.ref, 0),
            state.lanes.ended_ms.get(owner.ref, 0),
        )
        if not state.lanes.is_running(owner.ref) and now_ms - alone_ms >= patience_ms:
            return end_window(state, router_id, f"no lane reads {owner.ref}")
    return []


def watch_idle(state: State, now_ms: int) -> None:
    """Note which partitions have no lane though their router runs and was told of them."""
    able = {m.hello.node_id for m in state.of_role("router") if _could_read(state, m)}
    idle = [
        owner.ref
        for owner in state.sources.owners.values()
        if owner.node_id in able
        and not state.lanes.may_be_read(owner.ref)
        and owner.ref not in state.handoffs.by_ref
        and owner.ref not in state.unfenced
    ]
    before = state.lanes.idle_since_ms
    state.lanes.idle_since_ms = {ref: before.get(ref, now_ms) for ref in idle}


def _could_read(state: State, router: Member) -> bool:
    return (
        router.session is not None
        and router.hello.node_id not in state.unassigned
        and isinstance(router.report, RouterReport)
        and router.report.state == "ready"
    )
