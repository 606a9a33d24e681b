"""What must come before what, against an oracle that hashes: every hash is in one partition of each
version, and records of one hash keep the order of their versions."""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.log.lineage import (
    Lineage,
    begins_after,
    boundaries,
    contradictions,
    lineage_of,
)
from headgate.model.event import PartitionRef
from headgate.model.topology import FormerVersion, Repartition, Topic

counts = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    """A topic with some former versions, of which some partitions got no record."""
    numbers = draw(counts)
    heads = [0] * 9
    versions = []
    for number, count in enumerate(numbers, start=1):
        after = tuple(heads[:count])
        for partition in range(count):
            heads[partition] += draw(st.integers(0, 2))
        versions.append(FormerVersion(number, after, tuple(heads[:count])))
    *former, present = versions
    original = numbers[0]
    return Topic(
        "t",
        len(present.last),
        version=present.version,
        after=present.after if former else (),
        former=tuple(former),
        original=original if former else 0,
        begins=(0,) * (max(numbers) - original) if former else (),
    )


@given(topics(), st.data())
def test_a_record_waits_for_exactly_those_that_may_have_its_key(
    topic: Topic, data: st.DataObject
) -> None:
    lineage = Lineage(topic)
    all_counts = [*(len(one.last) for one in topic.former), topic.partitions]
    version = data.draw(st.integers(1, topic.version))
    partition = data.draw(st.integers(0, all_counts[version - 1] - 1))
    expected: dict[int, int] = {}
    for former in topic.former[: version - 1]:
        for key_hash in range(lcm(*all_counts)):
            number = key_hash % len(former.last)
            shares = key_hash % all_counts[version - 1] == partition
            has_records = former.last[number] > former.after[number]
            if shares and number != partition and has_records:
                expected[number] = former.last[number]
    assert lineage.before(version, partition) == expected


@given(topics(), st.data())
def test_the_version_of_a_seq_is_the_one_that_ends_behind_it(
    topic: Topic, data: st.DataObject
) -> None:
    lineage = Lineage(topic)
    partition = data.draw(st.integers(0, len(topic.all_refs()) - 1))
    for former in topic.former:
        if partition < len(former.last):
            for seq in range(former.after[partition] + 1, former.last[partition] + 1):
                assert lineage.version_of(partition, seq) == former.version
                assert lineage.end_of(partition, seq) == former.last[partition]
    beyond = boundaries(topic).get(PartitionRef("t", partition), 0) + 1
    assert lineage.version_of(partition, beyond) == topic.version
    assert lineage.end_of(partition, beyond) is None


@given(topics(), st.data())
def test_a_record_is_before_what_is_of_a_later_version_and_may_have_its_key(
    topic: Topic, data: st.DataObject
) -> None:
    after = topic.after or (0,) * topic.partitions
    present = FormerVersion(topic.version, after, tuple(one + 3 for one in after))
    versions = [*topic.former, present]
    numbers = range(max(len(one.last) for one in versions))
    partition, number = data.draw(st.permutations(numbers))[:2] if len(numbers) > 1 else (0, 0)
    seq, reached = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 6))
    of = [one for one in versions if number < len(one.last)]
    newer = next((one for one in of if one.after[number] < reached <= one.last[number]), None)
    is_before = newer is not None and any(
        partition < len(one.last)
        and seq <= one.last[partition] > one.after[partition]
        and any(
            hash_ % len(one.last) == partition and hash_ % len(newer.last) == number
            for hash_ in range(len(one.last) * len(newer.last))
        )
        for one in topic.former
        if one.version < newer.version and partition != number
    )
    if newer is not None or reached == 0:
        assert Lineage(topic).is_before(partition, seq, {number: reached}) is is_before


@given(topics(), st.data())
def test_what_comes_again_comes_with_all_that_is_newer_of_its_keys(
    topic: Topic, data: st.DataObject
) -> None:
    after = topic.after or (0,) * topic.partitions
    versions = [*topic.former, FormerVersion(topic.version, after, tuple(n + 3 for n in after))]
    counts = [len(one.last) for one in versions]
    partition = data.draw(st.integers(0, max(counts) - 1))
    seq = data.draw(st.integers(0, 4))
    again = Lineage(topic).behind(partition, seq)
    assert partition not in again
    again[partition] = seq
    for key_hash in range(lcm(*counts)):
        brings_along = False
        for one, number in ((one, key_hash % len(one.last)) for one in versions):
            begin, last = one.after[number], one.last[number]
            if brings_along and last > begin:
                assert again.get(number, last) <= begin
            brings_along |= begin < last and again.get(number, last) < last


