"""Who has had which redelivery: bounded, and first of all for what will come again."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.feed.redelivered import Redelivered, Sending


def sending(seq: int, epoch: int = 1) -> Sending:
    return ("t", 0, seq, epoch)


def names(some: str) -> frozenset[str]:
    return frozenset(some)


def test_who_has_had_it_is_known_until_it_is_too_long_ago() -> None:
    subject = Redelivered(capacity=10, ttl_s=60)
    assert subject.put_off(sending(1), names("a"), 0)
    subject.settled(sending(2), names("ab"), 30)
    subject.forget_old(59)
    assert (subject.had_by(sending(1)), subject.had_by(sending(2))) == (names("a"), names("ab"))
    assert subject.had_by(sending(1, epoch=2)) == frozenset()
    subject.forget_old(60)
    assert (subject.had_by(sending(1)), subject.had_by(sending(2))) == (names(""), names("ab"))
    subject.forget_old(90)
    assert len(subject) == 0


def test_what_keeps_being_put_off_stays() -> None:
    subject = Redelivered(capacity=10, ttl_s=60)
    for now_s in (0, 50, 100):
        subject.forget_old(now_s)
        assert subject.put_off(sending(1), subject.had_by(sending(1)) | names("a"), now_s)
    assert subject.had_by(sending(1)) == names("a")


def test_what_is_too_much_to_be_put_off_is_refused_and_changes_nothing() -> None:
    subject = Redelivered(capacity=5, ttl_s=60)
    assert subject.put_off(sending(1), names("ab"), 0)
    assert not subject.put_off(sending(2), names("ac"), 0)
    assert subject.put_off(sending(2), names("a"), 0)
    assert not subject.put_off(sending(1), names("abc"), 0)
    assert (subject.had_by(sending(1)), subject.had_by(sending(2))) == (names("ab"), names("a"))
    assert subject.put_off(sending(3), names(""), 0), "nobody has had it"
    subject.settled(sending(2), names("ac"), 0)
    assert subject.put_off(sending(1), names("abc"), 0)


def test_a_single_one_is_put_off_however_many_have_had_it() -> None:
    subject = Redelivered(capacity=5, ttl_s=60)
    assert subject.put_off(sending(1), names("abcdefgh"), 0)
    assert not subject.put_off(sending(2), names("a"), 0)
    assert subject.put_off(sending(1), names("abcdefghi"), 0)


def test_the_last_ones_may_have_what_is_remembered_however_full_it_is() -> None:
    subject = Redelivered(capacity=4, ttl_s=60)
    for seq in (1, 2):
        assert subject.put_off(sending(seq), names("ab"), 0)
    assert not subject.put_off(sending(1), names("abc"), 0)
    assert subject.put_off(sending(1), names("abc"), 0, are_all=True)
    assert not subject.put_off(sending(3), names("abc"), 0, are_all=True), "one more"
    assert subject.had_by(sending(1)) == names("abc")
    subject.settled(sending(1), names("abc"), 0)
    assert subject.had_by(sending(1)) == frozenset(), "more than can be remembered"
    assert len(subject) == 3


def test_the_subscriptions_that_have_had_many_are_remembered_once() -> None:
    everybody = frozenset(str(number) for number in range(100))
    subject = Redelivered(capacity=1_100, ttl_s=60)
    for seq in range(1, 1_001):
        assert subject.put_off(sending(seq), frozenset(everybody), 0)
    assert len(subject) == 1_100
    assert not subject.put_off(sending(1_001), everybody, 0)
    assert not subject.put_off(sending(1), everybody | {"another"}, 0)
    assert subject.put_off(sending(1), everybody, 1)
    subject.forget_old(60)
    assert len(subject) == 101


def test_what_all_have_had_makes_room_for_what_was_put_off() -> None:
    subject = Redelivered(capacity=5, ttl_s=60)
    subject.settled(sending(1), names("a"), 0)
    subject.settled(sending(2), names("ab"), 0)
    assert subject.put_off(sending(3), names("a"), 1)
    assert subject.had_by(sending(1)) == frozenset()
    assert subject.had_by(sending(2)) == names("ab")
    subject.settled(sending(4), names("abcdef"), 2)
    assert subject.had_by(sending(4)) == frozenset(), "more than can be remembered"
    assert subject.had_by(sending(3)) == names("a")


@dataclass
class Naive:
    """The oracle: all that was said, the newest last, cut when it is too much."""

    capacity: int
    said: list[tuple[float, bool, Sending, frozenset[str]]] = field(default_factory=list)

    def size(self, *, put_off: bool) -> int:
        groups = [one[3] for one in self.said if one[1] is put_off]
        return len(groups) + sum(map(len, set(groups)))

    def say(self, is_put_off: bool, what: Sending, who: frozenset[str], now_s: float) -> bool:
        if not who:
            return True
        before = self.said
        self.said = [one for one in before if one[2] != what] + [(now_s, is_put_off, what, who)]
        if is_put_off and self.size(put_off=True) > max(self.capacity, 1 + len(who)):
            self.said = before
            return False
        settled = [one for one in self.said if not one[1]]
        while settled and self.size(put_off=True) + self.size(put_off=False) > self.capacity:
            self.said.remove(settled.pop(0))
        return True

    def had_by(self, what: Sending) -> frozenset[str]:
        return next((one[3] for one in self.said if one[2] == what), frozenset())


@given(
    st.integers(1, 9),
    st.lists(
        st.tuples(
            st.booleans(),
            st.integers(1, 4),
            st.frozensets(st.sampled_from("abcd")),
            st.integers(0, 6),
        ),
        max_size=40,
    ),
)
def test_agrees_with_a_list_of_all_that_was_said(
    capacity: int, steps: list[tuple[bool, int, frozenset[str], int]]
) -> None:
    subject, naive, now_s = Redelivered(capacity=capacity, ttl_s=10), Naive(capacity), 0
    one_for_all = ("sending", *"abcd")
    for is_put_off, seq, who, passed_s in steps:
        now_s += passed_s
        subject.forget_old(now_s)
        naive.said = [one for one in naive.said if now_s - one[0] < 10]
        if is_put_off:
            assert subject.put_off(sending(seq), who, now_s) is naive.say(
                True, sending(seq), who, now_s
            )
        elif who:
            subject.settled(sending(seq), who, now_s)
            naive.say(False, sending(seq), who, now_s)
        assert [subject.had_by(sending(number)) for number in range(1, 5)] == [
            naive.had_by(sending(number)) for number in range(1, 5)
        ]
        size = naive.size(put_off=True) + naive.size(put_off=False)
        assert len(subject) == size <= max(capacity, len(one_for_all))
