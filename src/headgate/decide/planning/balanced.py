"""The balanced strategy: partitions go to the node that has least for its weight, and each topic is
spread evenly where that costs no extra move.

Numbers come first: how many partitions a node gives and takes is settled before the plan looks at
topics. Then a node gives from the topic of which it has most beyond its part, and a topic's
partitions go to the takers that have fewest of it. Never moves a partition for its topic's sake.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from headgate.decide.planning.bounds import Bounds, pressure
from headgate.decide.planning.starting_point import Participant, Standing, in_order
from headgate.model.event import PartitionRef

Recipients = dict[PartitionRef, str]
"""The node that each moved partition goes to."""


def spread(standing: Standing, shares: Sequence[Bounds]) -> Recipients:
    """Who gets each partition that has to move."""
    pool = list(standing.unowned)
    sizes = standing.topic_sizes()
    topics = {topic: number for number, topic in enumerate(sorted(sizes))}
    total_weight = sum(participant.weight for participant in standing.participants)
    for participant, share in zip(standing.participants, shares, strict=True):
        if share.gives:
            part = participant.weight / total_weight
            # Among equals each node begins where the one before it stopped, so that a node which
            # takes from all of them doesn't get the same topic from each.
            fair = {ref.topic: part * sizes[ref.topic] for ref in participant.free}
            pool += _given(participant, share.gives, fair, topics, first=len(pool))
    pool.sort(key=in_order)
    kept = _kept(standing, pool)
    takes = _takes(standing.participants, shares, len(pool))
    return _dealt(standing.participants, takes, pool, kept)


def _given(
    participant: Participant,
    count: int,
    fair: Mapping[str, float],
    topics: Mapping[str, int],
    *,
    first: int,
) -> list[PartitionRef]:
    """`count` partitions of `participant`, each from the topic that exceeds its fair part the
    most."""
    free: defaultdict[str, list[PartitionRef]] = defaultdict(list)
    for ref in participant.free:
        free[ref.topic].append(ref)
    held = Counter(ref.topic for ref in participant.fixed)
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
    """How many partitions of each topic in `pool` a participant (by its number) keeps."""
    leaving = set(pool)
    kept: dict[str, Counter[int]] = {ref.topic: Counter() for ref in pool}
    if not kept:
        return kept
    for number, participant in enumerate(standing.participants):
        staying = Counter(ref.topic for ref in participant.fixed)
        staying.update(ref.topic for ref in participant.free if ref not in leaving)
        for topic, count in staying.items():
            if topic in kept:
                kept[topic][number] = count
    return kept


def _takes(participants: Sequence[Participant], shares: Sequence[Bounds], count: int) -> list[int]:
    """How many of `count` partitions each participant takes: first what it lacks to its lower
    bound, then as its weight says, up to its upper bound."""
    takes = [0] * len(participants)

    def entry(node: int) -> tuple[bool, bool, float, int]:
        share, participant = shares[node], participants[node]
        held = participant.held - share.gives + takes[node]
        return held >= share.high, held >= share.low, pressure(held, participant.weight), node

    heap = [entry(node) for node in range(len(participants))]
    heapify(heap)
    for _ in range(count):
        node = heap[0][-1]
        takes[node] += 1
        heapreplace(heap, entry(node))
    return takes


def _dealt(
    participants: Sequence[Participant],
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
            table.append((pressure(have[node], participants[node].weight), lack, node))
        heapify(table)
        for ref in refs:
            _, lack, node = heappop(table)
            recipients[ref] = participants[node].node_id
            have[node] += 1
            if lack < -1:
                heappush(table, (pressure(have[node], participants[node].weight), lack + 1, node))
        for _, lack, node in table:
            heappush(takers, (lack, node))
    return recipients
