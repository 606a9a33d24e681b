"""A decision that fails ends the term it was made in, and nothing else: nothing of it is kept or
told, whoever waits is answered, and the next term begins with a state that is sound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.adapters.control_stream import ServerStream
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.decide.coordination.effects import Effect, Persist, Send
from headgate.decide.coordination.invariants import Contradiction, check
from headgate.decide.coordination.views.status import describe_topic
from headgate.decide.lane.checkpoints import Reset
from headgate.errors import Fenced, HeadgateError, NotNow, StorageFailed, TopicExists
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import IngestReport
from headgate.model.control.to_coordinator import Hello, SessionRole
from headgate.model.event import Fence, PartitionRef, Record
from headgate.model.stored import StoredReset, StoredState
from headgate.model.subscription import Subscription
from headgate.model.topology import Topic
from tests.decide.coordination.faults import Fault
from tests.services.coordinator.term_doubles import Call, FailingTerm, Stage
from tests.virtual_time import run_virtual

FLIGHTS = PartitionRef("flights", 0)
ANSWER_S = 5.0


def hello(role: SessionRole, node_id: str) -> Hello:
    return Hello(role=role, node_id=node_id, incarnation="a", url="http://x")


class Story:
    """What happens to a cluster within a minute. Every question to the coordinator is answered."""

    def __init__(self, stage: Stage, term: FailingTerm) -> None:
        self.stage, self.term = stage, term
        self.refusals: list[HeadgateError] = []

    async def ask(self, question: Awaitable[None]) -> None:
        try:
            await asyncio.wait_for(asyncio.ensure_future(question), ANSWER_S)
        except HeadgateError as refusal:
            self.refusals.append(refusal)

    async def play(self) -> None:
        stage, term = self.stage, self.term
        ingest = stage.connect(term, hello("ingest", "ingest-1"))
        router = stage.connect(term, hello("router", "router-1"))
        gateway = stage.connect(term, hello("gateway", "gateway-1"))
        client = stage.connect(term, hello("client", "client-1"))
        nodes = [ingest, router, gateway, client]
        await asyncio.sleep(1)
        cluster = term.cluster
        await self.ask(term.apply(lambda _: cluster.create_topic("flights", 3, "keyed")))
        for session in nodes:
            stage.say(session, to_coordinator.AckTopology(cluster.generation, ("flights",)))
        owns = tuple(cluster.sources.of_node("router-1"))
        lane = Hello(role="lane", node_id="router-1", incarnation="a", window=1, owns=owns)
        nodes.append(stage.connect(term, lane))
        subscription = Subscription("s-1", "gateway-1", "flights", ttl_ms=20_000)
        stage.say(gateway, to_coordinator.Register(1, (subscription,)))
        stage.say(gateway, to_coordinator.RegistrationComplete())
        consumer = to_coordinator.JoinGroup(
            topic="flights", group="g", consumer="c", incarnation="1"
        )
        stage.say(gateway, consumer)
        await asyncio.sleep(1)
        nodes.append(stage.connect(term, hello("router", "router-2")))
        nodes.append(stage.connect(term, hello("ingest", "ingest-2")))
        await asyncio.sleep(2)
        await self.ask(term.apply(lambda now: cluster.reset(FLIGHTS, Reset(7), now)))
        stage.say(nodes[4], to_coordinator.Released(owns))
        await self.ask(term.apply(lambda now: cluster.drain("router-2", now)))
        await self.ask(term.until(lambda: not cluster.resets.all(), timeout_s=ANSWER_S))
        stage.say(ingest, to_coordinator.Goodbye())
        for _ in range(40):
            for session in nodes:
                stage.say(session, to_coordinator.CheckIn())
            await asyncio.sleep(1)
        await self.ask(term.apply(lambda _: cluster.delete_topic("flights")))


async def _played(stage: Stage, lines: int) -> None:
    """One term, in which the decisions fail after so many of their lines."""
    term = await stage.begin()
    stage.faults.left = lines
    over = asyncio.ensure_future(term.over())
    story = Story(stage, term)
    await story.play()
    if stage.faults.struck:
        assert term.is_over
        assert isinstance(over.exception(), Fault)
        assert all(isinstance(refusal, NotNow) for refusal in story.refusals)
        assert stage.known_outside() == term.at_the_fault, "kept or told after the fault"
        with pytest.raises(NotNow):
            await term.apply(lambda _: term.cluster.create_topic("more", 1, "keyed"))
    else:
        assert not over.done()
        assert story.refusals == []
    over.cancel()
    await stage.end(term)


async def _goes_on(stage: Stage) -> None:
    """The next term begins with what was kept, and decides."""
    stage.faults.left = None
    term = await stage.begin()
    check(term.cluster)
    router = stage.connect(term, hello("router", "router-3"))
    await term.apply(lambda _: term.cluster.create_topic("ships", 2, "keyed"))
    await asyncio.sleep(70)
    assert stage.heard(router, from_coordinator.Welcome)
    assert not term.is_over
    await stage.end(term)


LINES = 25_000
"""Somewhat fewer than the decisions of the story have."""


@settings(max_examples=20)
@given(lines=st.integers(1, LINES))
@example(lines=1)
@example(lines=LINES)
def test_a_decision_may_fail_at_any_line(lines: int) -> None:
    async def fails_and_goes_on() -> None:
        stage = Stage()
        await _played(stage, lines)
        assert stage.faults.struck
        await _goes_on(stage)

    run_virtual(fails_and_goes_on())


def test_without_a_fault_everybody_gets_what_they_ask_for() -> None:
    async def plays_to_its_end() -> None:
        stage = Stage()
        await _played(stage, 10 * LINES)
        assert not stage.faults.struck
        await _goes_on(stage)

    run_virtual(plays_to_its_end())


# --- one by one -----------------------------------------------------------------------------------


def on_stage(play: Callable[[Stage, FailingTerm], Awaitable[None]]) -> None:
    async def played() -> None:
        stage = Stage()
        term = await stage.begin()
        await play(stage, term)
        await stage.end(term)

    run_virtual(played())


def raising(*_: object, **__: object) -> list[Effect]:
    raise KeyError("nobody thought of that")


def test_whoever_waits_for_something_is_answered_when_the_term_ends() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        waiting = asyncio.ensure_future(term.until(lambda: False, timeout_s=3_600))
        await asyncio.sleep(1)
        with pytest.raises(NotNow, match="begins anew"):
            await term.apply(raising)
        with pytest.raises(NotNow, match="another begins"):
            await asyncio.wait_for(waiting, 1)

    on_stage(play)


def test_whoever_waits_is_answered_when_the_leadership_is_given_up() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        waiting = asyncio.ensure_future(term.until(lambda: False, timeout_s=3_600))
        await asyncio.sleep(1)
        await stage.end(term)
        with pytest.raises(Fenced):
            await asyncio.wait_for(waiting, 1)

    on_stage(play)


def test_whoever_asked_for_what_hangs_is_answered_when_the_term_ends() -> None:
    """It isn't who asked that is cancelled then: a stream that takes it for that would be dead."""

    async def play(stage: Stage, term: FailingTerm) -> None:
        async def hang(_state: object) -> None:
            await asyncio.sleep(3_600)

        stage.kept.save = hang  # type: ignore[assignment, method-assign]
        created = term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        asking = asyncio.ensure_future(created)
        await asyncio.sleep(1)
        await stage.end(term)
        with pytest.raises(NotNow, match="another begins"):
            await asking

    on_stage(play)


