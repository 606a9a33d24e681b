"""A consumer's conversation against a model gateway, with everything that may go wrong at any
message: in order, nothing missing, nothing again that was acknowledged, and a target is given back
only when nothing of it is in the user's hands."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate import errors
from headgate.decide.conversation import handed_out as hands
from headgate.decide.conversation.common import Acks, Phase
from headgate.decide.conversation.consumer import (
    MOST_AT_WORK,
    MOST_BYTES,
    MOST_DELIVERIES,
    RENEW_EVERY_S,
    SOONEST_S,
    Membership,
)
from headgate.decide.conversation.patience import Patience
from headgate.decide.conversation.wanted_later import Again, place_of
from headgate.model.client_messages import Event, Resync, decode_for_consumer, seq_of
from tests.client.model_gateway import Group, ModelGateway, event
from tests.decide.conversation.driver import Driver

REQUEST = {"type": "join", "topic": "a", "group": "g", "consumer": "c"}
REFUSALS = {
    "for now": {"code": "unavailable", "message": "not now", "details": {}},
    "for good": {"code": "invalid", "message": "no", "details": {}},
}


def joined(
    acks: Acks = "auto", *, keys: int = 1, max_deliveries: int = 0
) -> tuple[Membership, Driver]:
    membership = Membership(acks, Patience(), REQUEST, max_deliveries=max_deliveries)
    driver = Driver(membership, ModelGateway(logs={"a": 2}, keys=keys), decode_for_consumer)
    driver.do(membership.enter())
    while driver.go_on():
        pass
    assert membership.phase is Phase.LIVE
    return membership, driver


KEYS = 2
CALLERS = ("one", "another")


class Consuming(RuleBasedStateMachine):
    acks: Acks = "auto"

    def __init__(self) -> None:
        super().__init__()
        self.membership, self.driver = joined(self.acks, keys=KEYS)
        self.gateway = self.driver.gateway
        self.gateway.append("a", 4)
        while self.driver.go_on():
            pass
        self.processed: set[int] = set()
        """The oracle: what the user has acknowledged."""
        self.epoch = self.gateway.groups["g"].epoch
        """Under which something was handed out last."""
        self.may_come_again: set[int] = set()
        """What was acknowledged before an epoch that may have been somebody else's."""
        self.last: dict[str, Event] = {}
        """What each caller took and, with acks="auto", works on."""
        self.handed_out: list[Event] = []
        self.released = 0
        self.working: dict[tuple[int, int], Event] = {}
        """What is in the user's hands, by seq and epoch."""
        self.highest = {f"k{number}": number - KEYS for number in range(KEYS)} | {"k0": 0}
        """Per key, the last that was handed out."""
        self.later: set[int] = set()
        """Those that wait until they are handed out again."""

    @property
    def group(self) -> Group:
        return self.gateway.groups["g"]

    # --- what the user does ----------------------------------------------------------------------

    @precondition(lambda self: self.acks == "manual")
    @rule()
    def asks_for_several(self) -> None:
        for _ in range(3):
            self.asks(CALLERS[0])

    @rule(caller=st.sampled_from(CALLERS))
    def asks(self, caller: str) -> None:
        last = self.last.pop(caller, None)
        if self.acks == "auto" and last is not None:
            self.processed.add(last.seq)
            self._is_done_with(last)
        try:
            item = self.driver.take(caller)
        except errors.HeadgateError:
            return
        if item is not None:
            assert isinstance(item, Event)
            if item.epoch > self.epoch + 1:
                self.may_come_again |= self.processed
            self.epoch = max(self.epoch, item.epoch)
            assert item.seq not in self.processed - self.may_come_again, "it was acknowledged"
            self.may_come_again.discard(item.seq)
            assert item.key is not None
            assert item.seq <= self.highest[item.key] + KEYS, "nothing is passed over"
            self.highest[item.key] = max(self.highest[item.key], item.seq)
            waiting = [seq for seq in self.later if seq % KEYS == item.seq % KEYS]
            assert item.seq <= min(waiting, default=item.seq), "it passes one that waits"
            self.later.discard(item.seq)
            self.handed_out.append(item)
            self.working[item.seq, item.epoch] = item
            self.last[caller] = item

    def _is_done_with(self, item: Event) -> None:
        self.working.pop((item.seq, item.epoch), None)

    @precondition(lambda self: self.last)
    @rule(data=st.data(), delay_s=st.sampled_from((0.0, 1.0)))
    def wants_it_later(self, data: st.DataObject, delay_s: float) -> None:
        caller = data.draw(st.sampled_from(sorted(self.last)))
        self._nack(self.last.pop(caller), delay_s)

    @precondition(lambda self: self.acks == "manual" and self.handed_out)
    @rule(data=st.data(), delay_s=st.sampled_from((0.0, 1.0, 2.0)))
    def wants_any_later(self, data: st.DataObject, delay_s: float) -> None:
        """Whether it is in hand or not."""
        self._nack(data.draw(st.sampled_from(self.handed_out)), delay_s)

    @precondition(lambda self: self.acks == "manual" and self.working)
    @rule(data=st.data(), delays_s=st.lists(st.sampled_from((0.0, 1.0, 2.0)), min_size=2))
    def wants_some_later(self, data: st.DataObject, delays_s: list[float]) -> None:
        """In any order."""
        some = data.draw(st.permutations(list(self.working.values())))
        for item, delay_s in zip(some, delays_s, strict=False):
            self._nack(item, delay_s)

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def never_saw_it(self, data: st.DataObject) -> None:
        """It came in the moment at which a thread was interrupted."""
        caller = data.draw(st.sampled_from(sorted(self.last)))
        item = self.last.pop(caller)
        self.driver.do(self.membership.put_back(caller, self.driver.now_s))
        self._is_given_back(item)

    def _nack(self, item: Event, delay_s: float) -> None:
        self.driver.do(self.membership.nack(item, delay_s, self.driver.now_s))
        self._is_given_back(item)

    def _is_given_back(self, item: Event) -> None:
        self._is_done_with(item)
        if self._is_to_come_again(item):
            self.later.add(item.seq)

    def _is_to_come_again(self, item: Event) -> bool:
        """It waits for its time, or to be taken."""
        waiting = [one.item for one in self.membership.waiting if isinstance(one, Again)]
        share = self.membership._shares.get(item.target)
        is_ours = share is not None and share.epoch == item.epoch and share.has_in_hand(item)
        found = self.membership._later.find(place_of(item))
        return found is not None or (is_ours and item.seq in map(seq_of, waiting))

    @rule()
    def time_passes(self) -> None:
        self.driver.now_s += 1.0
        self.driver.do(self.membership.reminded(self.driver.now_s))

    @precondition(lambda self: self.acks == "manual" and self.handed_out)
    @rule(data=st.data())
    def acknowledges(self, data: st.DataObject) -> None:
        """Any that was ever handed out, in any order, whoever owns it now."""
        item = data.draw(st.sampled_from(self.handed_out))
        is_remembered = self._is_in_hand(item)
        self.driver.do(self.membership.ack(item, self.driver.now_s))
        self._is_done_with(item)
        self.later.discard(item.seq)
        if is_remembered:
            self.processed.add(item.seq)

    def _is_in_hand(self, item: Event) -> bool:
        """Under whatever epoch: it was handed out and is not settled."""
        return item.seq > self.group.settled

    # --- what happens ----------------------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def appends(self, count: int) -> None:
        self.gateway.append("a", count)

    @precondition(lambda self: self.driver.inbox)
    @rule(count=st.integers(1, 5))
    def messages_arrive(self, count: int) -> None:
        for _ in range(count):
            if self.driver.inbox:
                self.driver.deliver()

    @precondition(lambda self: self.driver.session is not None)
    @rule()
    def connection_is_lost(self) -> None:
        self.later.clear()
        self.driver.lose()

    @precondition(lambda self: self.driver.is_wanted)
    @rule()
    def connects(self) -> None:
        self.driver.connect()

    @precondition(lambda self: self.driver.is_wanted)
    @rule()
    def nobody_is_there(self) -> None:
        self.driver.fail_to_connect()

    @rule(how=st.sampled_from(sorted(REFUSALS)))
    def is_refused(self, how: str) -> None:
        self.gateway.refused["c"] = REFUSALS[how]

    @rule()
    def nobody_is_refused(self) -> None:
        self.gateway.refused.clear()

    @precondition(lambda self: self.driver.session is not None and self.driver.session.group)
    @rule()
    def target_is_asked_for(self) -> None:
        assert self.driver.session is not None
        self.later.clear()  # that is for the next owner
        self.driver.session.revoke()

    @precondition(lambda self: self.driver.session is not None and self.driver.session.group)
    @rule(taken=st.booleans())
    def target_is_given_again(self, taken: bool) -> None:
        """After it was released, or taken away."""
        session = self.driver.session
        assert session is not None
        self.later.clear()
        if taken and self.group.owner is session:
            self.driver.send({"type": "revoked", "target": 0, "epoch": self.group.epoch})
            self.group.owner = None
        if self.group.owner is None:
            session.assign()

    @invariant()
    def the_gateway_hears_no_nonsense(self) -> None:
        assert not self.gateway.mistakes

    @invariant()
    def what_is_settled_was_processed(self) -> None:
        assert set(range(1, self.group.settled + 1)) <= self.processed

    @invariant()
    def it_is_released_only_when_nothing_is_worked_on(self) -> None:
        released = [one for one in self.driver.said if one["type"] == "released"]
        if len(released) > self.released:
            assert not self.working
        self.released = len(released)

    # --- the end ---------------------------------------------------------------------------------

    def teardown(self) -> None:
        self.gateway.refused.clear()
        self.later.clear()
        if self.driver.session is not None:
            self.driver.lose()
        for _ in range(1_000):
            while self.driver.go_on():
                pass
            live = self.membership.phase is Phase.LIVE and not self.membership.waiting
            if live and self.group.owner is None and self.driver.session is not None:
                self.driver.session.assign()
                continue
            for caller in CALLERS:
                self.asks(caller)
            if self.acks == "manual" and self.last:
                # Else no more than a gateway hands out without an acknowledgement would come.
                for item in self.last.values():
                    self.driver.do(self.membership.ack(item, self.driver.now_s))
                    self._is_done_with(item)
                    self.processed.add(item.seq)
                self.last.clear()
            elif live:
                break
        assert max(self.highest.values()) == self.gateway.logs["a"], "everything came"
        assert {one.seq for one in self.handed_out} == set(range(1, self.gateway.logs["a"] + 1))
        self.driver.do(self.membership.close())
        while self.driver.go_on():
            pass
        assert self.membership.phase is Phase.CLOSED
        assert self.gateway.left == 1