def test_nothing_comes_again_elsewhere_where_nothing_newer_is() -> None:
    topic = Topic("t", 2, version=2, after=(3, 0), former=(FormerVersion(1, (0,), (3,)),))
    assert Lineage(topic).behind(0, 1) == {1: 0}
    assert Lineage(topic).behind(0, 3) == {}
    assert Lineage(topic).behind(1, 0) == {}
    assert Lineage(Topic("t", 2)).behind(0, 0) == {}


def test_nothing_is_before_a_partition_that_has_come_and_has_had_nothing_yet() -> None:
    grown = Topic("t", 2, "keyed", 2, (3, 7), (FormerVersion(1, (0,), (3,)),), 1, (7,))
    lineage = Lineage(grown)
    assert not lineage.is_before(0, 3, {0: 2, 1: 7})
    assert lineage.is_before(0, 3, {0: 2, 1: 8})
    assert not lineage.is_before(0, 4, {0: 2, 1: 8})


def test_four_to_eight_waits_for_one_former_partition_each() -> None:
    topic = Topic(
        "t",
        8,
        version=2,
        after=(5, 6, 7, 8, 0, 0, 0, 0),
        former=(FormerVersion(1, (0, 0, 0, 0), (5, 6, 7, 8)),),
    )
    lineage = lineage_of(topic)
    assert [dict(lineage.before(2, number)) for number in range(8)] == [
        *([{}] * 4),
        *({0: 5}, {1: 6}, {2: 7}, {3: 8}),
    ]
    assert lineage_of(topic) is lineage


def test_counts_without_a_common_divisor_wait_for_all() -> None:
    topic = Topic(
        "t", 5, version=2, after=(4, 4, 4, 0, 0), former=(FormerVersion(1, (0, 0, 0), (4, 4, 4)),)
    )
    assert dict(lineage_of(topic).before(2, 1)) == {0: 4, 2: 4}
    assert dict(lineage_of(topic).before(2, 4)) == {0: 4, 1: 4, 2: 4}


def test_a_version_without_records_of_a_key_hides_none_before_it() -> None:
    """Partition 1 of the first version has records, none of the second has."""
    topic = Topic(
        "t",
        1,
        version=3,
        after=(3,),
        former=(FormerVersion(1, (0, 0), (3, 7)), FormerVersion(2, (3, 7), (3, 7))),
    )
    assert dict(lineage_of(topic).before(3, 0)) == {1: 7}


def test_what_has_no_order_never_waits() -> None:
    topic = Topic("t", 1, "opportunistic", 2, (3,), (FormerVersion(1, (0, 0), (3, 7)),))
    assert lineage_of(topic).is_plain
    assert not lineage_of(topic).before(2, 0)


def test_partitions_that_came_later_begin_where_they_first_came() -> None:
    topic = Topic(
        "t",
        4,
        version=4,
        after=(9, 9, 5, 6),
        former=(
            FormerVersion(1, (0,), (3,)),
            FormerVersion(2, (3, 0, 0), (5, 5, 5)),
            FormerVersion(3, (5, 5), (9, 9)),
        ),
    )
    assert begins_after(topic, 1) == {1: 0, 2: 0, 3: 6}
    assert begins_after(topic, 2) == {3: 6}
    assert begins_after(topic, 4) == {}
    assert begins_after(Topic("t", 4), 1) == {}


def test_a_topic_has_the_partitions_of_all_its_versions() -> None:
    topic = Topic("t", 2, version=2, former=(FormerVersion(1, (0,) * 3, (1,) * 3),), original=3)
    assert [ref.partition for ref in topic.all_refs()] == [0, 1, 2]
    assert [ref.partition for ref in topic.refs()] == [0, 1]
    grows = Topic("t", 2, repartition=Repartition(5, "announced", 1))
    assert len(grows.all_refs()) == 5


@given(topics())
def test_what_followed_each_other_has_no_contradictions(topic: Topic) -> None:
    assert list(contradictions(topic)) == []


@pytest.mark.parametrize(
    "topic",
    [
        Topic("t", 2, version=1, after=(5, 5), former=(FormerVersion(1, (0,), (5,)),)),
        Topic("t", 2, version=2, after=(4, 0), former=(FormerVersion(1, (0,), (5,)),)),
        Topic("t", 2, version=2, after=(5,), former=(FormerVersion(1, (0,), (5,)),)),
        Topic("t", 1, version=2, after=(5,), former=(FormerVersion(1, (7,), (5,)),)),
        Topic("t", 1, version=2, after=(5,), former=(FormerVersion(1, (0, 0), (5,)),)),
    ],
    ids=["the same version", "overlapping", "too few", "backwards", "two counts"],
)
def test_what_cannot_have_followed_has_some(topic: Topic) -> None:
    assert list(contradictions(topic))
