"""What is wrong, and what to do about it: `headgate doctor`'s judgement, from values alone.

Invariant: whatever isn't well comes with one sentence that says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headgate.decide.connectors.health import advice_of
from headgate.errors import UNREACHABLE
from headgate.model.api import LaneStatus, NodeStatus, Status, TopicInfo
from headgate.model.letters import GatewayLetters

Verdict = Literal["ok", "advice", "warn", "bad"]
"""`advice` is how it could be better, `warn` may pass by itself, `bad` won't."""

LAG_THRESHOLD_MS = 30_000
"""A partition whose oldest unsettled record is older than this is lagging."""
MOVE_THRESHOLD_MS = 60_000
REPARTITION_THRESHOLD_MS = 60_000
"""By then a phase has been given up, or went on without the nodes that don't answer."""
STARTING_MS = 60_000
"""Roles that were started together with the coordinator are there by then."""
PARKED_THRESHOLD_MS = 300_000
"""A gateway that is only restarted has taken its parked letters by then."""
BUSY_EVENTS_PER_S = 5_000.0
"""What one partition takes comfortably."""
BUSY_CORE_SHARE = 0.8
PARTITION_STEPS = (4, 8)
ROLES = ("coordinator", "ingest", "router", "gateway")
SPARE_ROLES = ("ingest", "router")
"""Of these a second one takes over when the first fails."""
LOOPBACKS = tuple(f"http://{host}:" for host in ("127.0.0.1", "localhost", "[::1]"))
NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do; it is empty when all is well."""

    subject: str
    verdict: Verdict
    what: str
    advice: str = ""


def judge_status(status: Status) -> list[Finding]:
    """Findings about a system that runs: its nodes, partitions and moves, and its load."""
    return [
        *(_role(status, role) for role in ROLES),
        *_learning(status),
        *_log(status),
        *_moves(status),
        *(finding for topic in status.topics for finding in _topic(status, topic)),
        *_lanes(status),
        *_links(status),
        *_held(status),
        *_checkpoints(status),
        *_letters(status),
        *_connectors(status),
    ]


# --- nodes -------------------------------------------------------------------------------------


def _role(status: Status, role: str) -> Finding:
    nodes = [node for node in status.nodes if node.role == role]
    if not nodes and _has_just_begun(status) and role not in status.seen:
        advice = f"wait a little; if none comes, start one with `headgate {role}`"
        return Finding(role, "warn", "starting: none is connected yet", advice)
    if not nodes:
        return Finding(role, "bad", "none is connected", _begin(status, role))
    if lost := [node.id for node in nodes if node.state == "lost"]:
        advice = "see its log; its partitions move when its lease ends"
        if _is_on_one_machine(status):
            advice = (
                "wait a little if `headgate up` runs, it starts it again; if it stays, see its log"
            )
        return Finding(role, "bad", f"cut off from the coordinator: {_some(lost)}", advice)
    if draining := [node for node in nodes if node.state == "draining"]:
        return _draining(role, draining)
    if starting := [node.id for node in nodes if node.state == "starting"]:
        return Finding(role, "warn", f"starting: {_some(starting)}", "wait a little")
    if len(nodes) == 1 and role in SPARE_ROLES and not _is_on_one_machine(status):
        return Finding(
            role,
            "advice",
            f"{nodes[0].id} is the only one",
            f"start another with `headgate {role}`, so that it takes over when this one fails",
        )
    return Finding(role, "ok", _some([node.id for node in nodes]))


def _begin(status: Status, role: str) -> str:
    begin = f"start one with `headgate {role}`"
    if not _is_on_one_machine(status):
        return begin
    return f"wait a little if `headgate up` runs, it starts one again; else {begin}"


def _is_on_one_machine(status: Status) -> bool:
    """Nodes that only this machine can call, as under `headgate up`: it starts again what fails,
    and another role wouldn't find the coordinator."""
    urls = [node.url for node in status.nodes if node.url]
    return bool(urls) and all(url.startswith(LOOPBACKS) for url in urls)


def _draining(role: str, nodes: Sequence[NodeStatus]) -> Finding:
    if owning := [node for node in nodes if node.partitions]:
        left = ", ".join(f"{node.id} ({node.partitions} left)" for node in owning[:NAMED_MAX])
        advice = f"wait for it with `headgate node drain {owning[0].id} --wait`"
        return Finding(role, "warn", f"draining: {left}", advice)
    node_id = nodes[0].id
    return Finding(
        role,
        "advice",
        f"drained: {_some([node.id for node in nodes])}",
        f"stop it, or take it back with `headgate node drain {node_id} --cancel`",
    )