class ConsumingByHand(Consuming):
    acks: Acks = "manual"


BOUNDS = settings(max_examples=40, stateful_step_count=40)
TestAuto = Consuming.TestCase
TestAuto.settings = BOUNDS
TestManual = ConsumingByHand.TestCase
TestManual.settings = BOUNDS


# --- single rules --------------------------------------------------------------------------------


def take(driver: Driver) -> Event:
    item = driver.take()
    assert isinstance(item, Event)
    return item


def test_a_target_is_released_when_the_last_of_it_is_acknowledged_and_not_before() -> None:
    membership, driver = joined("manual")
    first, second = take(driver), take(driver)
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    driver.do(membership.ack(second, 0.0))
    assert driver.said[-1]["type"] == "renew"
    driver.do(membership.ack(first, 0.0))
    assert [one["type"] for one in driver.said[-2:]] == ["ack", "released"]
    assert not membership.targets


def sent_again(driver: Driver, seq: int) -> None:
    driver.send(event("a", seq, target=0, epoch=1) | {"redelivery": True})
    driver.deliver()


def test_what_comes_again_is_in_hand_until_it_is_acknowledged() -> None:
    membership, driver = joined("manual")
    ordinary = [take(driver), take(driver)]
    for seq in (1, 2):
        sent_again(driver, seq)
    again = [take(driver), take(driver)]
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    for item in ordinary:
        driver.do(membership.ack(item, 0.0))
    assert membership.targets, "it still works on it"
    driver.do(membership.ack(again[1], 0.0))
    assert driver.said[-1]["redelivered"] == {"0": [2]}
    driver.do(membership.ack(again[1], 0.0))
    driver.do(membership.ack(again[0], 0.0))
    assert [one["type"] for one in driver.said[-2:]] == ["ack", "released"]
    assert driver.said[-2]["redelivered"] == {"0": [1]}


