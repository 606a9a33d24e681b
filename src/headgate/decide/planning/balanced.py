"""The balanced strategy: partitions go to whoever has least for its weight, and each topic is
spread evenly where that costs no extra move.

Numbers come first: how many partitions a node gives and takes is settled before anybody looks at
topics. Then a node gives from the topic of which it has most beyond its part, and a topic's
partitions go to the takers that have fewest of it. Never moves a partition for its topic's sake.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from headgate.decide.planning.bounds import Share, pressure
from headgate.decide.planning.standing import Holder, Standing, in_order
from headgate.model.event import PartitionRef

Recipients = dict[PartitionRef, str]
"""The node that each moved partition goes to."""


def spread(standing: Standing, shares: Sequence[Share]) -> Recipients:
    """Who gets each partition that has to move."""
    pool = list(standing.homeless)
    sizes = standing.topic_sizes()
    topics = {topic: number for number, topic in enumerate(sorted(sizes))}
    total_weight = sum(holder.weight for holder in standing.holders)
    for holder, share in zip(standing.holders, shares, strict=True):
        if share.gives:
            part = holder.weight / total_weight
            # Among equals each node begins where the one before it stopped, so that a node which
            # takes from all of them doesn't get the same topic from each.
            fair = {ref.topic: part * sizes[ref.topic] for ref in holder.free}
            pool += _given(holder, share.gives, fair, topics, first=len(pool))
    pool.sort(key=in_order)
    kept = _kept(standing, pool)
    takes = _takes(standing.holders, shares, len(pool))
    return _dealt(standing.holders, takes, pool, kept)


def _given(
    holder: Holder, count: int, fair: Mapping[str, float], topics: Mapping[str, int], *, first: int
) -> list[PartitionRef]:
    """`count` partitions of `holder`, each from the topic that exceeds its fair part the most."""
    free: defaultdict[str, list[PartitionRef]] = defaultdict(list)
    for ref in holder.free:
        free[ref.topic].append(ref)
    held = Counter(ref.topic for ref in holder.fixed)
    heap = [
        (fair[topic] - len(refs) - held[topic], (topics[topic] - first) % len(topics), topic)
        for topic, refs in free.items()
    ]
    heapify(heap)
    given = []
    for _ in range(count):
        lack, turn, topic = heap[0]
        given.append(free[topic].pop())
        if free[topic]:
            heapreplace(heap, (lack + 1, turn, topic))
        else:
            heappop(heap)
    return given


def _kept(standing: Standing, pool: Sequence[PartitionRef]) -> dict[str, Counter[int]]:
    """How many partitions of each topic in `pool` a holder (by its number) keeps."""
    leaving = set(pool)
    kept: dict[str, Counter[int]] = {ref.topic: Counter() for ref in pool}
    if not kept:
        return kept
    for number, holder in enumerate(standing.holders):
        staying = Counter(ref.topic for ref in holder.fixed)
        staying.update(ref.topic for ref in holder.free if ref not in leaving)
        for topic, count in staying.items():
            if topic in kept:
                kept[topic][number] = count
    return kept


def _takes(holders: Sequence[Holder], shares: Sequence[Share], count: int) -> list[int]:
    """How many of `count` partitions each holder takes: first what it lacks to its lower bound,
    then as its weight says, up to its upper bound."""
    takes = [0] * len(holders)

    def entry(node: int) -> tuple[bool, bool, float, int]:
        share, holder = shares[node], holders[node]
        held = holder.held - share.gives + takes[node]
        return held >= share.high, held >= share.low, pressure(held, holder.weight), node

    heap = [entry(node) for node in range(len(holders))]
    heapify(heap)
    for _ in range(count):
        node = heap[0][-1]
        takes[node] += 1
        heapreplace(heap, entry(node))
    return takes


def _dealt(
    holders: Sequence[Holder],
    takes: Sequence[int],
    pool: Sequence[PartitionRef],
    kept: Mapping[str, Counter[int]],
) -> Recipients:
    """Deal the pool topic by topic, each to the takers that have fewest of the topic.

    For a topic with p partitions it's enough to look at p takers that hold none of it and at all
    that hold some; so the whole costs n log n, however many topics and nodes there are.
    """
    by_topic: defaultdict[str, list[PartitionRef]] = defaultdict(list)
    for ref in pool:
        by_topic[ref.topic].append(ref)
    takers = [(-count, node) for node, count in enumerate(takes) if count]
    heapify(takers)
    recipients: Recipients = {}
    for topic, refs in by_topic.items():
        have = kept[topic]
        table = []
        for _ in range(min(len(refs) + len(have), len(takers))):
            lack, node = heappop(takers)
            table.append((pressure(have[node], holders[node].weight), lack, node))
        heapify(table)
        for ref in refs:
            _, lack, node = heappop(table)
            recipients[ref] = holders[node].node_id
            have[node] += 1
            if lack < -1:
                heappush(table, (pressure(have[node], holders[node].weight), lack + 1, node))
        for _, lack, node in table:
            heappush(takers, (lack, node))
    return recipients
