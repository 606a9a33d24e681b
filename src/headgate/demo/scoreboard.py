"""The demo's books: which reports were acknowledged, which watches must get each, and which got it.

Invariants: an expected delivery is forgotten once it arrived and only then, so what is left at the
end is missing; only acknowledged events count; what is remembered is bounded by what is under way,
by the number of keys and by `REFUSED_KEPT`, never by how long the demo runs. Never asks Headgate
anything: it believes acknowledgements and arrivals only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.demo.figures import Histogram, RecentHistogram

REFUSED_KEPT = 10_000
"""How many events without an acknowledgement are remembered: they may have been written all the
same, and their arrival is no mistake."""


@dataclass(slots=True)
class _Open:
    """An event that was sent and isn't finished; the sets hold watches."""

    key: str
    number: int
    missing: set[int]
    sent_s: float = 0.0
    arrived: set[int] = field(default_factory=set)
    acknowledged_s: float | None = None


@dataclass(slots=True)
class WatchScore:
    matched: int = 0
    delivered: int = 0
    duplicates: int = 0


class Scoreboard:
    def __init__(self, watches: int) -> None:
        self.produced = 0
        self.refused = 0
        self.unexpected = 0
        self.out_of_order = 0
        self.longest_gap_ms = 0.0
        """Longest time without an arrival, from the first acknowledgement on."""
        self.latency = Histogram()
        self.latency_since_sent = Histogram()
        """The same from when it was sent, so that its acknowledgement's own time is in it."""
        self.recent_latency = RecentHistogram()
        self.watches = [WatchScore() for _ in range(watches)]
        self._open: dict[str, _Open] = {}
        self._refused_ids: dict[str, None] = {}
        self._last_arrival_s: float | None = None
        """Or since when one was due."""
        self._newest_seq: dict[tuple[int, int], int] = {}
        self._newest_number: list[dict[str, int]] = [{} for _ in range(watches)]

    # --- what happened ---------------------------------------------------------------------------

    def sent(
        self,
        event_id: str,
        *,
        key: str,
        number: int,
        expected: Iterable[int],
        at_s: float = 0.0,
    ) -> None:
        """An event is on its way; `number` grows with every event of a key."""
        self._open[event_id] = _Open(key, number, set(expected), at_s)

    def acknowledged(self, event_id: str, *, at_s: float) -> None:
        event = self._open[event_id]
        event.acknowledged_s = at_s
        self.produced += 1
        if self._last_arrival_s is None and event.missing:
            self._last_arrival_s = at_s
        for watch in event.missing | event.arrived:
            self.watches[watch].matched += 1
        for watch in event.arrived:  # faster than the acknowledgement
            self._deliver(watch, 0.0, at_s)
        self._forget_when_done(event_id, event)

    def not_acknowledged(self, event_id: str) -> None:
        """The event counts for nothing, whether or not it was written."""
        del self._open[event_id]
        self.refused += 1
        self._refused_ids[event_id] = None
        if len(self._refused_ids) > REFUSED_KEPT:
            del self._refused_ids[next(iter(self._refused_ids))]

    def received(self, watch: int, event_id: str, *, partition: int, seq: int, at_s: float) -> None:
        self._note_arrival(at_s)
        event = self._open.get(event_id)
        if event is not None and watch in event.missing:
            event.missing.remove(watch)
            event.arrived.add(watch)
            self._check_order(watch, event)
            self.latency_since_sent.add((at_s - event.sent_s) * 1_000)
            if event.acknowledged_s is not None:
                self._deliver(watch, (at_s - event.acknowledged_s) * 1_000, at_s)
                self._forget_when_done(event_id, event)
        elif event_id in self._refused_ids:
            pass
        elif seq <= self._newest_seq.get((watch, partition), 0):
            self.watches[watch].duplicates += 1
        else:
            self.unexpected += 1
        place = watch, partition
        self._newest_seq[place] = max(seq, self._newest_seq.get(place, 0))

    def _deliver(self, watch: int, latency_ms: float, at_s: float) -> None:
        self.watches[watch].delivered += 1
        self.latency.add(latency_ms)
        self.recent_latency.add(latency_ms, at_s=at_s)

    def _note_arrival(self, at_s: float) -> None:
        if self._last_arrival_s is not None:
            gap_ms = (at_s - self._last_arrival_s) * 1_000
            self.longest_gap_ms = max(self.longest_gap_ms, gap_ms)
        self._last_arrival_s = at_s

    def _check_order(self, watch: int, event: _Open) -> None:
        newest = self._newest_number[watch]
        if event.number < newest.get(event.key, event.number):
            self.out_of_order += 1
        else:
            newest[event.key] = event.number

    def _forget_when_done(self, event_id: str, event: _Open) -> None:
        if not event.missing:
            del self._open[event_id]

    def waited(self, *, until_s: float) -> None:
        """For what is missing, in vain."""
        if self.missing:
            self._note_arrival(until_s)

    # --- what it comes to ------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Events that wait for their acknowledgement or for a delivery."""
        return len(self._open)

    @property
    def matched(self) -> int:
        return sum(watch.matched for watch in self.watches)

    @property
    def delivered(self) -> int:
        return sum(watch.delivered for watch in self.watches)

    @property
    def duplicates(self) -> int:
        return sum(watch.duplicates for watch in self.watches)

    @property
    def skipped(self) -> int:
        """Expected deliveries that haven't arrived though a newer one of their key has. In order
        per key there is none, so whatever counts here is lost, or late out of its order."""
        return sum(
            self._newest_number[watch].get(event.key, event.number) > event.number
            for event in self._open.values()
            if event.acknowledged_s is not None
            for watch in event.missing
        )

    @property
    def missing(self) -> int:
        """Expected deliveries of acknowledged events that haven't arrived."""
        return self.matched - self.delivered
