"""What /v1/explain says after somebody has intervened: an operator who deleted, sent again or
skipped, a coordinator that began anew, a producer whose retry is in the log twice.

Like test_situations.py, `told` compares every answer with what was really handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate.client.producing.outgoing import OutgoingEvent
from headgate.client.subscriber import Subscriber
from headgate.config import Config
from headgate.errors import NotNow
from headgate.model.client_messages import Event, Resync
from tests.explaining.world import SOON_S, TOPIC, ExplainWorld, always, is_away, played

Situation = Callable[[ExplainWorld], Coroutine[Any, Any, None]]
SITUATIONS: dict[str, Situation] = {}


def situation(made: Situation) -> Situation:
    SITUATIONS[made.__name__] = made
    return made


# --- the same event twice ------------------------------------------------------------------------


@situation
async def whoever_had_the_event_from_elsewhere_does_not_get_it_again(made: ExplainWorld) -> None:
    await made.subscribe("first")
    place = await made.appended("e", 0, n=1)
    await made.subscribe("second")
    repeat = await made.appended("e", 1, n=1)
    assert (await made.told(place, "first")).status == "delivered"
    one = await made.told(repeat, "first")
    assert (one.status, one.why) == (
        "repeat",
        f"it had the same event before, from {place}, so the repeat was dropped",
    )
    assert (await made.told(repeat, "second")).status == "delivered", "it came behind the first"


@situation
async def a_group_had_the_event_from_elsewhere(made: ExplainWorld) -> None:
    consumer = await made.join()
    place = await made.appended("e", 0, n=1)
    await consumer.acknowledge(await anext(consumer))
    repeat = await made.appended("e", 1, n=1)
    [group] = (await made.explain(repeat)).groups
    assert (group.status, f"from {place}" in group.why) == ("repeat", True)


# --- letters that are gone -----------------------------------------------------------------------


@situation
async def its_letter_is_deleted(made: ExplainWorld) -> None:
    """A position goes on past a dead letter; that doesn't mean that it was sent."""
    await made.subscribe()
    async with made.answering(always("rejected")):
        place = await made.produce(n=1)
    await made.produce(n=2)
    await made.letters_are("deleted", place)
    one = await made.told(place)
    assert one.status == "dead"
    assert "it became a dead letter at" in one.why
    assert "hasn't been delivered since" in one.why
    assert (await made.explain(place)).outcome == "dead"