def test_who_asks_for_the_next_is_done_with_what_came_again() -> None:
    _, driver = joined()
    take(driver), take(driver)
    sent_again(driver, 1)
    take(driver)
    assert driver.take() is None
    assert driver.said[-1]["redelivered"] == {"0": [1]}


def test_what_is_processed_is_said_though_the_next_one_takes_long() -> None:
    membership, driver = joined()
    driver.now_s = membership._said_s
    take(driver), take(driver)
    assert driver.gateway.groups["g"].settled == 0, "acknowledgements are said together"
    assert driver.reminder_s is not None
    driver.now_s = driver.reminder_s
    driver.do(membership.reminded(driver.now_s))
    assert driver.gateway.groups["g"].settled == 1
    assert membership.reminded(driver.now_s) == ()


def test_so_is_what_is_processed_behind_what_was_so_before_a_lost_connection() -> None:
    membership, driver = joined()
    driver.gateway.append("a", 2)
    driver.now_s = membership._said_s
    take(driver), take(driver)
    driver.lose()  # before it was said that the first one is processed
    driver.reminder_s = -1.0
    while driver.go_on():
        pass
    driver.now_s = membership._said_s
    take(driver), take(driver)
    assert driver.reminder_s > driver.now_s
    driver.now_s = driver.reminder_s
    driver.do(membership.reminded(driver.now_s))
    assert driver.gateway.groups["g"].settled == 3


def test_a_store_that_is_away_is_waited_for() -> None:
    membership, driver = joined()
    driver.gateway.refused["c"] = {"code": "storage_failed", "message": "!", "details": {}}
    driver.lose()
    for _ in range(3):
        assert membership.phase is Phase.CONNECTING
        driver.connect()
        driver.deliver()
    assert driver.take() is None
    driver.gateway.refused.clear()
    while driver.go_on():
        pass
    assert take(driver).seq == 1


def test_while_it_works_on_what_is_asked_for_it_says_so() -> None:
    membership, driver = joined("manual")
    items = [take(driver), take(driver)]
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    for _ in range(3):
        assert driver.said[-1] == {"type": "renew", "target": 0, "epoch": 1}
        assert driver.reminder_s == driver.now_s + RENEW_EVERY_S
        driver.now_s, driver.reminder_s = driver.reminder_s, None
        driver.said.clear()
        driver.do(membership.reminded(driver.now_s))
    for item in items:
        driver.do(membership.ack(item, driver.now_s))
    assert membership.reminded(driver.now_s) == ()


@pytest.mark.parametrize("acks", ["auto", "manual"])
def test_what_nobody_saw_is_what_comes_next(acks: Acks) -> None:
    membership, driver = joined(acks)
    assert take(driver).seq == 1
    driver.do(membership.put_back("", driver.now_s))
    assert [take(driver).seq, take(driver).seq] == [1, 2]
    assert driver.gateway.groups["g"].settled <= 1


def test_what_several_never_saw_comes_in_the_order_of_the_log() -> None:
    membership, driver = joined()
    assert [driver.take(caller) is not None for caller in CALLERS] == [True, True]
    for caller in CALLERS:
        driver.do(membership.put_back(caller, driver.now_s))
    assert [take(driver).seq, take(driver).seq] == [1, 2]


def test_what_nobody_saw_holds_no_target_back() -> None:
    membership, driver = joined()
    take(driver)
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    driver.do(membership.put_back("", driver.now_s))
    assert driver.said[-1]["type"] == "released"
    assert driver.take() is None


# --- failing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["auto", "manual"])
def test_the_one_thing_that_a_failing_program_works_on_has_failed(acks: Acks) -> None:
    """Whoever took it may wait for the next one, while another task works on it."""
    membership, driver = joined(acks, max_deliveries=3)
    first, second = take(driver), take(driver)
    if acks == "manual":
        driver.do(membership.ack(first, driver.now_s))
        assert driver.take() is None
    driver.do(membership.failing())
    driver.do(membership.close())
    said = [one for one in driver.said if one["type"] in ("nack", "leave")]
    place = {"target": 0, "epoch": 1, "partition": 0, "seq": second.seq}
    assert said == [{"type": "nack", **place, "deliveries": 1}, {"type": "leave"}]


