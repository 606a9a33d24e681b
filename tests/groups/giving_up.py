"""Judges what a group gives up, from the wires, the letters and what handlers saw alone.

A delivery to a consumer with a limit fails when the consumer says so, and when its connection or
its time is over while it has it. The failure is certain when the consumer said so, or had nothing
else in hand. Judged at once:
- nothing is given up before so many deliveries of it have failed as its owner allows, of which one
  for certain: so never what only stood beside others;
- what has one delivery left is alone in its consumer's hands;
- what has failed at a gateway that could save it is known at the next delivery;
- a letter that is sent again is dead again only after as many failures since, and is gone only when
  its redelivery was acknowledged since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headgate.model.event import Fence
from headgate.model.letters import Letter, NewLetter
from tests.groups.network import GroupLink

Place = tuple[int, int]
"""Partition and seq."""
Owned = tuple[int, int]
"""Target and epoch."""
Thing = tuple[int, int, bool]
"""Partition, seq, and whether it is a redelivery."""
Out = dict[Owned, set[Thing]]


@dataclass(frozen=True)
class Failure:
    """`number`: of that delivery, as far as its consumer said so. `is_noted`: by a gateway that
    owned the target then."""

    at_s: float
    link: GroupLink
    limit: int
    is_certain: bool
    is_noted: bool = True
    number: int = 0


class GivingUp:
    """`was_saved`: whether a gateway had the time to save what it knew then."""

    def __init__(
        self,
        *,
        now_s: Callable[[], float],
        violated: Callable[[str, Place], None],
        was_saved: Callable[[str, float], bool],
    ) -> None:
        self._now_s, self._violated, self._was_saved = now_s, violated, was_saved
        self.limits: dict[str, int] = {}
        """Of consumers."""
        self.letters: dict[Place, float] = {}
        """What was given up, and when first."""
        self.retried: dict[int, float] = {}
        """When an operator last wanted each letter sent again."""
        self.sent_again: set[Place] = set()
        """The places of those."""
        self.stopping: set[str] = set()
        """Gateways that end in good manners."""
        self._owners: dict[Owned, int] = {}
        """The limit of each owner."""
        self._failures: defaultdict[tuple[Place, bool], list[Failure]] = defaultdict(list)
        self._last: dict[GroupLink, tuple[Owned, Thing]] = {}
        """What was handed out for the last time."""
        self._processed: dict[Place, float] = {}
        """When a gateway was last told that a redelivery is."""
        self._newest: dict[str, GroupLink] = {}
        self._wanted_later: defaultdict[GroupLink, set[Thing]] = defaultdict(set)
        """What was nacked on a connection: it need not be over for something else to be alone."""
        self._held: dict[tuple[GroupLink, Owned], set[Thing]] = {}
        """What consumers said last that their programs don't have."""
        self._left: set[GroupLink] = set()

    # --- wires -----------------------------------------------------------------------------------

    def joins(self, link: GroupLink, limit: int) -> None:
        self.limits[link.member] = limit
        self._newest[link.member] = link

    def owns(self, link: GroupLink, owned: Owned) -> None:
        self._owners[owned] = self.limits[link.member]

    def handed(self, link: GroupLink, owned: Owned, thing: Thing, number: int, out: Out) -> None:
        """The gateway has written it, beside `out`; `number` is 0 for what is no event."""
        limit = self.limits.get(link.member, 0)
        if not limit:
            return
        place = thing[:2]
        last = self._last.get(link)
        worked_on = self._worked_on(link, out)
        if last is not None and last[1] in worked_on and last[1] in out.get(last[0], ()):
            self._violated(f"{link.member} gets {thing} beside {last[1]}, its last time", place)
        if number >= limit:
            self._last[link] = owned, thing
            if worked_on:
                said = f"{link.member} gets {thing} for the last time beside {worked_on}"
                self._violated(said, place)
        if number and not thing[2] and number <= (known := self._known(place)):
            self._violated(
                f"{link.member} gets {thing} for the time {number}, and it failed {known} times: "
                f"{self._failures[place, False]}",
                place,
            )

    def _worked_on(self, link: GroupLink, out: Out) -> set[Thing]:
        """As far as its gateway can know."""
        has = [things - self._held.get((link, owned), set()) for owned, things in out.items()]
        return {one for things in has for one in things} - self._wanted_later[link]

    def held(self, link: GroupLink, message: dict[str, Any]) -> None:
        things = {(partition, seq, again) for partition, seq, again in message["items"]}
        self._held[link, (message["target"], message["epoch"])] = things

    def begins_anew(self, place: Place) -> None:
        """It comes again, as if nobody had had it."""
        self._failures.pop((place, False), None)

    def may_begin_anew(self, place: Place) -> None:
        """Or with the failures that it had."""
        failures = self._failures[place, False]
        failures[:] = [replace(one, is_noted=False) for one in failures]

    def asked_for(self, link: GroupLink, target: int) -> None:
        """What is to be released need not be alone until then."""
        last = self._last.get(link)
        if last is not None and last[0][0] == target:
            del self._last[link]

    def nacked(self, link: GroupLink, message: dict[str, Any], out: Out) -> None:
        owned = message["target"], message["epoch"]
        thing = message["partition"], message["seq"], message.get("redelivery", False)
        if thing in out.get(owned, ()):
            limit = self.limits[link.member]
            number = message["deliveries"]
            failure = Failure(self._now_s(), link, limit, True, number=number)
            self._failures[thing[:2], thing[2]].append(failure)
            self._wanted_later[link].add(thing)

    def acknowledged_again(self, place: Place) -> None:
        self._processed[place] = self._now_s()

    def leaves(self, link: GroupLink, out: Out, *, failed: bool) -> None:
        if failed:
            self.lost(link, out, is_noted=True)
        self._left.add(link)

    def ended(self, link: GroupLink, out: Out, *, is_owner: bool) -> None:
        if link not in self._left:
            is_back = self._newest.get(link.member) is not link
            is_noted = is_owner and not is_back and link.node_id not in self.stopping
            self.lost(link, out, is_noted=is_noted)
        self._left.discard(link)
        self._last.pop(link, None)

    def lost(self, link: GroupLink, out: Out, *, is_noted: bool, of: Owned | None = None) -> None:
        """With all it has, or all of one target."""
        limit = self.limits.get(link.member, 0)
        if not limit:
            return
        is_certain = sum(map(len, out.values())) == 1
        failure = Failure(self._now_s(), link, limit, is_certain, is_noted)
        for owned, things in out.items():
            if of is None or of == owned:
                for thing in things:
                    self._failures[thing[:2], thing[2]].append(failure)

    def _known(self, place: Place) -> int:
        """How many failures whoever owns it now must know of: those that were said. Who was lost
        may have been ended by its gateway, or be back and work on it still."""
        said = [one for one in self._failures[place, False] if one.is_noted]
        saved = [one.number for one in said if self._was_saved(one.link.node_id, one.at_s)]
        return max(saved, default=0)

    # --- letters ---------------------------------------------------------------------------------

    def written(self, letter: NewLetter, fence: Fence) -> None:
        place = letter.delivery.partition, letter.delivery.seq
        failures = [self._failures[place, False], self._failures[place, True]]
        self._judge_letter(letter, place, fence, failures)
        self.letters.setdefault(place, self._now_s())

    def buried(self, letter: Letter, fence: Fence) -> None:
        place = letter.delivery.partition, letter.delivery.seq
        since_s = self.retried[letter.id]
        since = [one for one in self._failures[place, True] if one.at_s >= since_s]
        self._judge_letter(letter, place, fence, [since])

    def _judge_letter(
        self,
        letter: NewLetter | Letter,
        place: Place,
        fence: Fence,
        failures: list[list[Failure]],
    ) -> None:
        if not letter.delivery.event_id:
            return  # nobody can be handed it
        limit = self._owners[target_of(letter), fence.epoch]
        if not limit:
            self._violated(f"{place} is given up by an owner that has no limit", place)
        elif not any(one.is_certain for some in failures for one in some):
            self._violated(
                f"{place} is given up, and nobody failed with it for certain: {failures}", place
            )
        elif max(map(len, failures)) < limit:
            self._violated(f"{place} is given up at {limit} after {failures}", place)

    def revived(self, letter: Letter) -> None:
        self.retried[letter.id] = self._now_s()
        self.sent_again.add((letter.delivery.partition, letter.delivery.seq))

    def removed(self, letter: Letter) -> None:
        place = letter.delivery.partition, letter.delivery.seq
        if self._processed.get(place, -1.0) < self.retried[letter.id]:
            self._violated(f"the letter of {place} is gone, and nobody acknowledged it", place)


def target_of(letter: NewLetter | Letter) -> int:
    return int(letter.gateway_id.rpartition("/")[2].partition("-of-")[0])
