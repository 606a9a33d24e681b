"""A subscriber's conversation against a model gateway, with everything that may go wrong at any
message: per subscription nothing is missing without a Resync, in order, and nothing comes again but
what wasn't acknowledged."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate import errors
from headgate.decide.conversation.common import Acks, Phase
from headgate.decide.conversation.patience import Patience
from headgate.decide.conversation.subscriber import MOST_EARLY, Following
from headgate.decide.conversation.subscription import Subscription
from headgate.model.client_messages import (
    Event,
    Item,
    Resync,
    Subscribed,
    decode_for_subscriber,
    is_redelivery,
    names_of,
    seq_of,
)
from tests.client.model_gateway import ModelGateway, event
from tests.decide.conversation.driver import Driver

NAMES = {"one": "a", "same": "a", "other": "b"}
REFUSALS = {
    "for now": {"code": "unavailable", "message": "not now", "details": {}},
    "for good": {"code": "unknown_topic", "message": "no", "details": {}},
}


class Subscribing(RuleBasedStateMachine):
    acks: Acks = "auto"

    def __init__(self) -> None:
        super().__init__()
        self.gateway = ModelGateway(logs={"a": 2, "b": 2})
        self.following = Following(self.acks, Patience(attempts=3), beyond_end_s=1.0)
        for name, topic in NAMES.items():
            self.following.add(Subscription(name, topic, start="earliest"))
        self.driver = Driver(self.following, self.gateway, decode_for_subscriber)
        self.positions = dict.fromkeys(NAMES, 0)
        """The oracle: where each subscription is."""
        self.acknowledged = dict.fromkeys(NAMES, 0)
        self.handed_out: list[Item] = []
        self.driver.do(self.following.enter())
        self.finish()
        assert self.following.phase is Phase.LIVE

    # --- what the user does ----------------------------------------------------------------------

    @rule()
    def asks(self) -> None:
        try:
            item = self.driver.take()
        except errors.HeadgateError:
            return
        if item is not None:
            self._saw(item)

    @rule()
    def never_sees_it(self) -> None:
        """It comes in the very moment at which a thread is interrupted."""
        try:
            self.driver.take()
        except errors.HeadgateError:
            return
        self.driver.do(self.following.put_back("", self.driver.now_s))

    def _saw(self, item: Item) -> None:
        if is_redelivery(item):
            return
        self.handed_out.append(item)
        for name in names_of(item):
            before = item.after_seq if isinstance(item, Resync) else seq_of(item) - 1
            at = self.positions[name]
            if self.acks == "auto":
                assert before == at, f"{item} at {at}"
            else:
                assert self.acknowledged[name] < seq_of(item), f"{item} was acknowledged"
                assert before <= at, f"{item} at {at}"
            self.positions[name] = max(at, seq_of(item))

    @precondition(lambda self: self.acks == "manual" and self.handed_out)
    @rule(data=st.data())
    def acknowledges(self, data: st.DataObject) -> None:
        """Any that was ever handed out, over whatever connection."""
        item = data.draw(st.sampled_from(self.handed_out))
        self.driver.do(self.following.ack(item))
        for name in names_of(item):
            self.acknowledged[name] = max(self.acknowledged[name], seq_of(item))

    # --- what happens ----------------------------------------------------------------------------

    @rule(topic=st.sampled_from("ab"), count=st.integers(1, 3))
    def appends(self, topic: str, count: int) -> None:
        self.gateway.append(topic, count)

    @rule(topic=st.sampled_from("ab"))
    def retention_passes(self, topic: str) -> None:
        self.gateway.kept_from[topic] = self.gateway.logs[topic]

    @precondition(lambda self: self.driver.session and "one" in self.driver.session.sent)
    @rule()
    def is_redelivered(self) -> None:
        assert self.driver.session is not None
        self.driver.send(event("a", 1, subscriptions=["one"], redelivery=True))

    @precondition(lambda self: self.driver.inbox)
    @rule(count=st.integers(1, 5))
    def messages_arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.driver.inbox))):
            if self.driver.inbox:
                self.driver.deliver()

    @precondition(lambda self: self.driver.session is not None)
    @rule()
    def connection_is_lost(self) -> None:
        self.driver.lose()

    @precondition(lambda self: self.driver.is_wanted)
    @rule(redirected=st.booleans())
    def connects(self, redirected: bool) -> None:
        if redirected:
            self.gateway.redirect.append(
                {"type": "redirect", "url": "ws://other", "gateway": "g", "id": "me"}
            )
        self.driver.connect()

    @precondition(lambda self: self.driver.is_wanted)
    @rule()
    def nobody_is_there(self) -> None:
        self.driver.fail_to_connect()

    @rule(name=st.sampled_from(sorted(NAMES)), how=st.sampled_from(sorted(REFUSALS)))
    def is_refused(self, name: str, how: str) -> None:
        self.gateway.refused[name] = REFUSALS[how]

    @rule()
    def nobody_is_refused(self) -> None:
        self.gateway.refused.clear()

    @invariant()
    def the_gateway_hears_no_nonsense(self) -> None:
        assert not self.gateway.mistakes

    @invariant()
    def what_was_handed_out_last_is_said(self) -> None:
        if self.acks == "auto":
            for name, at in self.positions.items():
                assert self.following.subscriptions[name].positions.get(0, 0) == at

    # --- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        while self.driver.go_on():
            pass

    def teardown(self) -> None:
        """When nothing goes wrong any more, everything comes."""
        self.gateway.refused.clear()
        self.gateway.redirect.clear()
        if self.driver.session is not None:
            self.driver.lose()
        for _ in range(1_000):
            self.finish()
            waits = not self.following.waiting and self.following.phase is Phase.LIVE
            self.asks()
            if waits:
                break
        assert self.driver.phase is Phase.LIVE
        for name, topic in NAMES.items():
            assert self.positions[name] == self.gateway.logs[topic]
        self.driver.do(self.following.close())
        assert self.driver.take() is None
        assert self.following.is_over


class SubscribingByHand(Subscribing):
    acks: Acks = "manual"


BOUNDS = settings(max_examples=40, stateful_step_count=40)
TestAuto = Subscribing.TestCase
TestAuto.settings = BOUNDS
TestManual = SubscribingByHand.TestCase
TestManual.settings = BOUNDS


# --- single rules --------------------------------------------------------------------------------


def live(acks: Acks = "auto", *names: str) -> tuple[Following, Driver]:
    following = Following(acks, Patience(), beyond_end_s=1.0)
    for name in names or ("one",):
        following.add(Subscription(name, "a", start="earliest"))
    driver = Driver(following, ModelGateway(), decode_for_subscriber)
    driver.do(following.enter())
    while driver.go_on():
        pass
    return following, driver


def test_a_redelivery_that_waits_survives_a_lost_connection_also_with_manual_acks() -> None:
    following, driver = live("manual")
    driver.gateway.append("a")
    driver.send(event("a", 1, subscriptions=["one"], redelivery=True))
    driver.deliver()
    driver.deliver()
    driver.lose()
    assert len(following.waiting) == 1, "the other one comes again"
    again = driver.take()
    assert again is not None
    assert is_redelivery(again)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("kind", [Event, Resync])
@pytest.mark.parametrize("acks", ["auto", "manual"])
def test_positions_do_not_pass_what_nobody_saw(
    acks: Acks, kind: type[Event | Resync], *, is_closed: bool
) -> None:
    """Or who saves them when it is interrupted, and begins there again, misses that."""
    following, driver = live(acks)
    if kind is Resync:
        driver.gateway.kept_from["a"] = 3
    driver.gateway.append("a", 4)
    while driver.go_on():
        pass
    assert isinstance(driver.take("one"), kind)
    assert driver.take("another") is not None
    if is_closed:
        driver.do(following.close())
    driver.do(following.put_back("one", driver.now_s))
    assert following.subscriptions["one"].positions == {0: 0}


def test_what_waits_before_all_have_begun_is_bounded() -> None:
    following, driver = live("auto", "one", "two")
    driver.gateway.silent.add("two")
    driver.lose()
    driver.connect()
    driver.gateway.append("a", MOST_EARLY + 1)
    while driver.inbox:
        driver.deliver()
    assert following.phase is Phase.CONNECTING
    assert len(following.waiting) == MOST_EARLY + 1


def test_what_waits_before_all_have_begun_is_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.decide.conversation.subscriber.MOST_EARLY_BYTES", 60)
    following, driver = live("auto", "one", "two")
    driver.gateway.silent.add("two")
    driver.lose()
    driver.connect()
    driver.gateway.append("a", 100)
    while driver.inbox:
        driver.deliver()
    assert following.phase is Phase.CONNECTING
    assert following.waiting.size_bytes < 60 + 20


def test_what_waited_before_a_lost_connection_does_not_count_as_early() -> None:
    """Or who is given much room, and uses it, could not come back before it is half empty."""
    following, driver = live("auto", "one", "two")
    driver.gateway.append("a", 2 * MOST_EARLY)
    while driver.inbox:
        driver.deliver()
    driver.gateway.silent.add("two")
    driver.lose()
    driver.gateway.append("a", 1)
    driver.connect()
    while driver.inbox:
        driver.deliver()
    assert following.phase is Phase.OPENING, "nobody hung up"
    assert len(following.waiting) == 2 * MOST_EARLY + 1


def test_an_acknowledgement_of_what_never_came_is_refused_and_changes_nothing() -> None:
    following, driver = live("manual", "one", "two")
    driver.gateway.append("a")
    while driver.go_on():
        pass
    first = driver.take()
    assert first is not None
    following.subscriptions["two"]._handed_out[0] = 0
    with pytest.raises(errors.InvalidRequest, match="can't be acknowledged"):
        following.ack(first)
    assert following.subscriptions["one"].acknowledged == {0: 0}


def test_attempts_are_counted_per_outage() -> None:
    following = Following("auto", Patience(attempts=2), beyond_end_s=1.0)
    following.add(Subscription("one", "a"))
    driver = Driver(following, ModelGateway(), decode_for_subscriber)
    driver.do(following.enter())
    driver.connect()
    driver.deliver()
    for _ in range(2):
        driver.lose()
        driver.fail_to_connect()
        assert driver.take() is None, "asking changes nothing about it"
        assert driver.is_wanted
        driver.connect()
        driver.deliver()
        assert following.phase is Phase.LIVE
    driver.lose()
    driver.fail_to_connect()
    assert driver.take() is None
    driver.fail_to_connect()
    with pytest.raises(errors.PeerUnreachable):
        driver.take()
    assert not driver.is_wanted
    assert driver.take() is None
    assert driver.is_wanted, "and the call after that tries anew"


def test_a_log_that_lost_its_history_is_waited_for_and_then_an_error() -> None:
    following, driver = live()
    driver.gateway.refused["one"] = {"code": "invalid", "message": "!", "details": {"head": 0}}
    driver.lose()
    while driver.now_s < 1.0:
        assert following.phase is Phase.CONNECTING
        driver.connect()
        driver.deliver()
        driver.now_s += 0.3
    driver.now_s += 1.0
    driver.connect()
    driver.deliver()
    with pytest.raises(errors.InvalidRequest, match="!"):
        driver.take()


def test_a_store_that_is_away_is_waited_for() -> None:
    """As a producer does: an operator, or time, mends that."""
    following, driver = live()
    driver.gateway.refused["one"] = {"code": "storage_failed", "message": "!", "details": {}}
    driver.lose()
    for _ in range(3):
        assert following.phase is Phase.CONNECTING
        driver.connect()
        driver.deliver()
    assert driver.take() is None
    driver.gateway.refused.clear()
    while driver.go_on():
        pass
    assert following.phase is Phase.LIVE
    error = {"code": "storage_failed", "message": "!", "details": {}}
    driver.send({"type": "error", "subscription": "one", "error": error})
    while driver.go_on():
        pass
    assert following.phase is Phase.LIVE
    assert following.reconnects == 2


def test_closed_it_says_nothing_more() -> None:
    following, driver = live()
    driver.do(following.close())
    assert following.opened() != ()
    answer = Subscribed("one", "a", {0: 0})
    assert following.heard(answer, 0.0) == following.lost(0.0) == following.asked(0.0) == ()
    assert following.phase is Phase.CLOSED


class Text(str):
    """As arrays and templates have it; the encoder knows `str` alone."""

    __slots__ = ()


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"where": Text("n > 1")}, id="where"),
        pytest.param({"filter_": [{"field": "n", "op": "=", "value": object()}]}, id="filter"),
        pytest.param({"filter_": [{"field": "n", "op": "=", "value": "\ud800"}]}, id="half"),
    ],
)
def test_what_can_not_be_asked_for_is_said_before_anybody_is_asked(asked: dict[str, Any]) -> None:
    following = Following("auto", Patience(), beyond_end_s=1.0)
    following.add(Subscription("one", "a", **asked))
    with pytest.raises(errors.InvalidRequest, match="give plain texts"):
        following.enter()
    assert following.phase is Phase.NEW
