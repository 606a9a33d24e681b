"""Where reading a topic begins and ends: `now`, `earliest`, a time, or positions (`0:15,1:22`).

Invariant: what comes out of `starts_after` is, for every partition, the seq after which reading
begins, and the log has everything after it. Whether a wanted record that retention took is an error
(`refuse_gaps`) or is told and passed over (`gaps`) is the caller's choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

from headgate import errors
from headgate.decide.log.lineage import boundaries, came_later
from headgate.model.topology import Topic


@dataclass(frozen=True, slots=True)
class Since:
    """With the first record of each partition that was appended then or later. Only the log knows
    which those are (`LogReader.first_since`); its answer becomes positions."""

    time_ms: int


Start = Literal["now", "earliest"] | Since | dict[int, int]
"""A dict gives, per partition, the first seq that is wanted."""

MAX_DIGITS = 18
"""Of a partition or a seq: stays within 64 bits, and int() of it is cheap."""


_TIME = re.compile(r"[0-9]{4}-")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Stretch(Protocol):
    """What is there of a partition; ports.log.Extent is one."""

    @property
    def earliest(self) -> int: ...

    @property
    def head(self) -> int: ...


def parse_start(text: str) -> Start:
    """The value of `from`."""
    if text in ("", "now"):
        return "now"
    if text == "earliest":
        return "earliest"
    if _TIME.match(text):
        return _since(text)
    wanted = _positions(text)
    if wanted is None or not all(seq >= 1 for seq in wanted.values()):
        raise errors.InvalidRequest(
            f"from={text[:100]} is not understood: write now, earliest, a time such as "
            "2026-01-31T12:00:00Z, or PARTITION:SEQ,PARTITION:SEQ with seqs from 1 and each "
            "partition once",
            parameter="from",
        )
    return wanted


def _since(text: str) -> Since:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise errors.InvalidRequest(
            f"from={text[:100]} is not a time: write it with its date and its zone, such as "
            "2026-01-31T12:00:00Z or 2026-01-31T13:00:00+01:00",
            parameter="from",
        )
    # Rounded up: a record that was appended in the same millisecond, but before, isn't wanted.
    return Since(-((_EPOCH - moment) // _MILLISECOND))


def start_of(wanted: str | Mapping[str, int]) -> Start:
    """The same from a JSON message, where the positions may be an object, too."""
    if isinstance(wanted, str):
        return parse_start(wanted)
    if not wanted:
        raise errors.InvalidRequest(
            "from names no partition: write now, earliest or the first seq of each partition",
            parameter="from",
        )
    return parse_start(",".join(f"{partition}:{seq}" for partition, seq in wanted.items()))


def parse_last_event_id(text: str) -> Start:
    """The positions vector a client saw last: it wants the records after each of them."""
    return {p: seq + 1 for p, seq in parse_positions(text, "Last-Event-ID").items()}


def parse_positions(text: str, parameter: str) -> dict[int, int]:
    """A positions vector: per partition the last seq; 0 says that none was there."""
    positions = _positions(text)
    if positions is None:
        raise errors.InvalidRequest(
            f"{parameter} {text[:100]} is not a positions vector like 0:15,1:22 that names each "
            "partition once",
            parameter=parameter,
        )
    return positions


def since_then(start: Start, topic: Topic, stretches: Mapping[int, Stretch]) -> Start:
    """`start` with those partitions that came to the topic after its positions were saved, which
    can't name them: they begin with their first record. So do those that are yet to come: a
    producer may write to them before they are known here. The first record of an entirely new
    partition is 1, though the log may not have it any more (`gaps`): what a former topic of this
    name had can't be told from what was lost, and to be told too much is better than to miss
    something.

    A partition that isn't there, and of which nothing was seen, was once to come: the repartition
    was given up, or this gateway hasn't heard of it yet. Should it come, it begins like the others.
    """
    if not isinstance(start, dict):
        return start
    there = {ref.partition for ref in topic.all_refs()}
    if not there.isdisjoint(start):
        start = {number: seq for number, seq in start.items() if number in there or seq > 1}
    ends = {ref.partition: last for ref, last in boundaries(topic).items()}
    most = 0 if topic.repartition is None else topic.repartition.to
    known = (topic.original or topic.partitions) + len(topic.begins)
    to_come = {
        number: ends.get(number, stretches[number].earliest - 1) + 1 if number < known else 1
        for number in range(topic.partitions, most)
    }
    return to_come | {number: after + 1 for number, after in came_later(topic).items()} | start


def starts_after(start: Start, stretches: Mapping[int, Stretch], topic: str) -> dict[int, int]:
    """The seq after which each partition begins; partitions that aren't named begin now. A time has
    to be positions by now."""
    assert not isinstance(start, Since), "the log is asked first"
    if start == "now":
        return {partition: there.head for partition, there in stretches.items()}
    if start == "earliest":
        return {partition: there.earliest - 1 for partition, there in stretches.items()}
    refuse_strangers(start, stretches, topic, parameter="from")
    for partition, seq in start.items():
        head = stretches[partition].head
        if seq > head + 1:
            raise errors.InvalidRequest(
                f"partition {partition} of {topic} ends at seq {head}, so {seq} lies "
                "beyond its end; begin there or earlier",
                parameter="from",
                partition=partition,
                head=head,
            )
    return {
        partition: max(start[partition], there.earliest) - 1 if partition in start else there.head
        for partition, there in stretches.items()
    }


def ends_at(
    up_to: Mapping[int, int], stretches: Mapping[int, Stretch], topic: str
) -> dict[int, int]:
    """The last seq to read of each partition; partitions that aren't named end at their head."""
    refuse_strangers(up_to, stretches, topic, parameter="up_to")
    for partition, seq in up_to.items():
        head = stretches[partition].head
        if seq > head:
            raise errors.InvalidRequest(
                f"partition {partition} of {topic} ends at seq {head}, so {seq} isn't there yet; "
                "end there or earlier",
                parameter="up_to",
                partition=partition,
                head=head,
            )
    return {partition: up_to.get(partition, there.head) for partition, there in stretches.items()}