@pytest.mark.parametrize("acks", ["auto", "manual"])
def test_of_several_any_may_be_what_a_program_fails_with(acks: Acks) -> None:
    membership, driver = joined(acks, max_deliveries=3)
    assert (driver.take("one"), driver.take("another")) != (None, None)
    driver.do(membership.failing())
    driver.do(membership.close())
    said = [one for one in driver.said if one["type"] in ("nack", "leave")]
    assert said == [{"type": "leave", "failed": True}]


def test_a_resync_is_nothing_that_one_fails_with() -> None:
    membership, driver = joined("manual", max_deliveries=3)
    for item in [take(driver), take(driver)]:
        driver.do(membership.ack(item, driver.now_s))
    resync = {"type": "resync", "subscription": "", "topic": "a", "partition": 0, "after": 2}
    driver.send(resync | {"from": 9, "reason": "retention", "target": 0, "epoch": 1})
    driver.deliver()
    assert isinstance(driver.take(), Resync)
    assert membership.failing() == ()


def test_what_comes_again_says_nothing_of_how_often_its_record_failed() -> None:
    """It is at work, and named when the consumer connects again; the record is not."""
    membership, driver = joined("manual", max_deliveries=3)
    driver.do(membership.ack(take(driver), driver.now_s))
    driver.do(membership.nack(take(driver), 60.0, driver.now_s))
    driver.send(event("a", 1, target=0, epoch=1, redelivery=True))
    driver.deliver()
    assert take(driver).redelivery
    driver.lose()
    while driver.go_on():
        pass
    [*_, request] = [one for one in driver.said if one["type"] == "join"]
    assert request["at_work"] == [[0, 0, 1, MOST_DELIVERIES]], "no count of a record reaches that"


def test_a_join_is_never_longer_than_a_gateway_reads() -> None:
    """Whatever filter and positions it begins with: what it works on is named as far as it fits."""
    filling = {"where": "é" * 24_000, "from": {str(n): 10**11 for n in range(64)}}
    membership = Membership("manual", Patience(), REQUEST | filling, max_deliveries=3)
    for seq in range(MOST_AT_WORK):
        membership._hands.take((0, 0, 10**12 + seq, False, 1), 1)
    [request] = membership._requests()
    assert MOST_BYTES - 30 < len(request) <= MOST_BYTES
    assert 0 < len(msgspec.json.decode(request)["at_work"]) < MOST_AT_WORK


def test_two_redeliveries_of_one_record_are_worked_on_by_themselves() -> None:
    membership, driver = joined("manual")
    for item in [take(driver), take(driver)]:
        driver.do(membership.ack(item, driver.now_s))
    for _ in range(2):
        driver.send(event("a", 1, target=0, epoch=1, redelivery=True))
        driver.deliver()
    one, other = take(driver), take(driver)
    driver.do(membership.ack(one, driver.now_s))
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    assert driver.said[-1]["type"] == "renew", "the other one is in the user's hands"
    driver.do(membership.ack(other, driver.now_s))
    assert driver.said[-1]["type"] == "released"


# --- wanted later --------------------------------------------------------------------------------


def test_a_reminder_that_came_early_is_not_wanted_again_at_once() -> None:
    """Timers fire up to the resolution of their clock too early; until then nobody spins."""
    membership, driver = joined("manual")
    driver.do(membership.nack(take(driver), 5.0, driver.now_s))
    assert driver.reminder_s == driver.now_s + 5.0
    driver.now_s += 5.0 - 1e-10
    driver.do(membership.reminded(driver.now_s))
    assert driver.reminder_s >= driver.now_s + SOONEST_S


def test_what_is_wanted_later_comes_again_before_the_rest_of_its_key() -> None:
    membership, driver = joined()
    driver.gateway.append("a", 2)
    while driver.go_on():
        pass
    first = take(driver)
    driver.do(membership.nack(first, 5.0, driver.now_s))
    assert driver.take() is None, "all are of its key"
    assert driver.gateway.groups["g"].settled == 0
    assert driver.reminder_s is not None
    driver.now_s = driver.reminder_s
    driver.do(membership.reminded(driver.now_s))
    assert [take(driver).seq for _ in range(4)] == [1, 2, 3, 4]
    assert driver.take() is None
    assert driver.gateway.groups["g"].settled == 4


def test_what_is_wanted_later_is_not_passed_by_its_key_in_another_partition() -> None:
    """A key has its records elsewhere once its topic is repartitioned, under seqs of its own."""
    membership, driver = joined("manual")
    driver.do(membership.ack(take(driver), driver.now_s))
    second = take(driver)
    driver.do(membership.nack(second, 5.0, driver.now_s))
    its = {"key": second.key, "target": 0, "epoch": 1}
    driver.send(event("a", 1) | its | {"partition": 1, "version": 2})
    driver.send(event("a", 3) | its | {"version": 3})
    driver.deliver()
    driver.deliver()
    assert driver.take() is None, "both stand behind it"
    driver.now_s += 5.0
    driver.do(membership.reminded(driver.now_s))
    came = [take(driver) for _ in range(3)]
    assert [(one.partition, one.seq) for one in came] == [(0, 2), (1, 1), (0, 3)]
    for one in reversed(came):
        driver.do(membership.nack(one, 0.0, driver.now_s))
    assert [take(driver).version for _ in range(3)] == [1, 2, 3]


