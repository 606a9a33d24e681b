"""Members come, come back, and go.

Loss of a connection alone takes nothing from a node for a while: the grace decides where others
can take over (grace.py), the lease in the end. A process of a known id that wasn't here before gets
what its former self had, under new epochs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headgate.decide.coordination.connectors import intakes
from headgate.decide.coordination.effects import Effect, EndSession, Send
from headgate.decide.coordination.groups import consuming
from headgate.decide.coordination.lanes import windows
from headgate.decide.coordination.members import damping
from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.registry import subscribing
from headgate.decide.coordination.sources import moving
from headgate.decide.coordination.sources.ownership import Ownership
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics import operating
from headgate.decide.coordination.topics.topology_changes import assignment, changed
from headgate.model.control import from_coordinator
from headgate.model.control.to_coordinator import Hello, SessionRole
from headgate.model.topology import Node, Owner, Role, Topology


def member_opened(state: State, session: int, hello: Hello, now_ms: int) -> list[Effect]:
    """Only for one that nothing speaks against (`refusal`)."""
    known = state.members.get(hello.node_id)
    effects: list[Effect] = []
    if known is not None and known.session is not None:
        state.sessions.pop(known.session, None)
        effects.append(EndSession(known.session))
    restarted = _is_restarted(state, known, hello)
    if known is not None and restarted:
        state.window_ends.forget(known.hello.incarnation)
    member = Member(hello, session, now_ms, told=frozenset(hello.owns))
    if known is not None and not restarted:
        # A generation that it applied before we knew it may be of a coordinator that counted
        # differently.
        member.generation = known.generation
    if not restarted:
        member.assignment = known.assignment if known is not None else hello.assignment
        member.grown_at = known.grown_at if known is not None else 0
    member.trial_until_ms = damping.trial_until_ms(state, hello.node_id, now_ms)
    state.members[hello.node_id] = member
    state.expected.pop(hello.node_id, None)
    state.learning.missing.discard(hello.node_id)
    state.sessions[session] = (hello.role, hello.node_id)
    moving.plan_soon(state, now_ms)
    if hello.role == "gateway":
        consuming.gateway_returns(state, hello.node_id, now_ms)
        state.registry.gateway_comes(hello.node_id, hello.incarnation)
    if restarted:
        return effects + _started(state, hello)
    if state.learning.is_on:
        effects += _claims(state, hello, now_ms, is_news=known is None)
    return effects + _resumed(state, member, is_news=known is None)


def refusal(state: State, hello: Hello, now_ms: int) -> str:
    """Why the process can't be the member that `hello` says; empty when it can."""
    known = state.members.get(hello.node_id)
    former = known.node() if known is not None else state.expected.get(hello.node_id)
    if former is not None and former.role != hello.role:
        return f"{hello.node_id} is the name of a {former.role}"
    if known is None:
        return ""
    is_heard_of = now_ms - known.seen_ms < 2 * state.timing.check_in_ms
    if known.hello.incarnation != hello.incarnation and known.session is not None and is_heard_of:
        return f"another {known.hello.role} named {hello.node_id} is connected"
    return ""


def _is_restarted(state: State, known: Member | None, hello: Hello) -> bool:
    """True for a process that this coordinator, or the one before it, had never heard of.

    Every process gets its partitions under new epochs, so a process that knows one of these epochs
    was given it.
    """
    if known is not None:
        return known.hello.incarnation != hello.incarnation
    if state.learning.is_on and hello.generation:
        return False
    table = _table(state, hello.role)
    stored = table.of_node(hello.node_id) if table is not None else []
    read = state.intakes.of_node(hello.node_id)
    return not set(stored) & set(hello.owns) and not set(read) & set(hello.intakes)


def _table(state: State, role: str) -> Ownership | None:
    return {"ingest": state.logs, "router": state.sources}.get(role)