def refuse_gaps(
    first_seqs: Mapping[int, int], stretches: Mapping[int, Stretch], topic: str
) -> None:
    """Raises NotFound when a wanted record isn't in the log any more."""
    for partition, (first, earliest) in gaps(first_seqs, stretches).items():
        raise gone(topic, partition, first=first, last=earliest - 1)


def gaps(
    first_seqs: Mapping[int, int], stretches: Mapping[int, Stretch]
) -> dict[int, tuple[int, int]]:
    """Where wanted records aren't in the log any more: the first one, and the first that is."""
    return {
        partition: (seq, stretches[partition].earliest)
        for partition, seq in first_seqs.items()
        if partition in stretches and seq < stretches[partition].earliest
    }


def gone(topic: str, partition: int, *, first: int, last: int) -> errors.NotFound:
    return errors.NotFound(
        f"partition {partition} of {topic} doesn't have the records from {first} to {last} any "
        "more; begin again from earliest to read what is left",
        partition=partition,
        first=first,
        last=last,
    )


def lost_at_origin(topic: str, partition: int, seq: int) -> errors.OriginHistoryLost:
    return errors.OriginHistoryLost(
        f"record {seq} of partition {partition} of {topic} says that its origin has lost changes "
        "before it, so what was made of the records so far may be incomplete; make it anew, or "
        "set failOnDataLoss to false to go on, with a row whose op is lost in that place",
        partition=partition,
        seq=seq,
    )


def corrupt(topic: str, partition: int, seq: int) -> errors.CorruptRecord:
    return errors.CorruptRecord(
        f"record {seq} of partition {partition} of {topic} is corrupt: it isn't what was appended; "
        f"bring its store back from a copy (`headgate log verify {topic}` names all such records), "
        "or set failOnDataLoss to false to go on without it",
        topic=topic,
        partition=partition,
        seq=seq,
    )


def refuse_strangers(
    named: Mapping[int, int], stretches: Mapping[int, Stretch], topic: str, *, parameter: str
) -> None:
    for partition in named:
        if partition not in stretches:
            raise errors.InvalidRequest(
                f"topic {topic} has no partition {partition}: "
                f"it has {min(stretches)} to {max(stretches)}",
                parameter=parameter,
                partition=partition,
            )


def _positions(text: str) -> dict[int, int] | None:
    """None when `text` isn't PARTITION:SEQ,PARTITION:SEQ with each partition once."""
    found: dict[int, int] = {}
    for part in text.split(","):
        partition, colon, seq = part.strip().partition(":")
        if not (colon and _is_number(partition) and _is_number(seq)) or int(partition) in found:
            return None
        found[int(partition)] = int(seq)
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
