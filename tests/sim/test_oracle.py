"""The judge of the simulation, where it could be wrong by itself."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from headgate.model.client_messages import Event, Resync
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef, Record
from headgate.model.letters import Letter
from headgate.model.topology import FormerVersion, Topic
from tests.sim.oracle import LOOKS, Oracle, Watch

TOPIC = "sightings"
FIRST, SECOND = (0, 4), (2, 1)
"""Where one event is that was written again."""


def written(place: tuple[int, int], event_id: str = "twice", number: int = 7) -> Record:
    document = msgspec.json.encode({"number": number})
    return Record(TOPIC, *place, 1, event_id, None, "", "insert", document, None, None, 0)


def comes(oracle: Oracle, watch: Watch, record: Record) -> None:
    place = record.topic, record.partition, record.seq
    raw = msgspec.Raw(record.document)
    oracle.received(watch, Event(*place, record.event_id, record.key, "", record.op, raw))


@pytest.fixture
def oracle() -> Oracle:
    """An ingest node died, so an event without a key may be written again elsewhere."""
    oracle = Oracle()
    oracle.nodes_died = True
    return oracle


@pytest.mark.parametrize("place", [FIRST, SECOND], ids=["first", "second"])
def test_of_an_event_that_is_in_the_log_twice_either_place_will_do(
    oracle: Oracle, place: tuple[int, int]
) -> None:
    """Live, a gateway drops the other one (docs/protocol.md)."""
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    for one in (FIRST, SECOND):
        oracle.appended(written(one))
    assert oracle.owed(watch) == [FIRST, SECOND]
    comes(oracle, watch, written(place))
    assert oracle.owed(watch) == []
    assert oracle.violations == []


def test_who_comes_behind_the_first_place_is_owed_the_second(oracle: Oracle) -> None:
    oracle.appended(written(FIRST))
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=False)
    oracle.appended(written(SECOND))
    assert oracle.owed(watch) == [SECOND]


def test_who_did_not_want_it_at_the_first_place_is_owed_the_second(oracle: Oracle) -> None:
    watch = oracle.subscribed("s", TOPIC, lambda _: False, earliest=True)
    oracle.appended(written(FIRST))
    watch.changes(lambda _: True, {FIRST[0]: FIRST[1]})
    oracle.appended(written(SECOND))
    assert oracle.owed(watch) == [SECOND]


def test_who_was_told_that_the_first_place_is_left_out_knows_of_the_event(oracle: Oracle) -> None:
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    for one in (FIRST, SECOND):
        oracle.appended(written(one))
    partition, seq = FIRST
    oracle.received(watch, Resync("", TOPIC, partition, seq - 1, seq + 1, "slow"))
    assert oracle.owed(watch) == []


def test_another_event_is_owed_all_the_same(oracle: Oracle) -> None:
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    oracle.appended(written(FIRST, "one"))
    oracle.appended(written(SECOND, "another"))
    comes(oracle, watch, written(FIRST, "one"))
    assert oracle.owed(watch) == [SECOND]


def test_what_was_deleted_with_its_topic_excuses_nothing(oracle: Oracle) -> None:
    for one in (FIRST, SECOND):
        oracle.appended(written(one))
    for partition, _ in (FIRST, SECOND):
        oracle.deleted(PartitionRef(TOPIC, partition))
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=False)
    oracle.appended(written((1, 1)))
    assert oracle.owed(watch) == [(1, 1)]


def dead(record: Record, name: str) -> Letter:
    one = Delivery(
        record.topic,
        record.partition,
        record.seq,
        record.event_id,
        record.key,
        record.collection,
        record.op,
        msgspec.Raw(record.document),
        (f"{name}.id",),
        1,
    )
    return Letter(1, "gateway-1", "dead", "shed", one, 0, "", 0)


@pytest.mark.parametrize(("returns", "owed"), [(None, [FIRST]), (2, [])], ids=["there", "away"])
def test_a_letter_that_is_sent_again_is_for_who_is_there(
    oracle: Oracle, returns: int | None, owed: list[tuple[int, int]]
) -> None:
    """`returns`: the connection over which it has subscribed anew."""
    connection: list[int | None] = [1]
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    watch.connection = lambda: connection[-1]
    oracle.appended(written(FIRST))
    letter = dead(written(FIRST), "s")
    oracle.died(letter)
    oracle.goes_again(letter)
    oracle.went_again(letter)
    if returns:
        connection += [None, returns]
    for _ in range(LOOKS):
        oracle.look_who_is_there()
    assert oracle.owed(watch) == owed
    connection.append(3)
    oracle.look_who_is_there()
    assert oracle.owed(watch) == owed, "whoever goes later had it, or lacks it"


@pytest.mark.parametrize(("wants", "owed"), [(7, [FIRST]), (8, [])])
def test_a_letter_that_is_sent_again_is_for_who_wants_it_then(
    wants: int, owed: list[tuple[int, int]]
) -> None:
    oracle = Oracle()
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    oracle.appended(written(FIRST))
    letter = dead(written(FIRST), "s")
    oracle.died(letter)
    watch.changes(lambda document: document["number"] == wants, {FIRST[0]: FIRST[1]})
    oracle.goes_again(letter)
    oracle.went_again(letter)
    assert oracle.owed(watch) == owed


@pytest.mark.parametrize("is_dead", [True, False], ids=["a dead letter", "none"])
def test_only_a_dead_letter_from_the_end_of_a_version_comes_late(is_dead: bool) -> None:
    oracle = Oracle()
    watch = oracle.subscribed("s", TOPIC, lambda _: True, earliest=True)
    older = structs.replace(written((0, 1), "older", 1), key="k")
    newer = structs.replace(written((1, 1), "newer", 2), key="k", version=2)
    for one in (older, newer):
        oracle.appended(one)
    former = FormerVersion(1, (0,), (1,))
    oracle.fenced([Topic(TOPIC, 2, "keyed", 2, (1, 0), (former,), original=1)])
    if is_dead:
        oracle.died(dead(older, "s"))
    for one in (newer, older):
        comes(oracle, watch, one)
    assert oracle.violations == ([] if is_dead else ["s got number 1 of k behind 2"])


def handed(record: Record, *, redelivery: bool = False) -> Event:
    place = record.topic, record.partition, record.seq
    raw = msgspec.Raw(record.document)
    event = Event(*place, record.event_id, record.key, "", record.op, raw)
    return structs.replace(event, redelivery=redelivery)


@pytest.mark.parametrize(
    ("comes_again", "is_wrong"),
    [("", False), ("older", True), ("older newer", False), ("redelivered", False)],
)
def test_what_a_group_is_handed_last_of_a_key_is_its_newest(
    comes_again: str, is_wrong: bool
) -> None:
    """One consumer processes both, and whoever takes over gets some of them again."""
    oracle = Oracle()
    group = oracle.group("packers", TOPIC)
    older = structs.replace(written((0, 1), "older", 1), key="k")
    newer = structs.replace(written((2, 1), "newer", 2), key="k", version=2)
    records = {"older": handed(older), "newer": handed(newer)}
    records["redelivered"] = handed(older, redelivery=True)
    for one in (older, newer):
        oracle.appended(one)
    for name in ("older", "newer", *comes_again.split()):
        oracle.begins(group, "consumer-1", records[name])
        oracle.ends(group, records[name])
    assert oracle.violations == []
    assert oracle.left_to_do(group) == []
    wrong = "packers ends with an older event of 1 keys: [('k', (0, 1), (2, 1))]"
    assert oracle.owed_to_anybody(groups=True) == (wrong if is_wrong else "")


def test_what_a_group_was_told_it_lacks_or_is_gone_may_be_missing_behind_an_older_one() -> None:
    oracle = Oracle()
    group = oracle.group("packers", TOPIC)
    older = structs.replace(written((0, 1), "older", 1), key="k")
    newer = structs.replace(written((2, 1), "newer", 2), key="k", version=2)
    for one in (older, newer):
        oracle.appended(one)
    for one in (older, newer, older):
        oracle.begins(group, "consumer-1", handed(one))
        oracle.ends(group, handed(one))
    assert oracle.ended_with_older(group)
    oracle.begins(group, "consumer-1", Resync("", TOPIC, 2, 0, 2, "retention"))
    assert oracle.owed_to_anybody(groups=True) == ""


@pytest.mark.parametrize(("epoch", "is_wrong"), [(1, False), (2, True), (3, True)])
def test_what_a_former_owner_of_a_target_hands_out_is_not_what_a_group_ends_with(
    epoch: int, is_wrong: bool
) -> None:
    """For the moment that it takes until it hears of it."""
    oracle = Oracle()
    group = oracle.group("packers", TOPIC)
    older = structs.replace(written((0, 1), "older", 1), key="k")
    newer = structs.replace(written((0, 2), "newer", 2), key="k")
    for one in (older, newer):
        oracle.appended(one)
    for name, one, held in (("1", older, 1), ("2", older, 2), ("2", newer, 2), ("1", older, epoch)):
        item = structs.replace(handed(one), target=3, epoch=held)
        oracle.begins(group, f"consumer-{name}", item)
        oracle.ends(group, item)
    assert bool(oracle.ended_with_older(group)) == is_wrong


def test_what_was_parked_may_come_ahead_of_the_news_of_what_retention_took_before_it() -> None:
    oracle = Oracle()
    first = structs.replace(written((2, 1), "older", 1), key="k")
    second = structs.replace(written((2, 2), "newer", 2), key="k")
    group = oracle.group("packers", TOPIC)
    for one in (first, second):
        oracle.appended(one)
    oracle.begins(group, "consumer-1", handed(second))
    assert oracle.violations, "as long as it is there"
    oracle.violations.clear()
    group.begun.clear()
    oracle.settled(PartitionRef(TOPIC, 2), 1)
    oracle.retained(PartitionRef(TOPIC, 2), 2, past_settled=False)
    oracle.begins(group, "consumer-1", handed(second))
    oracle.ends(group, handed(second))
    assert oracle.violations == []
    assert oracle.left_to_do(group) == [(2, 1)], "somebody has to hear of it"
    oracle.begins(group, "consumer-1", handed(first))
    assert oracle.violations, "nor does it come behind that"