def test_another_key_does_not_wait() -> None:
    membership, driver = joined("manual")
    items = [take(driver), take(driver)]
    driver.send(event("a", 3, target=0, epoch=1) | {"key": "another"})
    driver.deliver()
    driver.do(membership.nack(items[0], 5.0, driver.now_s))
    assert take(driver).seq == 3


def held(driver: Driver) -> list[list[list[object]]]:
    return [one["items"] for one in driver.said if one["type"] == "held"]


def test_a_gateway_hears_what_the_user_does_not_have_until_they_do() -> None:
    membership, driver = joined("manual", max_deliveries=3)
    first = take(driver)
    driver.do(membership.nack(first, 5.0, driver.now_s))
    assert held(driver) == [[[0, 1, False]]]
    assert driver.take() is None
    assert held(driver)[1:] == [[[0, 1, False], [0, 2, False]]], "2 stands behind it"
    assert driver.take() is None
    assert len(held(driver)) == 2, "nothing has changed"
    driver.now_s += 5.0
    driver.do(membership.reminded(driver.now_s))
    assert held(driver)[2:] == [[]]
    assert [take(driver).seq, take(driver).seq] == [1, 2]


def test_a_gateway_hears_what_is_processed_though_no_position_reaches_it() -> None:
    membership, driver = joined("manual", keys=2, max_deliveries=3)
    first, second = take(driver), take(driver)
    driver.do(membership.nack(first, 5.0, driver.now_s))
    driver.do(membership.ack(second, driver.now_s))
    assert held(driver)[1:] == [[[0, 1, False], [0, 2, False]]]
    driver.now_s += 5.0
    driver.do(membership.reminded(driver.now_s))
    assert held(driver)[2:] == [[]], "there is something that the user may have"


def test_what_is_released_by_an_acknowledgement_is_said_with_it() -> None:
    membership, driver = joined("manual", max_deliveries=3)
    first = take(driver)
    driver.do(membership.nack(first, 500.0, driver.now_s))
    assert driver.take() is None
    driver.do(membership.ack(first, driver.now_s))
    assert [one["type"] for one in driver.said[-2:]] == ["ack", "held"]
    assert held(driver)[-1] == []


@pytest.mark.parametrize(("limit", "hears"), [(0, True), (3, False)])
def test_what_is_held_back_is_said_to_nobody_who_does_not_ask_for_it(
    limit: int, hears: bool
) -> None:
    membership, driver = joined("manual", max_deliveries=limit)
    driver.gateway.hears_held = hears
    driver.lose()
    while driver.go_on():
        pass
    driver.do(membership.nack(take(driver), 5.0, driver.now_s))
    assert driver.take() is None
    assert not held(driver)


def test_on_another_connection_what_is_held_back_is_said_anew() -> None:
    membership, driver = joined("manual", max_deliveries=3)
    driver.do(membership.nack(take(driver), 500.0, driver.now_s))
    driver.lose()
    while driver.go_on():
        pass
    driver.do(membership.nack(take(driver), 500.0, driver.now_s))
    assert held(driver) == [[[0, 1, False]]] * 2


def test_what_is_wanted_later_holds_no_target_back() -> None:
    membership, driver = joined("manual")
    items = [take(driver), take(driver)]
    driver.do(membership.ack(items[1], driver.now_s))
    driver.do(membership.nack(items[0], 500.0, driver.now_s))
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    assert driver.said[-1]["type"] == "released"
    assert driver.gateway.groups["g"].settled == 0, "the next owner gets it"


def test_no_position_passes_what_stands_behind_one_that_is_wanted_later() -> None:
    membership, driver = joined()
    driver.send(event("a", 3, target=0, epoch=1) | {"key": "another"})
    driver.deliver()
    driver.do(membership.nack(take(driver), 5.0, driver.now_s))
    assert take(driver).seq == 3, "2 stands behind 1"
    driver.now_s += 5.0
    driver.do(membership.reminded(driver.now_s))
    assert [take(driver).seq, take(driver).seq] == [1, 2]


def test_they_come_again_in_the_order_of_the_log() -> None:
    membership, driver = joined("manual")
    one, two = take(driver), take(driver)
    driver.do(membership.nack(two, 5.0, driver.now_s))
    driver.do(membership.nack(one, 5.0, driver.now_s))
    driver.now_s += 5.0
    driver.do(membership.reminded(driver.now_s))
    assert [take(driver).seq, take(driver).seq] == [1, 2]


@pytest.mark.parametrize("delays_s", [(0.0, 0.0), (1.0, 5.0), (5.0, 1.0), (0.0, 5.0)])
def test_they_do_so_also_where_their_times_come_one_by_one(delays_s: tuple[float, float]) -> None:
    membership, driver = joined("manual")
    for item, delay_s in zip([take(driver), take(driver)], delays_s, strict=True):
        driver.do(membership.nack(item, delay_s, driver.now_s))
    for _ in range(6):
        driver.now_s += 1.0
        driver.do(membership.reminded(driver.now_s))
    assert [take(driver).seq, take(driver).seq] == [1, 2]


NACKS = st.tuples(st.integers(1, 6), st.sampled_from((0.0, 1.0, 2.0)))