def test_nobody_acts_on_what_is_decided_before_it_is_kept_whoever_goes_away() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        goes_on, save = asyncio.Event(), stage.kept.save

        async def slow(state: StoredState) -> None:
            await goes_on.wait()
            await save(state)

        stage.kept.save = slow  # type: ignore[method-assign]
        created = term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        asking = asyncio.ensure_future(created)
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(
            term.until(lambda: "flights" in term.cluster.topics, timeout_s=60)
        )
        deciding = asyncio.ensure_future(term.apply(lambda _: []))
        await asyncio.sleep(1)
        assert "flights" in term.cluster.topics
        assert not waiting.done()
        assert not deciding.done()
        asking.cancel()
        goes_on.set()
        await asyncio.gather(waiting, deciding)
        assert [topic.name for topic in stage.kept.saved[-1].topics] == ["flights"]

    on_stage(play)


def test_an_epoch_is_above_that_of_the_letters_too() -> None:
    """The positions and the coordinator's state were lost, the letters were not."""

    async def play(stage: Stage, term: FailingTerm) -> None:
        await stage.letters.claim({FLIGHTS: Fence(99, 7)})
        router = stage.connect(term, hello("router", "router-1"))
        stage.connect(term, hello("ingest", "ingest-1"))
        await asyncio.sleep(1)
        await term.apply(lambda _: term.cluster.create_topic("flights", 3, "keyed"))
        for _ in range(20):
            stage.say(router, to_coordinator.AckTopology(term.cluster.generation, ("flights",)))
            await asyncio.sleep(1)
        [owner] = [one for one in term.cluster.sources.of_node("router-1") if one.ref == FLIGHTS]
        assert owner.epoch > 99

    on_stage(play)


