"""What /v1/explain says, compared with the truth: each way a record can end, and each reason not to
arrive, brought about in a whole cluster on virtual time.

`told` compares by itself: whoever is said to have the record was handed it, and nobody else was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from headgate.client.producing.outgoing import OutgoingEvent
from headgate.client.subscriber import Subscriber
from headgate.config import Config
from headgate.errors import HeadgateError, InvalidRequest, NotFound, UnknownTopic
from headgate.lane import run
from headgate.lane.delivery.evidence import LaneEvidence
from headgate.lane.run import evidence_of
from headgate.model.api import NodeStatus
from headgate.model.client_messages import Event
from headgate.model.control.to_coordinator import Evidence
from headgate.model.explain_api import DryRun
from headgate.model.lanes import LaneSettings
from headgate.model.letters_api import LettersChanged, LetterSelection
from headgate.ports.machine import Machine
from tests.explaining.world import (
    SOON_S,
    TOPIC,
    ExplainWorld,
    always,
    hangs,
    is_away,
    played,
)

Situation = Callable[[ExplainWorld], Coroutine[Any, Any, None]]
SITUATIONS: dict[str, tuple[Situation, Config | None]] = {}
SMALL = Config.model_validate(
    {"gateway": {"subscriber_queue": 4, "when_slow": {"high": "disconnect"}}}
)


def situation(config: Config | None = None) -> Callable[[Situation], Situation]:
    def take(made: Situation) -> Situation:
        SITUATIONS[made.__name__] = made, config
        return made

    return take


def config(**sections: object) -> Config:
    return Config.model_validate(sections)


# --- it arrived ----------------------------------------------------------------------------------


@situation()
async def it_was_delivered(made: ExplainWorld) -> None:
    await made.subscribe(where="altitude < 3000")
    place = await made.produce(altitude=2100)
    one = await made.told(place)
    assert one.status == "delivered"
    assert [(c.condition, c.verdict, c.values[0].value) for c in one.conditions] == [
        ("altitude < 3000", "match", "2100")
    ]
    assert one.attempts[0].outcome == "accepted"
    answer = await made.explain(place)
    assert (answer.status, answer.outcome) == ("settled", "acknowledged")
    assert answer.record is not None
    assert answer.record.document == msgspec.Raw(b'{"altitude":2100}')
    assert (answer.owner, answer.router, answer.head) == ("ingest-1", "router-1", 1)


@situation()
async def it_was_delivered_and_acknowledged(made: ExplainWorld) -> None:
    await made.subscribe(reads=False)
    place = await made.produce(altitude=1)
    subscriber = made.subscribers["s"]
    assert isinstance(subscriber, Subscriber)
    item = await anext(subscriber)
    assert isinstance(item, Event)
    made.handed["s"].append((item.partition, item.seq))
    subscriber.ack(item)
    await asyncio.sleep(SOON_S)
    assert (await made.told(place)).status == "processed"


@situation()
async def it_was_read_from_the_log_by_who_came_later(made: ExplainWorld) -> None:
    place = await made.produce(altitude=1)
    await made.subscribe(start="earliest")
    await asyncio.sleep(SOON_S)
    assert (await made.told(place)).status == "delivered"
    answer = await made.explain(place)
    assert answer.outcome == "unmatched", answer.why
    assert "came later" in answer.why


@situation()
async def it_had_left_what_was_watched(made: ExplainWorld) -> None:
    await made.subscribe(where="altitude < 3000")
    await made.produce(altitude=2100)
    place = await made.written(
        "update", 0, key="b", document=b'{"altitude":9000}', earlier=b'{"altitude":2100}'
    )
    one = await made.told(place)
    assert (one.status, one.left, one.verdict) == ("delivered", True, "no match")
    assert "told `left`" in one.why


@situation()
async def it_came_after_a_while_of_parking(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(is_away):
        place = await made.produce(altitude=1)
    await asyncio.sleep(60.0)
    one = await made.told(place)
    assert one.status == "delivered"
    assert [a.outcome for a in one.attempts] == ["failed", "failed", "failed", "parked", "accepted"]
    assert "nothing answers" in one.attempts[0].error


@situation()
async def it_was_sent_again_by_an_operator(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(always("rejected")):
        place = await made.produce(altitude=1)
    [letter] = (await made.explain(place)).letters
    async with made.cluster.http(made.url) as client:
        wanted = LetterSelection(ids=[letter.id], wait="5s")
        changed = await client.post("/v1/dead-letters/retry", wanted, LettersChanged)
    assert changed.delivered == 1
    await asyncio.sleep(SOON_S)
    answer = await made.explain(place)
    assert answer.letters == []
    assert "rejected" in [a.outcome for a in answer.attempts]
    assert answer.attempts[-1].outcome == "accepted"


@situation()
async def it_was_sent_again_to_somebody_who_came_later(made: ExplainWorld) -> None:
    """What is sent again is matched with those who are there by then."""
    await made.subscribe()
    async with made.answering(always("rejected")):
        place = await made.produce(altitude=1)
    await made.subscribe("later")
    assert (await made.told(place, "later")).status == "before"
    [letter] = (await made.explain(place)).letters
    async with made.cluster.http(made.url) as client:
        wanted = LetterSelection(ids=[letter.id], wait="5s")
        await client.post("/v1/dead-letters/retry", wanted, LettersChanged)
    await asyncio.sleep(SOON_S)
    one = await made.told(place, "later")
    assert one.status == "delivered"
    assert "sent again" in one.why


# --- its filter ----------------------------------------------------------------------------------


@situation()
async def its_filter_is_false(made: ExplainWorld) -> None:
    await made.subscribe(where='altitude < 3000 && country == "CH"')
    place = await made.produce(altitude=9000, country="CH")
    one = await made.told(place)
    assert one.status == "not_matched"
    assert [c.verdict for c in one.conditions] == ["no match", "match"]
    assert one.why == "its filter is false: altitude < 3000 (altitude is 9000)"


@situation()
async def it_lacks_the_field(made: ExplainWorld) -> None:
    await made.subscribe(where="altitude < 3000")
    one = await made.told(await made.produce(speed=1))
    assert one.status == "not_matched"
    assert one.conditions[0].values[0].missing
    assert "it has no altitude" in one.why


@situation()
async def it_has_another_type_there(made: ExplainWorld) -> None:
    await made.subscribe(where="altitude < 3000")
    one = await made.told(await made.produce(altitude="2100"))
    assert one.status == "not_matched"
    assert "altitude is a text, and a number is meant" in one.why


@situation()
async def none_of_the_alternatives_holds(made: ExplainWorld) -> None:
    await made.subscribe(where="a == 1 && b == 2 || c == 3")
    one = await made.told(await made.produce(a=1, b=1, c=1))
    assert one.status == "not_matched"
    assert [(c.condition, c.alternative, c.verdict) for c in one.conditions] == [
        ("a == 1", 1, "match"),
        ("b == 2", 1, "no match"),
        ("c == 3", 2, "no match"),
    ]


@situation()
async def its_filter_fails_on_the_document(made: ExplainWorld) -> None:
    await made.subscribe(where="total / count > 3")
    one = await made.told(await made.produce(total=9, count=0))
    assert one.status == "filter_failed"
    assert "total is 9, count is 0" in one.why


@situation(config(ui={"mask": "card.number"}))
async def it_hangs_on_a_masked_value(made: ExplainWorld) -> None:
    """The filter decided by the value, which is not told; and nobody finds it out by asking."""
    await made.subscribe(where='card.number == "4242"')
    place = await made.produce(card={"number": "4242"})
    one = await made.told(place)
    assert one.status == "delivered"
    assert one.conditions[0].values[0].masked
    answer = await made.explain(place, where='card.number == "4242"')
    assert answer.subscriptions[0].status == "not_matched"
    assert b"4242" not in msgspec.json.encode(answer).replace(b'card.number == \\"4242\\"', b"")


# --- when it was subscribed ----------------------------------------------------------------------


@situation()
async def it_was_subscribed_behind_it(made: ExplainWorld) -> None:
    place = await made.produce(altitude=1)
    await made.subscribe()
    one = await made.told(place)
    assert one.status == "before"
    assert "began after seq 1" in one.why


@situation()
async def it_resumed_behind_it(made: ExplainWorld) -> None:
    first = await made.produce(altitude=1)
    partition = first.split(":")[1]
    await made.produce(altitude=2)
    await made.subscribe(start=f"{partition}:2")
    await asyncio.sleep(SOON_S)
    assert (await made.told(first)).status == "before"
    assert (await made.told(f"{TOPIC}:{partition}:2")).status == "delivered"


@situation()
async def it_left_after_it_had_it(made: ExplainWorld) -> None:
    await made.subscribe()
    place = await made.produce(altitude=1)
    await made.leave("s")
    one = await made.told(place)
    assert one.status == "ended"
    assert "was handed all it wanted up to seq 1" in one.why


@situation()
async def it_left_before_it_came(made: ExplainWorld) -> None:
    await made.subscribe()
    await made.leave("s")
    one = await made.told(await made.produce(altitude=1))
    assert one.status == "ended"
    assert "before it came to the record: it was at seq 0" in one.why


@situation()
async def there_never_was_such_a_subscription(made: ExplainWorld) -> None:
    place = await made.produce(altitude=1)
    with pytest.raises(NotFound, match="no subscription 'nobody' is live, and nobody remembers"):
        await made.explain(place, subscription="nobody")


@situation()
async def its_subscription_is_to_another_topic(made: ExplainWorld) -> None:
    subscription = await made.subscribe()
    await made.cluster.create_topic(made.url, "ships", 1)
    event = OutgoingEvent({"knots": 1}, event_id="ship-1")
    await made.producer.send_many("ships", [event])
    with pytest.raises(NotFound, match=f"{subscription} is to flights, which has nothing of ships"):
        await made.explain("ship-1", subscription=subscription)


# --- slow subscribers ----------------------------------------------------------------------------


async def flood(made: ExplainWorld, count: int) -> None:
    text = "x" * 40_000
    for _ in range(count):
        await made.producer.send_many(TOPIC, [OutgoingEvent({"t": text}, key="a")])
    await asyncio.sleep(SOON_S)


@situation(SMALL)
async def it_waits_in_the_queue_of_a_slow_subscriber(made: ExplainWorld) -> None:
    await made.subscribe(reads=False)
    await flood(made, 24)
    places = [f"{TOPIC}:{await partition_of(made)}:{seq}" for seq in range(1, 25)]
    found = [await made_status(made, place) for place in places]
    assert found[0] == "delivered", "it was written to the connection"
    assert "waiting" in found
    assert found[-1] == "catching_up", "its queue is full, so the log keeps the rest"
    order = ["delivered", "waiting", "catching_up"]
    assert [order.index(one) for one in found] == sorted(order.index(one) for one in found)


@situation(SMALL)
async def it_was_left_out_for_one_that_is_too_slow(made: ExplainWorld) -> None:
    await made.subscribe(reads=False, priority="low")
    await flood(made, 30)
    partition = await partition_of(made)
    async with asyncio.timeout(60):
        subscriber = made.subscribers["s"]
        for _ in range(12):
            await asyncio.wait_for(anext(subscriber), 1.0)
    await asyncio.sleep(SOON_S)
    statuses = {seq: await made_status(made, f"{TOPIC}:{partition}:{seq}") for seq in range(1, 31)}
    assert "skipped" in statuses.values(), statuses
    seq = next(seq for seq, status in statuses.items() if status == "skipped")
    one = (await made.explain(f"{TOPIC}:{partition}:{seq}")).subscriptions[0]
    assert "when_slow: drop_oldest" in one.why
    assert "resync (slow)" in one.why


@situation(SMALL)
async def it_was_disconnected_for_being_too_slow(made: ExplainWorld) -> None:
    await made.subscribe(reads=False, priority="high", retry_attempts=0)
    await flood(made, 30)
    partition = await partition_of(made)
    answer = await made.explain(f"{TOPIC}:{partition}:30", subscription=made.ids["s"])
    [one] = answer.subscriptions
    assert one.status == "ended"
    assert "too slow" in one.why


async def partition_of(made: ExplainWorld) -> int:
    found = [ref.partition for ref, one in made.cluster.log.partitions.items() if one.records]
    return found[0]


async def made_status(made: ExplainWorld, place: str) -> str:
    """Without a look at what was read: it isn't read."""
    answer = await made.explain(place, subscription=made.ids["s"])
    return answer.subscriptions[0].status