def _resumed(state: State, member: Member, *, is_news: bool) -> list[Effect]:
    hello, session = member.hello, member.session
    assert session is not None
    effects = told(state, session, _taken_up(state, hello) if is_news else [])
    if hello.role == "gateway":
        state.registry.gateway_returns(hello.node_id)
        effects.append(Send(session, from_coordinator.AdoptionFloor(state.registry.floor)))
    assigned = not state.learning.is_on and hello.node_id not in state.unassigned
    if hello.role == "router" and assigned:
        effects.append(Send(session, assignment(state, member)))
    return effects


def _taken_up(state: State, hello: Hello) -> list[Effect]:
    """A node that the former coordinator knew is back: all members hear of it.

    A partition that it owns and doesn't know of was given to it as that coordinator ended, and may
    lack its fence. One that it believes to own and doesn't was taken from it meanwhile.
    """
    if state.learning.is_on:
        return changed(state)
    fenced = _renewed(state, hello, kept=hello.owns, read=hello.intakes)
    table = _table(state, hello.role)
    owned = table.of_node(hello.node_id) if table is not None else []
    differs = set(owned) != set(hello.owns)
    return changed(
        state,
        grown={owner.node_id for owner in fenced},
        shrunk={hello.node_id} if differs else (),
        fenced=fenced,
    )


def _renewed(
    state: State, hello: Hello, *, kept: Collection[Owner] = (), read: Collection[Owner] = ()
) -> list[Owner]:
    """A new epoch for everything the node owns but `kept`, and for the connectors that it reads but
    `read`; returns the source partitions."""
    if hello.role == "router":
        return moving.renewed(state, hello.node_id, kept)
    if hello.role == "ingest":
        for owner in state.logs.of_node(hello.node_id):
            if owner not in kept:
                state.logs.take(owner.ref, hello.node_id)
        intakes.renew(state, hello.node_id, kept=read)
    return []


def _started(state: State, hello: Hello) -> list[Effect]:
    """Nothing of the node's former self counts any more."""
    if hello.role == "gateway":
        state.registry.gateway_returns(hello.node_id)
    fenced = _renewed(state, hello)
    placed = moving.place_ownerless(state, grown={hello.node_id}, fenced=fenced)
    session = state.members[hello.node_id].session
    assert session is not None
    return told(state, session, placed) + subscribing.floor_to_gateways(state)


def told(state: State, session: int, effects: list[Effect]) -> list[Effect]:
    """`effects`, with the topology for a new session, unless it is among them."""
    push = Send(session, state.out.message)
    is_there = any(isinstance(e, Send) and e == push for e in effects)
    return effects if is_there else [*effects, push]


def goodbye(state: State, session: int, now_ms: int, *, returns: bool) -> list[Effect]:
    """A node that `returns` keeps what it has until its lease ends, and is only gone until then."""
    role, node_id = state.sessions.pop(session, (None, ""))
    if role == "lane":
        state.lanes.end(session, now_ms=now_ms)
        return moving.advance(state, now_ms) + subscribing.settle_floor(state)
    if role is None:
        state.clients.pop(session, None)
        return []
    state.members[node_id].seen_ms = now_ms
    if returns:
        state.members[node_id].session = None
        return subscribing.settle_floor(state)
    state.draining.discard(node_id)
    return member_gone(state, node_id, now_ms) + subscribing.settle_floor(state)


def member_gone(state: State, node_id: str, now_ms: int) -> list[Effect]:
    member = state.members.pop(node_id)
    consuming.gateway_gone(state, node_id, member.seen_ms)
    state.unassigned.pop(node_id, None)
    state.window_ends.forget(member.hello.incarnation)
    moving.plan_soon(state, now_ms)
    hang: list[Effect] = []
    if member.session is not None:
        state.sessions.pop(member.session, None)
        hang.append(EndSession(member.session))
    return _without(state, node_id, member.node().role) + hang


def expected_gone(state: State) -> list[Effect]:
    """Nodes that a former coordinator knew have not come back within a lease."""
    effects: list[Effect] = []
    for node in list(state.expected.values()):
        # One by one: each step is kept, and none may forget a node that still owns something.
        del state.expected[node.id]
        effects += _without(state, node.id, node.role)
    return effects


