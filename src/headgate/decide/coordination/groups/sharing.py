"""Which consumer of a group owns which target: the plan, and each move step by step.

What nobody owns is given out at once. A target that has an owner is handed off: its donor's gateway
stops handing out, lets the consumer finish, saves the positions and says `Released`; then the
target changes hands under a new epoch. No fence has to be adopted before that: the recipient's
gateway claims the positions under the new epoch before it reads them, so nothing that the donor
saves later counts.

Invariant: a connected consumer loses a target only by a handoff.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headgate.decide.coordination.effects import Effect, Persist, Send
from headgate.decide.coordination.groups.groups import Consumer, Key
from headgate.decide.coordination.sources import moving
from headgate.decide.coordination.sources.handoffs import Handoff
from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics.topology_changes import changed
from headgate.decide.planning.plan import plan
from headgate.decide.planning.starting_point import Candidate
from headgate.model.control import from_coordinator
from headgate.model.event import PartitionRef
from headgate.model.groups import Group
from headgate.model.topology import Move, Owner

FULL_MS = 30_000
"""For so long a gateway that has no room for a target gets no other."""

KEEP_MS = 900_000
"""For so long a consumer can put off giving up a target, by saying that it works on it."""

# --- the plan ----------------------------------------------------------------------------------


def planned(state: State, group: Group) -> Sequence[Move]:
    """What a plan for `group` would move. Consumers that are cut off, and what they own, are left
    as they are until their lease ends; those of a gateway that is full, for a while."""
    groups = state.groups
    moving_refs = {r: h for r, h in groups.handoffs.by_ref.items() if r.topic == group.id}
    owners = {
        ref: owner.node_id
        for ref in group.refs()
        if (owner := groups.targets.owners.get(ref)) is not None
    }
    owners |= {ref: handoff.move.to_id for ref, handoff in moving_refs.items()}
    here = {c.id for c in groups.of_group(group.id) if _takes_part(state, c)}
    refs = [ref for ref in group.refs() if owners.get(ref, NOBODY) in {NOBODY, *here}]
    return plan(
        refs,
        owners,
        [Candidate(consumer_id) for consumer_id in sorted(here)],
        strategy=state.balance.strategy,
        imbalance=state.balance.consumer,
        moving=[ref for ref in refs if ref in moving_refs],
    ).moves


def _takes_part(state: State, consumer: Consumer) -> bool:
    is_full = consumer.gateway_id in state.groups.full_since_ms
    return not is_full and is_connected(state, consumer)


def rebalance(state: State, now_ms: int) -> list[Effect]:
    """Carry out a new plan for every group."""
    if state.learning.is_on:
        return []
    groups = state.groups
    touched: set[Key] = set()
    leaving: list[Move] = []
    for group in groups.all():
        moves = planned(state, group)
        touched.update(_taken(state, moves))
        leaving += [move for move in moves if move.from_id]
    for move in leaving:
        groups.handoffs.begin(move, now_ms)
    effects: list[Effect] = []
    if touched:
        effects = changed(state) + assign(state, touched)
    elif leaving:
        effects = [Persist(state.to_store())]
    effects += _let_go(state, [groups.targets.owners[move.ref] for move in leaving])
    return effects


def place(state: State, group: Group) -> list[Key]:
    """Give away what nobody owns; returns who got something."""
    return [] if state.learning.is_on else _taken(state, planned(state, group))


def _taken(state: State, moves: Iterable[Move]) -> list[Key]:
    unowned = [move for move in moves if not move.from_id]
    for move in unowned:
        state.groups.targets.take(move.ref, move.to_id)
    return [(move.ref.topic, move.to_id) for move in unowned]


# --- handoffs ----------------------------------------------------------------------------------


def released(state: State, owners: Iterable[Owner], now_ms: int) -> list[Effect]:
    """Consumers have finished with `owners`, and the positions are saved."""
    groups = state.groups
    for owner in owners:
        handoff = groups.handoffs.by_ref.get(owner.ref)
        if handoff is not None and groups.targets.owners.get(owner.ref) == owner:
            handoff.released_ms = now_ms
    return advance(state, now_ms)


def advance(state: State, now_ms: int) -> list[Effect]:
    """Let those targets change hands that were let go, or whose donor took too long; together
    with what comes in the next moment. Where the recipient is away, the donor takes it back."""
    groups = state.groups
    releasing = groups.handoffs.by_ref.values()
    ready = [handoff for handoff in releasing if _is_ready(state, handoff, now_ms)]
    waited_ms = max((now_ms - (h.released_ms or h.since_ms) for h in ready), default=0)
    if not ready or (len(ready) < len(releasing) and waited_ms < moving.GATHER_MS):
        return []
    touched: set[Key] = set()
    for move in [handoff.move for handoff in ready]:
        recipient = groups.consumers.get((move.ref.topic, move.to_id))
        is_here = recipient is not None and is_connected(state, recipient)
        groups.handoffs.end([move.ref])
        groups.targets.take(move.ref, move.to_id if is_here else move.from_id)
        touched |= {(move.ref.topic, move.from_id), (move.ref.topic, move.to_id)}
    return changed(state) + assign(state, touched)


def _is_ready(state: State, handoff: Handoff, now_ms: int) -> bool:
    if handoff.released_ms is not None:
        return True
    heard_ms = min(handoff.heard_ms, handoff.since_ms + KEEP_MS)
    waited_ms = now_ms - max(handoff.since_ms, heard_ms)
    return waited_ms >= state.timing.handoff_ms and _hears(state, handoff.move, now_ms)


def _hears(state: State, move: Move, now_ms: int) -> bool:
    """Whether the donor's gateway has been asked, for all that is known. One that wasn't hands out
    as before, until it can't be sure any more; then the lease has yet to end."""
    donor = state.groups.consumers.get((move.ref.topic, move.from_id))
    if donor is None or session_of(state, donor) is None:
        return False
    seen_ms = state.members[donor.gateway_id].seen_ms
    return now_ms - seen_ms < 2 * state.timing.check_in_ms