# --- lanes and gateways --------------------------------------------------------------------------


@situation()
async def its_gateway_has_not_answered_yet(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(hangs):
        place = await made.produce(altitude=1)
        one = await made.told(place)
        assert one.status == "on_the_way"
        answer = await made.explain(place)
        assert (answer.status, answer.outcome) == ("on_the_way", "")


@situation()
async def it_is_parked(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(is_away):
        place = await made.produce(altitude=1)
        await asyncio.sleep(5.0)
        one = await made.told(place)
        assert one.status == "parked"
        assert "the gateway doesn't answer" in one.why
        answer = await made.explain(place)
        assert (answer.status, answer.outcome) == ("settled", "parked")
        assert [letter.state for letter in answer.letters] == ["parked"]


@situation()
async def it_is_parked_behind_another(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(is_away):
        await made.produce(altitude=1)
        await asyncio.sleep(5.0)
        place = await made.produce(altitude=2)
        await asyncio.sleep(5.0)
        assert (await made.told(place)).status == "parked"


@situation()
async def it_was_refused_for_good(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(always("rejected")):
        place = await made.produce(altitude=1)
    one = await made.told(place)
    assert one.status == "dead"
    assert "its gateway refused it for good" in one.why
    answer = await made.explain(place)
    assert (answer.outcome, answer.letters[0].reason) == ("dead", "rejected")


@situation(config(routing={"backpressure": {"queue_size": 10}, "batch": {"max_size": 1}}))
async def it_was_shed(made: ExplainWorld) -> None:
    await made.subscribe(priority="low")
    async with made.answering(hangs):
        events = [OutgoingEvent({"n": n}, key="a") for n in range(30)]
        await made.producer.send_many(TOPIC, events)
        await asyncio.sleep(1.0)
        found = [
            await made_status(made, f"{TOPIC}:{await partition_of(made)}:{seq}")
            for seq in range(1, 31)
        ]
        assert "dead" in found, found
        seq = found.index("dead") + 1
        answer = await made.explain(f"{TOPIC}:{await partition_of(made)}:{seq}")
        assert answer.letters[0].reason == "shed"
        assert "low priority" in answer.subscriptions[0].why


@situation()
async def nobody_wanted_it(made: ExplainWorld) -> None:
    await made.subscribe(where="altitude > 1")
    answer = await made.explain(await made.produce(altitude=1))
    assert (answer.status, answer.outcome) == ("settled", "unmatched")
    assert (answer.matched, answer.examined) == (0, 1)


@situation()
async def its_gateway_had_no_such_subscriber(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(always("no_subscriber")):
        place = await made.produce(altitude=1)
    one = await made.told(place)
    assert one.status == "released"
    assert (await made.explain(place)).outcome == "released"


# --- the record and its partition ----------------------------------------------------------------


@situation()
async def nothing_has_that_place_yet(made: ExplainWorld) -> None:
    await made.subscribe()
    await made.produce(altitude=1)
    answer = await made.explain(f"{TOPIC}:0:99")
    assert answer.status == "to_come"
    assert answer.subscriptions == []
    assert (await made.told(f"{TOPIC}:0:99")).status == "unknown"


@situation()
async def retention_took_it(made: ExplainWorld) -> None:
    await made.subscribe()
    first = await made.produce(altitude=1)
    await made.produce(altitude=2)
    made.lose(first, retained=True)
    answer = await made.explain(first)
    assert answer.status == "gone"
    assert answer.record is None
    assert [a.outcome for a in answer.attempts] == ["accepted"], "that is remembered a while longer"


@situation()
async def it_is_lost(made: ExplainWorld) -> None:
    first = await made.produce(altitude=1)
    second = await made.produce(altitude=2)
    await made.produce(altitude=3)
    made.lose(second)
    assert (await made.explain(second)).status == "missing"
    assert (await made.explain(first)).status == "settled"


@situation()
async def it_is_corrupt(made: ExplainWorld) -> None:
    place = await made.produce(altitude=1)
    made.damage(place)
    answer = await made.explain(place)
    assert answer.status == "corrupt"
    assert answer.record is None


@situation()
async def its_partition_stands_still_before_it(made: ExplainWorld) -> None:
    await made.subscribe()
    place = await made.produce(altitude=1)
    partition = int(place.split(":")[1])
    await made.written("insert", partition, damaged=True, document=b"{}", key="a")
    third = await made.written("insert", partition, document=b"{}", key="a")
    one = await made.told(third)
    assert one.status == "unread"
    assert "stands still" in one.why
    assert (await made.explain(third)).status == "unread"


@situation()
async def it_says_that_the_origin_has_lost_changes(made: ExplainWorld) -> None:
    await made.subscribe(where="altitude < 3000")
    place = await made.written("lost")
    answer = await made.explain(place)
    assert (answer.status, answer.outcome) == ("settled", "told")
    assert answer.subscriptions[0].verdict == "match"


@situation()
async def it_is_about_a_whole_collection(made: ExplainWorld) -> None:
    await made.subscribe(where='_collection == "ships"')
    await made.subscribe("planes", where='_collection == "planes"')
    place = await made.written("drop", collection="ships")
    assert (await made.told(place)).status == "delivered"
    assert (await made.told(place, "planes")).status == "not_matched"


# --- how it is asked for -------------------------------------------------------------------------


@situation()
async def it_is_found_by_its_event_id(made: ExplainWorld) -> None:
    place = await made.produce(altitude=1, id_="report-1")
    answer = await made.explain("report-1")
    assert f"{answer.topic}:{answer.partition}:{answer.seq}" == place
    assert (await made.explain("report-1", topic=TOPIC)).seq == answer.seq


@situation()
async def its_event_id_reads_like_a_place(made: ExplainWorld) -> None:
    """Of a topic that there isn't, or of another one than was named."""
    place = await made.produce(altitude=1, id_="order:0:17")
    other = await made.produce(altitude=2, id_=f"{TOPIC}.old:1:1")
    for record, given, found in (
        ("order:0:17", {}, place),
        ("order:0:17", {"topic": TOPIC}, place),
        (f"{TOPIC}.old:1:1", {}, other),
    ):
        answer = await made.explain(record, **given)
        assert f"{answer.topic}:{answer.partition}:{answer.seq}" == found
    with pytest.raises(UnknownTopic, match="there is no topic order; "):
        await made.explain("order:0:18")
    answer = await made.explain(place, topic=TOPIC)
    assert answer.record is not None


@situation()
async def its_event_id_is_in_the_log_twice(made: ExplainWorld) -> None:
    await made.produce("a", id_="report-1")
    await made.written("insert", 0, document=b"{}", key="a")
    for key in "bcdefgh":
        await made.produce(key, id_="report-1")
    answer = await made.explain("report-1")
    assert len(answer.elsewhere) == 1


@situation()
async def its_event_id_was_never_kept(made: ExplainWorld) -> None:
    """Connectors leave none: among the newest records it is found all the same."""
    place = await made.written("insert", 1, document=b"{}", key="a")
    answer = await made.explain("c-1")
    assert f"{answer.topic}:{answer.partition}:{answer.seq}" == place
    with pytest.raises(
        NotFound, match=r"ids are remembered for as long as ingest\.idempotency_ttl"
    ):
        await made.explain("c-2")


@situation()
async def there_is_no_such_place(made: ExplainWorld) -> None:
    with pytest.raises(HeadgateError, match="there is no topic flight; did you mean flights"):
        await made.explain("flight:0:1")
    with pytest.raises(NotFound, match="topic flights has no partition 7: it has 0 to 1"):
        await made.explain(f"{TOPIC}:7:1")


@situation()
async def a_filter_that_nobody_has_is_asked(made: ExplainWorld) -> None:
    place = await made.produce(altitude=1)
    [one] = (await made.explain(place, where="altitude == 1")).subscriptions
    assert one.status == "matches"
    [one] = (await made.explain(place, where="altitude == 2")).subscriptions
    assert one.status == "not_matched"
    with pytest.raises(HeadgateError, match="The filter is wrong at column 12"):
        await made.explain(place, where="altitude ==")


@situation()
async def a_document_is_not_produced(made: ExplainWorld) -> None:
    await made.subscribe(where="altitude < 3000")
    await made.subscribe("high", where="altitude > 3000")
    answer = await made.dry_run(DryRun(TOPIC, msgspec.Raw(b'{"altitude":1}'), key="a"))
    assert answer.status == "dry_run"
    assert [one.status for one in answer.subscriptions] == ["matches", "not_matched"]
    assert (answer.matched, answer.examined) == (1, 2)
    assert answer.attempts == []
    for never in (b"[]", b'"x"', b"1"):
        with pytest.raises(InvalidRequest, match="not a JSON object: it couldn't be produced"):
            await made.dry_run(DryRun(TOPIC, msgspec.Raw(never)))
    await asyncio.sleep(SOON_S)
    assert made.handed == {}
    assert all(not one.records for one in made.cluster.log.partitions.values())


# --- groups --------------------------------------------------------------------------------------


@situation()
async def a_group_has_it_in_hand_and_processes_it(made: ExplainWorld) -> None:
    consumer = await made.join()
    place = await made.produce(altitude=1)
    item = await anext(consumer)
    [group] = (await made.explain(place)).groups
    assert group.status == "in_hand"
    await consumer.acknowledge(item)
    await asyncio.sleep(5.0)
    [group] = (await made.explain(place)).groups
    assert (group.name, group.status) == ("g", "processed")
    targets = [one.id for one in made.cluster.gateways[0]._subscriptions if one.subscription.shard]
    found = {
        (await made.explain(place, subscription=name)).subscriptions[0].status for name in targets
    }
    assert found == {"processed", "other_target"} if len(targets) > 1 else {"processed"}


@situation()
async def a_group_does_not_want_it(made: ExplainWorld) -> None:
    await made.join(where="altitude > 1")
    [group] = (await made.explain(await made.produce(altitude=1))).groups
    assert group.status == "not_matched"


@situation()
async def a_group_has_no_consumer(made: ExplainWorld) -> None:
    await made.join()
    await made.leave("g")
    await asyncio.sleep(60.0)
    [group] = (await made.explain(await made.produce(altitude=1))).groups
    assert group.status == "no_consumer"


@situation()
async def a_group_has_given_it_up(made: ExplainWorld) -> None:
    consumer = await made.join(max_deliveries=1)
    place = await made.produce(altitude=1)
    await consumer.nack(await anext(consumer))
    await asyncio.sleep(10.0)
    [group] = (await made.explain(place)).groups
    assert group.status == "dead"
    assert "handed it too often in vain" in group.why


# --- what isn't known any more -------------------------------------------------------------------


@situation(config(evidence={"size": 0}))
async def nothing_is_remembered(made: ExplainWorld) -> None:
    await made.subscribe()
    place = await made.produce(altitude=1)
    assert (await made.told(place)).status == "delivered", "the gateway knows where it is"
    answer = await made.explain(place)
    assert answer.outcome == "unknown"
    assert answer.attempts == []
    assert any("aren't known any more" in note for note in answer.evidence.notes)


@situation(config(evidence={"age": 10.0}))
async def it_was_too_long_ago(made: ExplainWorld) -> None:
    await made.subscribe()
    place = await made.produce(altitude=1)
    assert (await made.explain(place)).outcome == "acknowledged"
    await asyncio.sleep(60.0)
    answer = await made.explain(place)
    assert answer.outcome == "unknown"
    assert "isn't known any more" in answer.why


@situation()
async def the_coordinator_is_away(made: ExplainWorld) -> None:
    await made.subscribe()
    place = await made.produce(altitude=1)
    await made.cluster.stop_coordinator()
    answer = await made.explain(place)
    assert answer.record is not None
    assert answer.outcome == ""
    assert any("isn't known" in note for note in answer.evidence.notes)
    await made.cluster.start_coordinator()


@situation()
async def its_gateway_says_nothing(made: ExplainWorld) -> None:
    await made.subscribe()
    place = await made.produce(altitude=1)
    witness = made.cluster.gateways[0]._hearing._witness
    witness.answer = lambda asked: Evidence(asked.number)  # type: ignore[method-assign]
    answer = await made.explain(place)
    [one] = answer.subscriptions
    assert one.status == "unknown"
    assert "gives no answer now" in one.why
    assert answer.evidence.silent == ["gateway-1, which gave no answer"]
    assert any("some said nothing" in note for note in answer.evidence.notes)


# --- several nodes -------------------------------------------------------------------------------


def test_who_reads_a_partition_now_does_not_speak_for_whoever_read_it_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that remembers long enough, and has read other records in that time."""
    kept: dict[Machine, LaneEvidence] = {}

    def of_the_process(settings: LaneSettings, machine: Machine) -> LaneEvidence:
        return kept.setdefault(machine, evidence_of(settings, machine))

    monkeypatch.setattr(run, "evidence_of", of_the_process)

    async def scenario(made: ExplainWorld) -> None:
        await made.subscribe()
        async with made.answering(always("no_subscriber")):
            places = [await made.produce(key, altitude=1) for key in "abcdefgh"]
        found = {place: await made.explain(place) for place in places}
        assert {one.outcome for one in found.values()} == {"released"}
        moving = next(place for place, one in found.items() if one.router == "router-2")
        async with made.cluster.http(made.url) as client:
            await client.post("/v1/nodes/router-2/drain", {}, NodeStatus)
        await asyncio.sleep(60.0)
        answer = await made.explain(moving)
        assert answer.router == "router-1"
        assert answer.outcome == "unknown", answer.why
        later = await made.produce(moving_key(places, moving), other=2)
        assert (await made.explain(later)).outcome != "unknown"

    def moving_key(places: list[str], moving: str) -> str:
        return "abcdefgh"[places.index(moving)]

    played(scenario, routers=2)


# --- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SITUATIONS)
def test_explain_says_what_is_true(name: str) -> None:
    bring_about, config = SITUATIONS[name]

    played(bring_about, config)


def test_there_are_thirty_situations_at_least() -> None:
    assert len(SITUATIONS) >= 30
