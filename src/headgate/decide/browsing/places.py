"""Where a look at a topic begins in each partition, and which partitions can have what is wanted.

Invariant: a partition that came to the topic after a cursor was made begins, going forward, with
what is left of it; going backward it isn't gone into, because it is newer than where that began.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.decide.browsing.cursor import BrowseCursor, Direction
from headgate.decide.feed.start_positions import Since, Start, Stretch, refuse_strangers
from headgate.decide.log.lineage import lineage_of
from headgate.decide.produce.placement import partition_of
from headgate.model.topology import Topic


def partitions_of(topic: Topic, *, key: str | None, collection: str | None) -> list[int]:
    """Those that may have records of `key`; all, where that can't be told."""
    every = [ref.partition for ref in topic.all_refs()]
    if topic.placement != "keyed" or key is None or collection is None:
        return every
    lineage = lineage_of(topic)
    versions = {former.version for former in topic.former} | {topic.version}
    counts = {lineage.count(version) for version in versions}
    if topic.repartition is not None:
        counts.add(topic.repartition.to)
    return sorted({partition_of(key, collection=collection, count=count) for count in counts})


def places(
    start: Start, stretches: Mapping[int, Stretch], topic: str, direction: Direction
) -> dict[int, int]:
    """`at` of a cursor that begins there. A time has to be positions by now, of which one beyond
    the end is the end."""
    assert not isinstance(start, Since), "the log is asked first"
    if isinstance(start, dict):
        refuse_strangers(start, stretches, topic, parameter="from")
    at: dict[int, int] = {}
    for partition, there in stretches.items():
        if start == "now":
            first = there.head + 1
        elif start == "earliest":
            first = there.earliest
        else:
            first = min(start.get(partition, there.head + 1), there.head + 1)
        at[partition] = first - 1 if direction == "forward" else first
    return at


def resumed(cursor: BrowseCursor, stretches: Mapping[int, Stretch]) -> dict[int, int]:
    """`at` of the partitions that are there."""
    at: dict[int, int] = {}
    for partition, there in stretches.items():
        if partition in cursor.at:
            at[partition] = cursor.at[partition]
        else:
            is_forward = cursor.direction == "forward"
            at[partition] = there.earliest - 1 if is_forward else there.earliest
    return at
