"""How a repartition looks to an operator: its plan, how far it is, and why it waits. Only shapes
what it's given."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.cli.views.tables import Grid, duration, named, number, plural, share
from headgate.model.api import RepartitionPlan, RepartitionStatus, TopicInfo

WAITS_SHOWN_MAX = 8


def plan_sentence(plan: RepartitionPlan) -> str:
    counts = f"{plan.topic}: {plan.partitions:,} -> {plural(plan.to, 'partition')}"
    if not _is_ordered(plan):
        return f"{counts}; it has no keys, so nobody waits for anybody"
    return f"{counts}; {share(plan.moved_share)} of all keys change their partition"


def backlog_sentence(plan: RepartitionPlan) -> str:
    """How much has to be settled first, and how long that takes at the present rate."""
    if not _is_ordered(plan):
        return f"{plural(plan.backlog, 'record')} unsettled now, for which nobody waits"
    if not plan.backlog:
        return "nothing is unsettled now, so nobody waits for long"
    unsettled = f"{plural(plan.backlog, 'record')} unsettled now"
    if plan.drain_s is None:
        return f"{unsettled}; nothing was settled of late, so nobody can say how long that takes"
    about = duration(round(plan.drain_s * 1_000))
    rate = number(round(plan.settled_per_s))
    return f"{unsettled}; at the present {rate}/s that takes about {about}"


def waits_table(plan: RepartitionPlan) -> Grid:
    """Which partitions wait for which. Only partitions that share keys do: one row for all that are
    alike."""
    rows: list[tuple[str, str]] = []
    for waiting, awaited in _alike(plan):
        new = named((plan.topic, one) for one in waiting)
        rows.append((new, named((plan.topic, one) for one in awaited)))
    more = len(rows) - WAITS_SHOWN_MAX
    if more > 0:
        rows[WAITS_SHOWN_MAX:] = [(f"and {more:,} more like these", "")]
    return Grid(("new records of", "wait for those there are of"), rows)


def _is_ordered(plan: RepartitionPlan) -> bool:
    """A keyed topic has partitions that wait, whatever the counts."""
    return bool(plan.waits)


def _alike(plan: RepartitionPlan) -> Iterator[tuple[list[int], list[int]]]:
    """Partitions that share keys with the same ones: each waits for all of these but itself."""
    groups: dict[frozenset[int], tuple[list[int], set[int]]] = {}
    for one in plan.waits:
        itself = {one.partition} if one.partition < plan.partitions else set[int]()
        waiting, awaited = groups.setdefault(frozenset({*one.after, *itself}), ([], set()))
        waiting.append(one.partition)
        awaited.update(one.after)
    for waiting, awaited in groups.values():
        yield waiting, sorted(awaited)


def standing(under_way: RepartitionStatus) -> str:
    """The phase with what is left and what it waits for."""
    return f"{under_way.phase}{_left(under_way)}{_why(under_way)}"


def under_way_sentence(topic: TopicInfo) -> str:
    """Where the repartition of `topic` is, and why; empty without one."""
    if (under_way := topic.repartition) is None:
        return ""
    return (
        f"{topic.name} is being repartitioned to {under_way.to:,}: {under_way.phase} for "
        f"{duration(under_way.since_ms)}{_left(under_way)}{_why(under_way)}"
    )


def _left(under_way: RepartitionStatus) -> str:
    return f", {plural(under_way.backlog, 'record')} left" if under_way.backlog else ""


def _why(under_way: RepartitionStatus) -> str:
    return f": {under_way.waits_for}" if under_way.waits_for else ""


def given_up_sentence(topic: TopicInfo, to: int) -> str:
    why = topic.given_up or "why is forgotten, as the coordinator was restarted since"
    return (
        f"the repartition of {topic.name} to {plural(to, 'partition')} was given up, and nothing "
        f"has changed: {why}"
    )