@given(steps=st.lists(st.lists(NACKS, max_size=3), min_size=1, max_size=6))
def test_whatever_is_wanted_later_and_when_it_passes_none_of_its_key(
    steps: list[list[tuple[int, float]]],
) -> None:
    """A step: some are wanted later, a second passes, and one is taken."""
    membership, driver = joined("manual", keys=2)
    driver.gateway.append("a", 4)
    while driver.go_on():
        pass
    in_hand = {item.seq: item for item in [take(driver) for _ in range(6)]}
    later: set[int] = set()
    for nacks in [*steps, *[[]] * 9]:
        for seq, delay_s in nacks:
            if seq in in_hand:
                driver.do(membership.nack(in_hand.pop(seq), delay_s, driver.now_s))
                later.add(seq)
        driver.now_s += 1.0
        driver.do(membership.reminded(driver.now_s))
        item = driver.take()
        if item is not None:
            assert isinstance(item, Event)
            assert item.seq == min(seq for seq in later if seq % 2 == item.seq % 2)
            later.remove(item.seq)
            in_hand[item.seq] = item
    assert not later, "all have come again"


def test_one_whose_time_has_come_stands_behind_an_earlier_one() -> None:
    membership, driver = joined("manual")
    one, two = take(driver), take(driver)
    driver.do(membership.nack(two, 0.0, driver.now_s))
    driver.do(membership.nack(one, 30.0, driver.now_s))
    assert driver.take() is None
    driver.now_s += 30.0
    driver.do(membership.reminded(driver.now_s))
    assert [take(driver).seq, take(driver).seq] == [1, 2]


def test_one_whose_time_has_come_holds_no_target_back() -> None:
    membership, driver = joined("manual")
    one, two = take(driver), take(driver)
    driver.do(membership.ack(two, driver.now_s))
    driver.do(membership.nack(one, 0.0, driver.now_s))
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    assert driver.said[-1]["type"] == "released"


def test_to_want_it_later_twice_is_to_want_it_once() -> None:
    membership, driver = joined("manual")
    one, two = take(driver), take(driver)
    for _ in range(2):
        driver.do(membership.nack(one, 5.0, driver.now_s))
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    assert driver.said[-1]["type"] == "renew", "2 is worked on"
    driver.do(membership.ack(two, driver.now_s))
    assert driver.said[-1]["type"] == "released"


def test_what_comes_again_can_not_be_wanted_later_before_it_does() -> None:
    membership, driver = joined("manual")
    one = take(driver)
    for _ in range(2):
        driver.do(membership.nack(one, 0.0, driver.now_s))
    assert [take(driver).seq, take(driver).seq] == [1, 2]
    assert driver.take() is None


def test_what_is_acknowledged_after_all_does_not_come_again() -> None:
    membership, driver = joined("manual")
    driver.gateway.append("a", 1)
    while driver.go_on():
        pass
    first = take(driver)
    driver.do(membership.nack(first, 5.0, driver.now_s))
    assert driver.take() is None
    driver.do(membership.ack(first, driver.now_s))
    assert [take(driver).seq, take(driver).seq] == [2, 3]
    driver.now_s += 10.0
    driver.do(membership.reminded(driver.now_s))
    assert driver.take() is None


def test_what_waits_behind_is_not_passed_by_a_position() -> None:
    """A record of another key comes after it, and is acknowledged while it waits."""
    membership, driver = joined("manual")
    first = take(driver)
    driver.do(membership.nack(first, 5.0, driver.now_s))
    driver.send(event("a", 3, target=0, epoch=1) | {"key": "another"})
    driver.deliver()
    driver.do(membership.ack(take(driver), driver.now_s))
    driver.now_s += 5.0
    driver.do(membership.reminded(driver.now_s))
    driver.do(membership.ack(take(driver), driver.now_s))
    assert driver.said[-1]["positions"] == {"0": 1}, "the second one isn't processed"
    second = take(driver)
    assert second.seq == 2
    driver.do(membership.ack(second, driver.now_s))
    assert driver.said[-1]["positions"] == {"0": 3}


@pytest.mark.parametrize("how", ["nacked", "acknowledged"])
def test_a_target_is_kept_while_another_copy_of_the_same_message_is_worked_on(how: str) -> None:
    membership, driver = joined("manual")
    former = take(driver)
    driver.lose()
    while driver.go_on():
        pass
    copy = take(driver)
    assert (copy.seq, copy.epoch) == (former.seq, former.epoch + 1)
    if how == "nacked":
        driver.do(membership.nack(former, 0.0, driver.now_s))
    else:
        driver.do(membership.ack(former, driver.now_s))
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    assert driver.said[-1]["type"] == "renew"
    driver.do(membership.ack(copy, driver.now_s))
    assert driver.said[-1]["type"] == "released"


def test_what_may_come_again_and_nobody_has_taken_holds_no_target_back() -> None:
    membership, driver = joined("manual")
    first, second = take(driver), take(driver)
    driver.do(membership.nack(first, 1.0, driver.now_s))
    driver.now_s += 1.0
    driver.do(membership.reminded(driver.now_s))
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    assert driver.take() is None, "it is asked for"
    driver.do(membership.ack(second, driver.now_s))
    assert driver.said[-1]["type"] == "released"


@pytest.mark.parametrize("acks", ["auto", "manual"])
def test_a_target_is_kept_while_one_from_before_a_lost_connection_is_worked_on(acks: Acks) -> None:
    membership, driver = joined(acks)
    first = take(driver)
    driver.lose()
    while driver.go_on():
        pass
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    assert membership.targets, "its user works on the first one"
    assert driver.said[-1]["type"] == "renew"
    if acks == "manual":
        driver.do(membership.ack(first, driver.now_s))
    else:
        assert driver.take() is None
    assert driver.said[-1]["type"] == "released"
    assert not membership.targets