def _learning(status: Status) -> Iterator[Finding]:
    if status.learning:
        yield Finding(
            "coordinator",
            "warn",
            "it has lost its state and learns who owns what",
            "wait a minute, and see that all nodes from before are running",
        )


def _moves(status: Status) -> Iterator[Finding]:
    slow = [m for m in status.moves if m.age_ms > MOVE_THRESHOLD_MS]
    if slow:
        yield Finding(
            "moves",
            "bad",
            f"on the way to {_some(sorted({m.to_id for m in slow}))} for more than "
            f"{MOVE_THRESHOLD_MS // 1_000} s: {_some([f'{m.topic}:{m.partition}' for m in slow])}",
            "see that router's log; if it can't start lanes, stop it, and others take over",
        )


# --- the log -----------------------------------------------------------------------------------


def log_trouble(sentence: str) -> Finding | None:
    """The finding about a log that is away, if that is what `sentence` is about."""
    if UNREACHABLE not in sentence:
        return None
    what, _, advice = sentence.rpartition("; ")
    what = what.rpartition(" failed: ")[2] or sentence
    return Finding("log", "bad", what, f"{advice}; nothing is lost, and it goes on by itself")


def _log(status: Status) -> Iterator[Finding]:
    """Letters are kept where the log is, so what keeps them from being counted is the log's."""
    if finding := log_trouble(status.letters_error):
        yield finding


# --- partitions --------------------------------------------------------------------------------


def _topic(status: Status, topic: TopicInfo) -> Iterator[Finding]:
    trouble = _starting(status, topic) or _trouble(status, topic)
    waiting = _repartition(topic)
    busy = _too_busy(status, topic)
    found = [finding for finding in (trouble, waiting, busy) if finding is not None]
    yield from found
    if not found and log_trouble(status.letters_error) is None:
        plural = "partition" if topic.partitions == 1 else "partitions"
        yield Finding(f"topic {topic.name}", "ok", f"{topic.partitions} {plural}, keeping up")


def _starting(status: Status, topic: TopicInfo) -> Finding | None:
    """What isn't read because the router that shall read it starts, and is behind because of
    that."""
    starts = [node for node in status.nodes if node.state == "starting"]
    read = {ref for lane in status.lanes for ref in lane.partitions}
    waits = [
        d
        for d in topic.details
        if (d.owner is None or f"{topic.name}:{d.partition}" not in read or d.state == "lagging")
        and d.state in ("healthy", "lagging")
    ]
    if not waits or not (starts or _has_just_begun(status)):
        return None
    what = f"the router that reads it starts: {_some(f'{topic.name}:{d.partition}' for d in waits)}"
    return Finding(f"topic {topic.name}", "warn", what, "wait a little")


def _has_just_begun(status: Status) -> bool:
    return status.leads_ms is not None and status.leads_ms < STARTING_MS


def _trouble(status: Status, topic: TopicInfo) -> Finding | None:
    subject = f"topic {topic.name}"
    refs = {d.partition: f"{topic.name}:{d.partition}" for d in topic.details}
    open_ = topic.details[: topic.partitions]
    unowned = [refs[d.partition] for d in open_ if d.owner is None]
    if unowned:
        what = f"can't be produced to: {_some(unowned)}"
        return Finding(subject, "bad", what, _begin(status, "ingest"))
    unrouted = [refs[d.partition] for d in topic.details if d.router is None]
    if unrouted:
        what = f"without a router: {_some(unrouted)}"
        return Finding(subject, "bad", what, _begin(status, "router"))
    if failed := [d for d in topic.details if d.state == "failed"]:
        what = f"nothing more is read of {_some(refs[d.partition] for d in failed)}: "
        advice = "mend that first; see `headgate status` and the router's log"
        return Finding(subject, "bad", what + failed[0].reason, advice)
    if stale := [d for d in topic.details if d.state == "stale"]:
        what = f"records are lost of {_some(refs[d.partition] for d in stale)}: "
        advice = (
            "it passes when every gateway has told its subscribers to resync; let the log keep "
            "more (log.retention), or add routers"
        )
        return Finding(subject, "bad", what + stale[0].reason, advice)
    lagging = [refs[d.partition] for d in topic.details if d.lag_ms > LAG_THRESHOLD_MS]
    if lagging:
        what = f"more than {LAG_THRESHOLD_MS // 1_000} s behind: {_some(lagging)}"
        advice = "see `headgate status` for a full lane or a gateway that doesn't take deliveries"
        return Finding(subject, "bad", what, advice)
    if unknown := [refs[d.partition] for d in topic.details if d.lag and not d.lag_known]:
        advice = "see that the log can be read; if it can, look again in a moment"
        return Finding(subject, "warn", unknown_ages(unknown), advice)
    read = {ref for lane in status.lanes for ref in lane.partitions}
    if unread := [ref for ref in refs.values() if ref not in read]:
        what = f"no lane reads {_some(unread)} at the moment"
        advice = "normal for a second between two windows; if it stays, see the router's log"
        return Finding(subject, "warn", what, advice)
    return None