def ask_anew(state: State, gateway_id: str, now_ms: int) -> None:
    """The gateway is back, and may not have heard what its consumers were asked for."""
    consumers = state.groups.consumers
    for ref, handoff in state.groups.handoffs.by_ref.items():
        donor = consumers.get((ref.topic, handoff.move.from_id))
        if donor is not None and donor.gateway_id == gateway_id:
            handoff.heard_ms = now_ms


def overtaken(
    state: State, gateway_id: str, ref: PartitionRef, epoch: int, *, own: int
) -> list[Effect]:
    """The positions of `ref` are held under a higher epoch than was given out: go above it. Not
    where the sender has the target under another epoch than it is given out under by now (`own`; 0:
    it doesn't say): then the present owner holds it."""
    groups = state.groups
    current = groups.targets.owners.get(ref)
    if current is None or current.epoch > epoch or state.learning.is_blank:
        return []
    if own and own != current.epoch:
        return []
    consumer = groups.consumers.get((ref.topic, current.node_id))
    if consumer is None or consumer.gateway_id != gateway_id:
        return []
    groups.targets.raise_above(ref, epoch)
    return changed(state) + assign(state, {consumer.key})


def renew(state: State, topics: Collection[str]) -> list[Effect]:
    """Positions of the groups of these topics are to go back: the owner of a target claims it anew,
    and begins there. A target that is being handed off goes on its way, and the consumer that lets
    go of it is asked anew."""
    return _renewed(state, [one for one in state.groups.all() if one.topic in topics])


def renew_group(state: State, group_id: str) -> list[Effect]:
    """Likewise of one group, whose positions are to go elsewhere."""
    return _renewed(state, [state.groups.by_id[group_id]])


def _renewed(state: State, some: Iterable[Group]) -> list[Effect]:
    groups = state.groups
    touched: set[Key] = set()
    for group in some:
        for ref in group.refs():
            if groups.targets.is_owned(ref):
                owner = groups.targets.take(ref, groups.targets.owners[ref].node_id)
                touched.add((group.id, owner.node_id))
    return changed(state) + assign(state, touched) if touched else []


def still_in_hand(state: State, owner: Owner, now_ms: int) -> None:
    """The donor works on items of the target: the handoff waits for that, within bounds."""
    handoff = state.groups.handoffs.by_ref.get(owner.ref)
    if handoff is not None and state.groups.targets.owners.get(owner.ref) == owner:
        handoff.heard_ms = now_ms


def declined(state: State, gateway_id: str, owner: Owner, now_ms: int) -> list[Effect]:
    """The gateway of `owner` has no room for it: it goes to a consumer elsewhere, or to nobody
    until there may be room again."""
    groups = state.groups
    consumer = groups.consumers.get((owner.ref.topic, owner.node_id))
    if state.learning.is_on or groups.targets.owners.get(owner.ref) != owner:
        return []
    if consumer is None or consumer.gateway_id != gateway_id:
        return []
    groups.full_since_ms[gateway_id] = now_ms
    groups.handoffs.end([owner.ref])
    groups.targets.take(owner.ref, NOBODY)
    touched = {consumer.key, *place(state, groups.by_id[owner.ref.topic])}
    return changed(state) + assign(state, touched)


def look_for_room(state: State, now_ms: int) -> list[Effect]:
    """What a full gateway had no room for is given out again after a while."""
    groups = state.groups
    over = [name for name, ms in groups.full_since_ms.items() if now_ms - ms >= FULL_MS]
    if not over:
        return []
    for gateway_id in over:
        del groups.full_since_ms[gateway_id]
    touched = {key for group in groups.all() for key in place(state, group)}
    return changed(state) + assign(state, touched) if touched else []


# --- what gateways are told --------------------------------------------------------------------


def is_connected(state: State, consumer: Consumer) -> bool:
    return session_of(state, consumer) is not None


def session_of(state: State, consumer: Consumer) -> int | None:
    """Where to speak to a connected consumer; None for one that is lost or cut off."""
    gateway = state.members.get(consumer.gateway_id)
    if gateway is None or consumer.lost_ms is not None:
        return None
    return gateway.session


def assign(state: State, keys: Iterable[Key]) -> list[Effect]:
    effects: list[Effect] = []
    leaving: list[Owner] = []
    for key in sorted(keys):
        consumer = state.groups.consumers.get(key)
        if consumer is None or (session := session_of(state, consumer)) is None:
            continue
        owners = tuple(state.groups.owned_by(key))
        group = state.groups.by_id[key[0]]
        message = from_coordinator.AssignTargets(group, consumer.id, consumer.incarnation, owners)
        effects.append(Send(session, message))
        leaving += [owner for owner in owners if owner.ref in state.groups.handoffs.by_ref]
    # A gateway that was asked before may have lost the question with its stream.
    return effects + _let_go(state, leaving)


def _let_go(state: State, owners: Iterable[Owner]) -> list[Effect]:
    asked: dict[int, list[Owner]] = {}
    for owner in owners:
        consumer = state.groups.consumers.get((owner.ref.topic, owner.node_id))
        if consumer is not None and (session := session_of(state, consumer)) is not None:
            asked.setdefault(session, []).append(owner)
    return [
        Send(session, from_coordinator.LetGo(tuple(leaving), settle=True))
        for session, leaving in sorted(asked.items())
    ]