def test_also_when_its_log_does_not_have_that_one_any_more() -> None:
    """Retention was quicker, so the target begins after it."""
    membership, driver = joined("manual")
    first = take(driver)
    driver.lose()
    while driver.go_on():
        pass
    driver.send({"type": "assigned", "target": 0, "epoch": 9, "positions": {"0": 7}})
    driver.send({"type": "revoke", "target": 0, "epoch": 9})
    driver.deliver()
    driver.deliver()
    assert membership.targets, "its user works on the first one"
    driver.do(membership.ack(first, driver.now_s))
    assert not membership.targets


@pytest.mark.parametrize("is_working", [True, False])
def test_a_target_that_is_asked_for_before_it_came_back(*, is_working: bool) -> None:
    """Its gateway has nothing of it in hand, and can't know what the user works on."""
    membership, driver = joined("manual")
    first = take(driver)
    driver.lose()
    driver.connect()
    driver.deliver()  # joined, and nothing is assigned yet
    if not is_working:
        driver.do(membership.ack(first, driver.now_s))
    driver.inbox.clear()
    driver.send({"type": "revoke", "target": 0, "epoch": 9})
    driver.deliver()
    assert driver.said[-1]["type"] == ("renew" if is_working else "released")
    driver.do(membership.ack(first, driver.now_s))
    assert driver.said[-1] == {"type": "released", "target": 0, "epoch": 9}
    assert not membership.targets


def test_what_is_not_in_hand_cannot_be_wanted_later() -> None:
    membership, driver = joined("manual")
    first = take(driver)
    driver.do(membership.ack(first, 0.0))
    assert membership.nack(first, 1.0, 0.0) == ()
    second = take(driver)
    driver.lose()
    assert membership.nack(second, 1.0, 0.0) == ()


def begins_again(driver: Driver, reason: str) -> None:
    """The connection is lost, and the log of two records with its history; two new ones come."""
    driver.lose()
    driver.gateway.groups["g"].settled = 0
    driver.gateway.logs["a"] = 0
    while driver.go_on():
        pass
    resync = {"type": "resync", "subscription": "", "topic": "a", "partition": 0, "after": 0}
    driver.send(resync | {"from": 1, "reason": reason, "target": 0, "epoch": 2})
    driver.gateway.append("a", 2)
    while driver.go_on():
        pass


@pytest.mark.parametrize("tells", [True, False])
def test_after_a_loss_of_history_nothing_is_taken_for_a_repeat(*, tells: bool) -> None:
    """Also where an older gateway has no word for it."""
    membership, driver = joined()
    take(driver), take(driver)
    assert driver.take() is None
    driver.gateway.tells_lost_history = tells
    begins_again(driver, "lost_history" if tells else "retention")
    assert isinstance(driver.take(), Resync)
    assert [take(driver).seq, take(driver).seq] == [1, 2]
    assert membership.phase is Phase.LIVE


def test_what_an_operator_wants_again_is_handed_out_though_it_was_processed_here() -> None:
    membership, driver = joined("manual")
    former = [take(driver), take(driver)]
    driver.do(membership.ack(former[0], driver.now_s))
    begins_again(driver, "reset")
    resync = driver.take()
    assert isinstance(resync, Resync)
    driver.do(membership.ack(resync, driver.now_s))
    driver.do(membership.ack(former[1], driver.now_s))
    new = [take(driver), take(driver)]
    assert [item.seq for item in new] == [1, 2]
    assert driver.gateway.groups["g"].settled == 0
    for item in new:
        driver.do(membership.ack(item, driver.now_s))
    assert driver.gateway.groups["g"].settled == 2


@pytest.mark.parametrize("again", [False, True])
def test_what_was_lost_with_the_history_says_nothing_of_what_has_its_seq_now(
    *, again: bool
) -> None:
    """Also where the target was lost once more since."""
    membership, driver = joined("manual")
    former = [take(driver), take(driver)]
    begins_again(driver, "lost_history")
    resync = driver.take()
    assert isinstance(resync, Resync)
    driver.do(membership.ack(resync, driver.now_s))
    new = [take(driver), take(driver)]
    if again:
        driver.lose()
        while driver.go_on():
            pass
        new = [take(driver), take(driver)]
    for item in former:
        driver.do(membership.ack(item, driver.now_s))
    assert driver.gateway.groups["g"].settled == 0
    for item in new:
        driver.do(membership.ack(item, driver.now_s))
    assert driver.gateway.groups["g"].settled == 2


def test_what_retention_took_from_the_beginning_is_no_loss_of_history() -> None:
    """What was processed here behind it, and nobody has heard, doesn't come again."""
    membership, driver = joined("manual")
    for item in [take(driver), take(driver)]:
        driver.do(membership.ack(item, driver.now_s))
    driver.lose()
    driver.gateway.groups["g"].settled = 0
    driver.gateway.logs["a"] = 0
    while driver.go_on():
        pass
    resync = {"type": "resync", "subscription": "", "topic": "a", "partition": 0, "after": 0}
    driver.send(resync | {"from": 2, "reason": "retention", "target": 0, "epoch": 2})
    driver.send(event("a", 2, target=0, epoch=2))
    while driver.go_on():
        pass
    assert driver.take() is None
    assert driver.said[-1]["positions"] == {"0": 2}


