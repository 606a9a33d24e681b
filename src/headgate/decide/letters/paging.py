"""Where the next page of a partition's parked letters begins, while some of them are sent and not
settled: a subscriber at the gateway is slow, and the others are to get what is newer.

There are up to three such places, which take turns: the front, to learn what is settled by now;
where a subscriber has room again for what was put off; and behind all that was sent. When none of
them is worth a look, the partition pauses and then looks at its front: ever longer while nothing is
settled there, and shorter again when something is.

Invariant: no page begins behind a letter that was never sent. Without a pause there are only pages
that have letters no subscriber has seen, that a subscriber has room for, or of which the one before
went through as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headgate.decide.delivery.retrying import Backoff

Place = Literal["front", "wanted", "ahead"]
_PLACES: tuple[Place, ...] = ("front", "wanted", "ahead")
FIRST_PAUSE_S = 0.05


@dataclass(slots=True)
class Paging:
    """`sent_seq`: all letters up to there were sent; `ahead`: there may be more."""

    sent_seq: int
    wanted_seq: int = 0
    ahead: bool = True
    front: bool = False
    _place: Place = "ahead"
    _place_before: Place = "ahead"
    _pauses: int = 0

    def after_seq(self) -> int:
        """The next page begins behind this one."""
        at = _PLACES.index(self._place) + 1
        open_ = [one for one in (*_PLACES[at:], *_PLACES[:at]) if self._is_open(one)]
        self._place_before, self._place = self._place, open_[0] if open_ else "front"
        return {"front": 0, "wanted": self.wanted_seq - 1, "ahead": self.sent_seq}[self._place]

    def _is_open(self, place: Place) -> bool:
        # A former lane may have gone further than this one, which has more to send.
        wanted = 0 < self.wanted_seq <= self.sent_seq + 1
        return {"front": self.front, "wanted": wanted, "ahead": self.ahead}[place]

    def again(self) -> None:
        """Nothing came of that page: the next one begins at the same place."""
        self._place = self._place_before

    def answered(self, last_seq: int, wanted_seq: int, *, through: bool, whole: bool) -> None:
        """The page that ends with `last_seq` was answered; something of it went `through`, or the
        `whole` page did."""
        self.sent_seq = max(last_seq, self.sent_seq)
        if self._place == "wanted" and wanted_seq == self.wanted_seq and not through:
            wanted_seq = 0  # the subscription with room there didn't take it
        if whole or wanted_seq:
            self._pauses = 0
        elif through:
            self._pauses = max(0, self._pauses - 2)
        self.wanted_seq = wanted_seq
        if self._place == "front":
            self.front = whole

    def empty(self, *, ahead: bool) -> None:
        """The page had no letters; are there some `ahead` by now?"""
        if self._place == "wanted":
            self.wanted_seq = 0
        elif self._place == "ahead":
            self.ahead = ahead

    def held(self) -> None:
        """The page has to wait for letters of other partitions, which may wait for the front."""
        self.front = True

    def pause_s(self, longest_s: float) -> float:
        """How long to wait before the next page; then the front is looked at."""
        if any(self._is_open(place) for place in _PLACES):
            return 0.0
        self.front = True
        pauses, self._pauses = self._pauses, self._pauses + 1
        return Backoff(min(FIRST_PAUSE_S, longest_s), longest_s).delay_s(pauses, jitter=1.0)