def _without(state: State, node_id: str, role: Role) -> list[Effect]:
    """What it takes to go on without a member."""
    if role == "gateway":
        return subscribing.registry_lost(state, node_id) + changed(state)
    if role == "router":
        return moving.without_router(state, node_id)
    return moving.without_ingest(state, node_id)


# --- learning --------------------------------------------------------------------------------


def _claims(state: State, hello: Hello, now_ms: int, *, is_news: bool) -> list[Effect]:
    """Believe what a node says it owns; a lane that reads it under a lower epoch lets go."""
    if hello.role == "gateway" and is_news:
        # It may have promised things to subscribers; no lane may go on without them.
        state.registry.awaited.add(hello.node_id)
    elif hello.role == "ingest":
        for owner in hello.owns:
            state.logs.claim(owner)
        intakes.believe(state, hello.intakes)
    elif hello.role == "router":
        return _believed(state, hello.owns, now_ms)
    return []


def _believed(state: State, owners: Sequence[Owner], now_ms: int) -> list[Effect]:
    believed = windows.learn(state, owners, now_ms)
    others = state.lanes.take_from_others([o for o in believed if not _reads(state, o)])
    unread = [owner.ref for owner in believed if not state.lanes.is_running(owner.ref)]
    state.lanes.suspect(unread, now_ms=now_ms)
    return windows.overtaken(others)


def _reads(state: State, owner: Owner) -> bool:
    session = state.lanes.reader(owner.ref)
    return session is not None and owner in state.lanes.by_session[session].hello.owns


def recalled(state: State, role: SessionRole, topology: Topology, now_ms: int) -> list[Effect]:
    """Somebody remembers how everything was; the newest memory is taken up."""
    if not state.learning.is_on:
        return []
    was_complete = state.registry.complete
    absent = {node.id: node for node in topology.nodes if node.id not in state.members}
    is_newest = state.learning.recall(topology.generation, absent)
    effects = _taken_in(state, topology, absent, now_ms) if is_newest else []
    if role == "router":
        state.registry.lost = False  # routers hear of every gateway, others needn't
    return effects if was_complete else effects + subscribing.completed(state)


def _taken_in(
    state: State, topology: Topology, absent: dict[str, Node], now_ms: int
) -> list[Effect]:
    # The newest memory is right about what was deleted, and what came back after that.
    former = {name: t for name, t in state.topics.items() if name not in topology.deleted}
    state.topics = former | {topic.name: topic for topic in topology.topics}
    state.deleted = set(topology.deleted) - set(state.topics)
    state.swept = set()
    state.deleted_at = dict.fromkeys(state.deleted, state.generation + 1)
    state.expected = absent
    state.registry.awaited |= {node.id for node in absent.values() if node.role == "gateway"}
    for owner in (*topology.logs, *topology.emptied):
        state.logs.claim(owner)
    state.groups.recall(topology.groups, topology.targets)
    intakes.recall(state, topology)
    overtaken = _believed(state, topology.sources, now_ms)
    return changed(state, to_all=True) + overtaken


def end_learning(state: State) -> list[Effect]:
    """From here on the coordinator decides again."""
    state.learning.end()
    was_complete = state.registry.complete
    state.registry.lost = False
    known, refs = {*state.members, *state.expected}, set(state.refs())
    operating.doubt_deletions(state, {owner.ref.topic for owner in state.logs.owned()})
    for table in (state.logs, state.sources):
        for owner in table.owned():
            if owner.node_id not in known or owner.ref not in refs:
                table.release(owner.ref)
    intakes.end_learning(state)
    fenced: list[Owner] = []
    differing = set()
    for router in state.of_role("router"):
        if set(state.sources.of_node(router.hello.node_id)) != set(router.hello.owns):
            # Another node remembers that this one got more than it knows of, perhaps without a
            # fence.
            fenced += _renewed(state, router.hello, kept=router.hello.owns)
            differing.add(router.hello.node_id)
    topics = {group.topic for group in state.groups.all()} - set(state.topics)
    told = [effect for topic in sorted(topics) for effect in consuming.topic_gone(state, topic)]
    effects = moving.place_ownerless(state, grown=differing, fenced=fenced, to_all=True) + told
    return effects if was_complete else effects + subscribing.completed(state)