@situation
async def its_letter_is_sent_again_before_anything_newer_came(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(always("rejected")):
        place = await made.produce(n=1)
    await made.letters_are("retried", place, wait="3s")
    one = await made.told(place)
    assert one.status == "delivered"
    assert "sent again, outside the order" in one.why


@situation
async def its_letter_is_on_its_way_again(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(always("rejected")):
        place = await made.produce(n=1)
    async with made.answering(is_away):
        await made.letters_are("retried", place)
        one = await made.told(place)
    assert one.status == "parked"
    assert "is being sent again" in one.why


@situation
async def a_group_gave_it_up_and_the_letter_is_deleted(made: ExplainWorld) -> None:
    consumer = await made.join(max_deliveries=1)
    place = await made.produce(n=1)
    await consumer.nack(await anext(consumer))
    await asyncio.sleep(10.0)
    await made.produce(n=2)
    await consumer.acknowledge(await anext(consumer))
    await asyncio.sleep(5.0)
    await made.letters_are("deleted", place)
    [group] = (await made.explain(place)).groups
    assert (group.status, "became a dead letter" in group.why) == ("dead", True)


@situation
async def a_group_processes_what_it_gave_up(made: ExplainWorld) -> None:
    consumer = await made.join(max_deliveries=1)
    place = await made.produce(n=1)
    await consumer.nack(await anext(consumer))
    await asyncio.sleep(10.0)
    await made.letters_are("retried", place)
    await consumer.acknowledge(await anext(consumer))
    await asyncio.sleep(5.0)
    [group] = (await made.explain(place)).groups
    assert group.status == "processed"


@situation
async def a_group_is_told_to_go_past_what_it_has(made: ExplainWorld) -> None:
    """Its consumer acknowledges the place up to which it was told to resync."""
    consumer = await made.join()
    await made.produce(n=1)
    last = await made.produce(n=2)
    await made.leave("g")
    await made.reset_group("latest")
    [group] = (await made.explain(last)).groups
    assert (group.status, "or where a reset wants it" in group.why) == ("no_consumer", True)
    consumer = await made.join()
    assert isinstance(await anext(consumer), Resync)
    [group] = (await made.explain(last)).groups
    assert group.status == "skipped"


# --- resets --------------------------------------------------------------------------------------


async def held_up(made: ExplainWorld) -> tuple[int, str]:
    """A partition that stands still before a record that nobody can read, and the one behind it."""
    first = await made.produce(n=1)
    partition = int(first.split(":")[1])
    await made.written("insert", partition, damaged=True, document=b"{}", key="a")
    return partition, await made.written("insert", partition, document=b"{}", key="a")


@situation
async def an_operator_goes_past_it_in_silence(made: ExplainWorld) -> None:
    await made.subscribe()
    partition, place = await held_up(made)
    await made.reset(partition, 4)
    assert (await made.told(place)).status == "skipped"
    assert (await made.told(await made.produce(n=4))).status == "delivered"
    one = await made.told(place)
    assert one.status == "skipped", "its position is beyond it, and it never had it"
    assert "without telling subscribers" in one.why
    answer = await made.explain(place)
    assert (answer.status, answer.outcome) == ("settled", "skipped")
    await made.subscribe("reader", start="earliest")
    await asyncio.sleep(SOON_S)
    assert (await made.told(place, "reader")).status == "delivered", "the log has it all the same"


@situation
async def an_operator_goes_past_it_and_back_again(made: ExplainWorld) -> None:
    await made.subscribe()
    partition, place = await held_up(made)
    await made.reset(partition, 4, resync=True)
    one = await made.told(place)
    assert (one.status, "an operator had it passed over" in one.why) == ("skipped", True)
    answer = await made.explain(place)
    assert (answer.status, answer.outcome) == ("settled", "told"), answer.why
    await made.reset(partition, 3)
    assert (await made.told(place)).status == "delivered"
    assert (await made.explain(place)).outcome == "acknowledged"


@situation
async def a_reset_brings_what_is_a_dead_letter_still(made: ExplainWorld) -> None:
    await made.subscribe()
    async with made.answering(always("rejected")):
        place = await made.produce(n=1)
    await made.reset(int(place.split(":")[1]), "earliest")
    assert (await made.told(place)).status == "delivered"
    assert [one.state for one in (await made.explain(place)).letters] == ["dead"]


@situation
async def a_reset_brings_what_was_dropped_as_a_repeat(made: ExplainWorld) -> None:
    await made.subscribe()
    await made.appended("e", 0, n=1)
    repeat = await made.appended("e", 1, n=1)
    assert (await made.told(repeat)).status == "repeat"
    await made.reset(1, "earliest")
    assert (await made.told(repeat)).status == "delivered"


# --- what can't be read any more -----------------------------------------------------------------


@situation
async def it_is_damaged_after_it_was_sent(made: ExplainWorld) -> None:
    await made.subscribe()
    place = await made.produce(n=1)
    made.damage(place)
    assert (await made.explain(place)).status == "corrupt"
    one = await made.told(place)
    assert (one.status, "that is remembered" in one.why) == ("delivered", True)


# --- what isn't so -------------------------------------------------------------------------------


@situation
async def a_group_began_behind_it(made: ExplainWorld) -> None:
    """Its position is beyond the record, which nobody has processed."""
    place = await made.produce(n=1)
    await made.join()
    [group] = (await made.explain(place)).groups
    assert (group.status, "began after seq 1" in group.why) == ("before", True)


@situation
async def its_groups_gateway_had_no_such_consumer(made: ExplainWorld) -> None:
    """A lane has settled it, so nobody waits for a lane."""
    await made.join()
    async with made.answering(always("no_subscriber")):
        place = await made.produce(n=1)
    [group] = (await made.explain(place)).groups
    assert (group.status, "no_subscriber" in group.why) == ("unknown", True)


@situation
async def it_is_parked_for_a_group_and_refused_for_good(made: ExplainWorld) -> None:
    """By a lane, as for any subscriber."""
    await made.join()
    async with made.answering(is_away):
        place = await made.produce("a", n=1)
        await asyncio.sleep(5.0)
        [group] = (await made.explain(place)).groups
        assert (group.status, "parked for gateway-1" in group.why) == ("parked", True)
    await asyncio.sleep(30.0)
    async with made.answering(always("rejected")):
        place = await made.produce("a", n=2)
    [group] = (await made.explain(place)).groups
    assert (group.status, "refused it for good" in group.why) == ("dead", True)


def test_what_one_takes_another_need_not_have_taken() -> None:
    """A copy for whom it may concern has one verdict for all of them."""

    async def scenario(made: ExplainWorld) -> None:
        await made.subscribe("first")
        async with made.answering(always("rejected")):
            place = await made.produce(n=1)
        await made.subscribe("second")
        await made.reset(int(place.split(":")[1]), "earliest")
        for name in ("first", "second"):
            await made.told(place, name)

    played(scenario, Config.model_validate({"routing": {"mode": "broadcast"}}))


def test_a_gateway_that_was_just_started_knows_nothing_yet() -> None:
    """It doesn't say that there is no such record, or no such topic."""

    async def scenario(made: ExplainWorld) -> None:
        place = await made.produce(n=1, id_="report-1")
        await made.cluster.stop_coordinator()
        started = made.cluster.gateway("gateway-2")
        await started.start()
        async with made.cluster.http(started.url) as client:
            for path in (
                f"explain?record={place}",
                "explain?record=report-1",
                f"topics/{TOPIC}/records",
            ):
                with pytest.raises(NotNow, match="has not heard from the coordinator yet"):
                    await client.call("GET", f"/v1/{path}")
        await started.stop()
        await made.cluster.start_coordinator()

    played(scenario)


def test_nobody_is_said_to_have_what_nobody_remembers_of() -> None:
    async def scenario(made: ExplainWorld) -> None:
        await made.subscribe(acks="auto")
        async with made.answering(always("rejected")):
            place = await made.produce(n=1)
        await made.produce(n=2)
        await made.letters_are("deleted", place)
        answer = await made.explain(place, subscription=made.ids["s"])
        [one] = answer.subscriptions
        assert (one.status, "nobody remembers" in one.why) == ("processed", True)

    played(scenario, Config.model_validate({"evidence": {"size": 0}}))


# --- who has left --------------------------------------------------------------------------------


async def its_subscriber_left_after_it_was_left_out(made: ExplainWorld) -> None:
    await made.subscribe(reads=False, priority="low")
    for _ in range(30):
        [receipt] = await made.producer.send_many(
            TOPIC, [OutgoingEvent({"t": "x" * 40_000}, key="a")]
        )
    assert not isinstance(receipt, Exception)
    await asyncio.sleep(SOON_S)
    subscriber = made.subscribers["s"]
    assert isinstance(subscriber, Subscriber)
    had = set()
    for _ in range(12):
        item = await anext(subscriber)
        if isinstance(item, Event):
            had.add(item.seq)
    await asyncio.sleep(SOON_S)
    places = {seq: f"{TOPIC}:{receipt.partition}:{seq}" for seq in range(1, 31)}
    left_out = [seq for seq, place in places.items() if await status(made, place) == "skipped"]
    assert left_out
    assert had.isdisjoint(left_out)
    await made.leave("s")
    for seq in left_out:
        answer = await made.explain(places[seq], subscription=made.ids["s"])
        [one] = answer.subscriptions
        assert one.status == "ended"
        assert "before that it was too slow, and this was left out" in one.why


async def status(made: ExplainWorld, place: str) -> str:
    answer = await made.explain(place, subscription=made.ids["s"])
    return answer.subscriptions[0].status


def test_of_whoever_left_it_is_known_what_was_left_out() -> None:
    small = {"gateway": {"subscriber_queue": 4}}
    played(its_subscriber_left_after_it_was_left_out, Config.model_validate(small))


# --- the coordinator -----------------------------------------------------------------------------


@situation
async def a_new_coordinator_has_not_heard_of_everybody(made: ExplainWorld) -> None:
    """Nobody is said to have left, or never to have been, before all were heard."""
    await made.subscribe()
    place = await made.produce(n=1)
    await made.cluster.stop_coordinator()
    await made.cluster.start_coordinator()
    found: list[str] = []
    while not found or found[-1] != "delivered":
        answer = await made.explain(place, subscription=made.ids["s"])
        found.append(answer.subscriptions[0].status)
        if found[-1] == "unknown":
            assert any(
                "hasn't heard of all subscribers yet" in one for one in answer.evidence.notes
            )
        await asyncio.sleep(0.05)
    assert set(found) == {"unknown", "delivered"}


# --- a whole collection --------------------------------------------------------------------------


@situation
async def a_whole_collection_concerns_every_target_of_a_group(made: ExplainWorld) -> None:
    consumer = await made.join()
    place = await made.written("drop", collection="ships")
    [group] = (await made.explain(place)).groups
    assert group.status == "in_hand"
    targets = int(group.why.rsplit(": ", 1)[1].split()[0])
    for _ in range(targets):
        await consumer.acknowledge(await anext(consumer))
    await asyncio.sleep(5.0)
    [group] = (await made.explain(place)).groups
    assert group.status == "processed"
    assert f"{targets} processed" in group.why


@pytest.mark.parametrize("name", SITUATIONS)
def test_explain_says_what_is_true(name: str) -> None:
    played(SITUATIONS[name])