def test_effects_say_all_that_it_takes_to_carry_them_out() -> None:
    """Also when the state is that of a later event by then."""

    async def play(stage: Stage, term: FailingTerm) -> None:
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        effects = term.cluster.reset(FLIGHTS, Reset(7), term.now_ms())
        term.cluster.delete_topic("flights")
        expected = StoredReset(FLIGHTS, 7, is_released=True)
        assert [e.state.resets for e in effects if isinstance(e, Persist)][-1] == (expected,)
        await term._carry_out(effects)
        assert (await stage.positions.list())[FLIGHTS].settled == 7

    on_stage(play)


def test_a_tick_that_fails_ends_the_term() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        term.cluster.plan_at_ms = None  # type: ignore[assignment]  # a fault of somebody's
        with pytest.raises(TypeError):
            await asyncio.wait_for(term.over(), 10)

    on_stage(play)


def test_an_end_of_the_ticks_is_the_end_of_the_term() -> None:
    """Whatever ended them: a coordinator for which no time passes decides nothing any more."""

    async def play(stage: Stage, term: FailingTerm) -> None:
        assert term._ticker is not None
        term._ticker.cancel()
        with pytest.raises(RuntimeError, match="no time passes"):
            await term.over()

    on_stage(play)


def test_what_waited_for_its_turn_is_not_decided_from_a_torn_state() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        def torn(_now_ms: int) -> list[Effect]:
            term.cluster.topics["half"] = Topic("half", 1)
            raise KeyError("nobody thought of that")

        before = stage.known_outside()
        asked = [
            asyncio.ensure_future(term.apply(decide))
            for decide in (torn, lambda _: term.cluster.create_topic("whole", 1, "keyed"))
        ]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [NotNow, NotNow]
        assert stage.known_outside() == before

    on_stage(play)


def test_a_state_that_contradicts_itself_is_neither_kept_nor_told() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        term.cluster.logs.take(FLIGHTS, "ingest-9")
        before = stage.known_outside()
        with pytest.raises(NotNow) as refused:
            await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        assert isinstance(refused.value.__cause__, Contradiction)
        assert stage.known_outside() == before
        assert not term.cluster.topics
        with pytest.raises(Contradiction, match="owners are known"):
            await term.over()

    on_stage(play)


def test_news_that_cannot_be_taken_in_end_the_term_too() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        client = stage.connect(term, hello("client", "client-1"))
        await asyncio.sleep(1.1)
        stage.faults.left = 1
        stage.say(client, to_coordinator.AckTopology(1, ("flights",)))
        with pytest.raises(Fault):
            await asyncio.wait_for(term.over(), 10)
        assert term.ended_by == hello("client", "client-1")

    on_stage(play)


def test_what_cannot_be_told_ends_the_term_and_holds_nobody() -> None:
    class Unsayable(ServerStream):
        def send(self, message: from_coordinator.FromCoordinator) -> None:
            raise OverflowError("nobody thought of such a number")

    async def play(stage: Stage, term: FailingTerm) -> None:
        told: list[Effect] = [Send(7, from_coordinator.AllRead())]
        stage.streams[7] = Unsayable(Call())
        for decide in (lambda _: told, term.cluster.tick, term.cluster.rebalance):
            with pytest.raises(NotNow):
                await asyncio.wait_for(term.apply(decide), ANSWER_S)
        with pytest.raises(NotNow):
            await asyncio.wait_for(term.until(lambda: False, timeout_s=60), ANSWER_S)
        with pytest.raises(OverflowError):
            await term.over()

    on_stage(play)