def unknown_ages(refs: Sequence[str]) -> str:
    return f"nobody can tell for how long records wait in {_some(refs)}"


# --- load --------------------------------------------------------------------------------------


def _too_busy(status: Status, topic: TopicInfo) -> Finding | None:
    """A partition that is too much for one lane, where more partitions would spread it."""
    wanted = next((step for step in PARTITION_STEPS if step > topic.partitions), None)
    if wanted is None or topic.repartition is not None:
        return None
    alone = {lane.partitions[0]: lane for lane in status.lanes if len(lane.partitions) == 1}
    for detail in topic.details:
        ref = f"{topic.name}:{detail.partition}"
        lane = alone.get(ref)
        if detail.rate > BUSY_EVENTS_PER_S:
            load = f"takes {detail.rate:,.0f} events/s"
        elif lane is not None and lane.cpu > BUSY_CORE_SHARE:
            load = f"keeps its lane at {lane.cpu:.0%} of a core"
        else:
            continue
        return Finding(
            f"topic {topic.name}",
            "advice",
            f"{ref} {load}, and the topic has {topic.partitions} in all",
            f"give it {wanted} with `headgate topic repartition {topic.name} --partitions "
            f"{wanted}`; events flow meanwhile",
        )
    return None


def _repartition(topic: TopicInfo) -> Finding | None:
    """A repartition that stays in its phase for long, and the nodes that it waits for."""
    under_way = topic.repartition
    if under_way is None or under_way.since_ms <= REPARTITION_THRESHOLD_MS:
        return None
    minutes = under_way.since_ms / 60_000
    what = f"{under_way.phase} for {minutes:,.0f} min on its way to {under_way.to} partitions"
    if under_way.backlog:
        what += f", {under_way.backlog:,} records left"
    if under_way.waits_for:
        what += f": {under_way.waits_for}"
    if under_way.phase == "draining":
        advice = "see `headgate status` for a full lane or a gateway that doesn't take deliveries"
        return Finding(f"topic {topic.name}", "warn", what, advice)
    advice = "see that node's log, or stop it: then the repartition goes on"
    return Finding(f"topic {topic.name}", "bad", what, advice)


def _lanes(status: Status) -> Iterator[Finding]:
    """Lanes that failed, and those that have too much of several partitions."""
    if again := [f"{lane.lane} of {lane.router}" for lane in status.lanes if lane.attempt]:
        yield Finding(
            "lanes",
            "bad",
            f"failed and started again within their window: {_some(again)}",
            "see that router's log; each goes on where the last one was",
        )
    full = [
        lane for lane in status.lanes if lane.cpu > BUSY_CORE_SHARE and len(lane.partitions) > 1
    ]
    if full:
        worst = max(full, key=lambda lane: lane.cpu)
        yield Finding(
            "lanes", "advice", _full(worst), "raise router.slots, or start another router"
        )


def _links(status: Status) -> Iterator[Finding]:
    """Gateways that routers can't reach, or that don't keep up."""
    links = [link for lane in status.lanes for link in lane.links]
    for gateway_id in sorted({link.gateway_id for link in links}):
        own = [link for link in links if link.gateway_id == gateway_id]
        broken = [link for link in own if link.breaker != "closed"]
        error = next((link.error for link in broken or own if link.error), "")
        because = f" ({error})" if error else ""
        if broken:
            yield Finding(
                f"gateway {gateway_id}",
                "bad",
                f"routers have stopped sending to it{because}; what it should get is parked",
                "see its log and the network between; deliveries go on by themselves",
            )
        elif any(link.pressure == "hard" for link in own):
            waiting = sum(link.waiting for link in own)
            yield Finding(
                f"gateway {gateway_id}",
                "bad",
                f"{waiting:,} deliveries wait for it, more are parked{because}",
                "find its slow subscribers, or start another gateway and let some move there",
            )
        elif any(link.pressure == "soft" for link in own):
            yield Finding(
                f"gateway {gateway_id}",
                "warn",
                "it falls behind, and gets nothing of low priority any more",
                "wait a little; if it stays, start another gateway",
            )