def test_what_does_not_come_any_more_is_told_though_the_last_of_it_was_processed() -> None:
    """The first event was wanted later, when an operator had the group go past both."""
    membership, driver = joined("manual")
    first, second = take(driver), take(driver)
    driver.do(membership.ack(second, driver.now_s))
    driver.do(membership.nack(first, 30.0, driver.now_s))
    driver.lose()
    driver.gateway.logs["a"] = 0
    while driver.go_on():
        pass
    resync = {"type": "resync", "subscription": "", "topic": "a", "partition": 0, "after": 0}
    driver.send(resync | {"from": 3, "reason": "gap", "target": 0, "epoch": 2})
    while driver.go_on():
        pass
    told = driver.take()
    assert isinstance(told, Resync)
    assert driver.gateway.groups["g"].settled == 0, "the user hasn't heard it yet"
    driver.do(membership.ack(told, driver.now_s))
    assert driver.said[-1]["positions"] == {"0": 2}


def test_what_was_processed_of_a_group_that_was_made_anew_says_nothing_about_it() -> None:
    membership, driver = joined()
    take(driver), take(driver)
    assert driver.take() is None
    driver.lose()
    driver.gateway.groups["g"].settled = 0
    joined_before = membership.joined
    assert joined_before is not None
    membership.joined = msgspec.structs.replace(joined_before, targets=99)
    while driver.go_on():
        pass
    assert [take(driver).seq, take(driver).seq] == [1, 2]


def test_nothing_of_a_target_that_is_asked_for_is_handed_out() -> None:
    membership, driver = joined()
    take(driver)
    assert driver.session is not None
    driver.session.revoke()
    driver.deliver()
    assert membership.waiting
    assert driver.take() is None
    assert driver.said[-1]["type"] == "released"


@pytest.mark.parametrize("was_joined", [False, True])
def test_who_is_closed_while_it_joins_says_that_it_leaves(*, was_joined: bool) -> None:
    membership = Membership("auto", Patience(), REQUEST)
    gateway = ModelGateway(logs={"a": 2}, silent=set() if was_joined else {"c"})
    driver = Driver(membership, gateway, decode_for_consumer)
    driver.do(membership.enter())
    while driver.go_on():
        pass
    if was_joined:
        gateway.silent.add("c")
        driver.lose()
        driver.connect()
    driver.do(membership.close())
    assert driver.said[-1] == {"type": "leave"}
    assert membership.phase is Phase.CLOSED, "nobody waits for an answer"
    assert (gateway.left, gateway.mistakes) == (1, [])


def test_nothing_is_said_before_the_join_is_answered() -> None:
    membership, driver = joined("manual")
    items = [take(driver), take(driver)]
    driver.gateway.silent.add("c")
    driver.lose()
    driver.connect()
    said = len(driver.said)
    for item in items:
        driver.do(membership.ack(item, 0.0))
    driver.do(membership.asked(0.0))
    assert len(driver.said) == said
    driver.gateway.answer("c")
    while driver.go_on():
        pass
    assert driver.take() is None, "both are processed"
    assert driver.said[-1]["positions"] == {"0": 2}


@pytest.mark.parametrize("lost", ["connection", "target"])
def test_what_was_acknowledged_out_of_turn_does_not_come_again(lost: str) -> None:
    membership, driver = joined("manual")
    first, second = take(driver), take(driver)
    driver.do(membership.ack(second, 0.0))
    if lost == "connection":
        driver.lose()
    else:
        assert driver.session is not None
        driver.send({"type": "revoked", "target": 0, "epoch": 1})
        driver.session.assign()
    while driver.go_on():
        pass
    again = take(driver)
    assert again.seq == first.seq
    assert driver.take() is None
    driver.do(membership.ack(again, 0.0))
    assert driver.gateway.groups["g"].settled == 2


@pytest.mark.parametrize("lost", ["connection", "target"])
@pytest.mark.parametrize("settled", [0, 1])
def test_behind_what_somebody_else_was_handed_meanwhile_all_comes_again(
    lost: str, settled: int
) -> None:
    """Who had the target in between may have begun with older events of the keys again; ours of
    then would stand before those."""
    membership, driver = joined("manual")
    first, second = take(driver), take(driver)
    driver.do(membership.ack(second, 0.0))
    if settled:
        driver.do(membership.ack(first, 0.0))
    group = driver.gateway.groups["g"]
    group.settled = settled
    group.epoch += 1
    if lost == "connection":
        driver.lose()
    else:
        assert driver.session is not None
        driver.send({"type": "revoked", "target": 0, "epoch": 1})
        driver.session.assign()
    while driver.go_on():
        pass
    driver.do(membership.ack(first, 0.0))
    assert [take(driver).seq for _ in range(2 - settled)] == [1, 2][settled:]


def test_what_was_never_handed_out_can_not_be_acknowledged() -> None:
    membership, driver = joined("manual")
    item = take(driver)
    take(driver)
    driver.gateway.append("a")
    for seq, words in ((3, "up to seq 2"), (99, "up to seq 2")):
        later = Event("a", 0, seq, "e", None, "", "insert", item.raw, target=0, epoch=1)
        with pytest.raises(errors.InvalidRequest, match=words):
            membership.ack(later, 0.0)
    elsewhere = Event("a", 0, 99, "e", None, "", "insert", item.raw, target=5, epoch=1)
    assert membership.ack(elsewhere, 0.0) == ()


def test_what_is_remembered_of_lost_targets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "MOST_REMEMBERED", 3)
    membership, driver = joined("manual")
    driver.gateway.append("a", 8)
    while driver.go_on():
        pass
    first = [take(driver) for _ in range(10)]
    driver.do(membership.ack(first[5], 0.0))
    driver.lose()
    assert not membership._hands._held
    while driver.go_on():
        pass
    assert [take(driver).seq for _ in range(10)] == list(range(1, 11)), "all of it comes again"