def test_a_store_whose_call_was_cancelled_by_nobody_ends_the_term() -> None:
    """What was decided is not kept, and nothing that follows from it may be told."""

    async def play(stage: Stage, term: FailingTerm) -> None:
        async def cancelled(_state: object) -> None:
            raise asyncio.CancelledError

        save, stage.kept.save = stage.kept.save, cancelled  # type: ignore[assignment, method-assign]
        with pytest.raises(NotNow):
            await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        stage.kept.save = save  # type: ignore[method-assign]
        with pytest.raises(NotNow):
            await term.apply(term.cluster.tick)
        with pytest.raises(RuntimeError, match="was cancelled"):
            await term.over()

    on_stage(play)


def test_a_refusal_is_an_answer_and_ends_nothing() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        kept = stage.known_outside()
        with pytest.raises(TopicExists):
            await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        assert stage.known_outside() == kept
        assert not term.is_over

    on_stage(play)


def test_a_store_that_fails_ends_the_term_with_its_own_words() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        stage.kept.error = StorageFailed("the disk is full")
        with pytest.raises(StorageFailed):
            await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        with pytest.raises(StorageFailed):
            await term.over()
        with pytest.raises(NotNow):
            await term.apply(term.cluster.tick)

    on_stage(play)


class AwayReader(MemoryLogReader):
    """Says so only after a while, each time, as PostgreSQL's does."""

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        await asyncio.sleep(10)
        raise StorageFailed(f"reading {ref} failed: it is away")


def test_whoever_asks_for_the_state_is_answered_at_once_while_the_log_is_away() -> None:
    async def play() -> None:
        stage = Stage()
        stage.reader = AwayReader()
        term = await stage.begin()
        ingest = stage.connect(term, hello("ingest", "ingest-1"))
        await asyncio.sleep(1)
        await term.apply(lambda _: term.cluster.create_topic("flights", 12, "keyed"))
        heads = tuple((ref, 7) for ref in term.cluster.topics["flights"].refs())
        stage.say(ingest, IngestReport(heads))
        await asyncio.sleep(1)
        async with asyncio.timeout(ANSWER_S):
            stored = await term.stored()
        assert stored.oldest_ms == {}
        await stage.end(term)

    run_virtual(play())


class SilentReader(MemoryLogReader):
    """Fails while it is away."""

    away = True

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        if self.away:
            raise StorageFailed(f"reading {ref} failed: it is away")
        at = (ref.topic, ref.partition, after_seq + 1)
        return [Record(*at, 1, "e", None, "", "insert", b"{}", None, None, 5_000)]


def test_an_age_that_nobody_can_tell_is_told_as_what_it_is_at_least() -> None:
    async def play() -> None:
        stage = Stage()
        stage.reader = reader = SilentReader()
        term = await stage.begin()
        ingest = stage.connect(term, hello("ingest", "ingest-1"))
        await asyncio.sleep(1)
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        [ref] = term.cluster.topics["flights"].refs()
        stage.say(ingest, IngestReport(((ref, 7),)))
        await asyncio.sleep(1)

        async def seen() -> tuple[int, bool]:
            wall_ms = term._wall_ms()
            stored = await term.stored()
            [detail] = describe_topic(
                term.cluster,
                term.cluster.topics["flights"],
                stored=stored,
                now_ms=term.now_ms(),
                wall_ms=wall_ms,
            ).details
            return wall_ms - detail.lag_ms, detail.lag_known

        since_ms, is_known = await seen()
        assert not is_known
        await asyncio.sleep(40)
        assert await seen() == (since_ms, False)
        reader.away = False
        assert await seen() == (5_000, True)
        reader.away = True
        await asyncio.sleep(40)
        assert await seen() == (5_000, True), "it hasn't moved since"
        await stage.end(term)

    run_virtual(play())


def test_what_cannot_be_read_is_refused_with_a_reason() -> None:
    async def play(stage: Stage, term: FailingTerm) -> None:
        ingest = stage.connect(term, hello("ingest", "ingest-1"))
        await asyncio.sleep(1)
        stage.calls[ingest].incoming.put_nowait(msgspec.msgpack.encode({"type": "Prophecy"}))
        await asyncio.sleep(0.1)
        [refused] = stage.heard(ingest, from_coordinator.Refused)
        assert "Prophecy" in refused.reason
        assert ingest not in stage.streams
        assert not term.is_over

    on_stage(play)