def _held(status: Status) -> Iterator[Finding]:
    """Gateways whose subscribers the coordinator had forgotten."""
    for gateway in status.gateways:
        if gateway.held:
            yield Finding(
                f"gateway {gateway.id}",
                "warn",
                f"{gateway.held:,} of its {gateway.subscribers:,} subscribers get nothing until "
                "every lane knows them again",
                "wait a little: then they get everything from the log; if it stays, see the logs "
                "of that gateway and of the routers",
            )


def _checkpoints(status: Status) -> Iterator[Finding]:
    lanes = sorted({lane.checkpoints for lane in status.lanes if lane.checkpoints})
    if said := [*lanes, *([status.checkpoints_error] if status.checkpoints_error else [])]:
        yield Finding(
            "positions",
            "bad",
            f"they can't be {'saved' if lanes else 'read'} ({said[0]})",
            "bring their store back; nothing is lost, but more is delivered again after a restart",
        )


def _letters(status: Status) -> Iterator[Finding]:
    if said := sorted({lane.letters for lane in status.lanes if lane.letters}):
        yield Finding(
            "letters",
            "bad",
            f"parked and dead letters can't be kept ({said[0]}), so some partitions aren't read",
            "make room, or bring the store back; nothing is lost, and reading goes on by itself",
        )
    elif status.letters_error and log_trouble(status.letters_error) is None:
        yield Finding(
            "letters",
            "warn",
            f"parked and dead letters can't be counted ({status.letters_error})",
            "find out what their store is busy with",
        )
    if dead := [one for one in status.letters if one.dead]:
        oldest = max(dead, key=lambda one: one.dead_ms)
        count = sum(one.dead for one in dead)
        yield Finding(
            "dead letters",
            "warn",
            f"{count:,} for {_some(map(_whose, dead))}, the oldest from {_ago(oldest.dead_ms)}",
            f"see why with `headgate dlq list {_chosen(oldest)}`, then `headgate dlq retry "
            f"{_chosen(oldest)}` or `headgate dlq delete {_chosen(oldest)}`",
        )
    if parked := [one for one in status.letters if one.parked_ms > PARKED_THRESHOLD_MS]:
        oldest = max(parked, key=lambda one: one.parked_ms)
        count = sum(one.parked for one in parked)
        yield Finding(
            "parked letters",
            "warn",
            f"{count:,} for {_some(map(_whose, parked))}, the oldest from {_ago(oldest.parked_ms)}",
            f"see `headgate dlq list --parked {_chosen(oldest)}`; they are sent by themselves once "
            + ("a consumer of the group" if oldest.group else "the gateway")
            + " takes them",
        )


def _ago(age_ms: int) -> str:
    """No finer than a minute, so that the sentence stays the same from one look to the next."""
    minutes = age_ms // 60_000
    if not minutes:
        return "less than a minute ago"
    if minutes < 120:
        return f"{minutes} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1_440} days ago"


def _connectors(status: Status) -> Iterator[Finding]:
    for one in status.connectors:
        yield Finding(f"connector {one.name}", *advice_of(one))


def _whose(letters: GatewayLetters) -> str:
    return f"group {letters.group}" if letters.group else letters.gateway


def _chosen(letters: GatewayLetters) -> str:
    """The options of `headgate dlq` that mean these."""
    if not letters.group:
        return f"--gateway {letters.gateway}"
    topic, _, name = letters.group.partition("/")
    return f"--topic {topic} --group {name}"


def _full(lane: LaneStatus) -> str:
    return (
        f"lane {lane.lane} of {lane.router} uses {lane.cpu:.0%} of a core for "
        f"{len(lane.partitions)} partitions"
    )


def _some(names: Iterable[str]) -> str:
    """The first few by name, the others by number."""
    listed = list(names)
    more = len(listed) - NAMED_MAX
    return ", ".join(listed[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
