"""One snapshot of a connector: which rows are read next, when they are handed in, how far it is.

Collections are read in chunks while the stream goes on, one after the other by name; what was
renamed onto one of them is read again behind all others. A chunk has its place in the stream: it is
handed in to all partitions when the stream has told everything that is in its rows, without those
that the stream has changed since they were asked for (overlap). With it every partition stores how
far the snapshot is, as of its position. The next reader goes on where the partition stands that is
least far, and reads anew what it repeats, so the repetition is as new as its place. Before that it
lets every partition know where it goes on: two readers may come equally far in different rows, and
rows that the former has handed in to some partitions would pass for rows that the latter has handed
in to all.

Pure: who uses it tells what the stream told (`saw`), asks what is to be read (`ask`), brings it
(`read`), and hands in what is due (`due`). Invariants: nothing is asked for before the stream has
told all that any partition has (`level`); what is stored of a snapshot at a position is in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace

from headgate.decide.connectors.snapshots.overlap import Overlap
from headgate.decide.connectors.snapshots.places import place_of, places_of
from headgate.decide.connectors.whole_collection import concerned
from headgate.model.chunk import Chunk
from headgate.model.connector import Snapshot
from headgate.model.event import Event

AHEAD = 2
"""So many chunks are asked for before the first of them is handed in."""

Stage = Literal["rows", "again", "compare", "done"]
"""`again`: those that something was renamed onto are read once more. `compare`: the log is looked
through for what the origin lacks."""


class SnapshotProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a snapshot is: in the rows of `collection` behind `behind` (in the origin's words;
    empty: before its first; None: behind all), or, in the stage `again`, in those of the first of
    `again`."""

    snapshot: int
    step: int = 0
    stage: Stage = "rows"
    collection: str = ""
    behind: str | None = ""
    again: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As texts these sort by snapshot, and within one by its progress."""
        rest = _to_json((self.stage, self.collection, self.behind, self.again)).decode()
        return f"{self.snapshot:012x}{self.step:012x}{rest}"


_to_json = msgspec.json.Encoder().encode
_rest_of = msgspec.json.Decoder(tuple[Stage, str, str | None, tuple[str, ...]]).decode


def progress_from(text: str) -> SnapshotProgress | None:
    """What was stored; None: nothing was."""
    if not text:
        return None
    return SnapshotProgress(int(text[:12], 16), int(text[12:24], 16), *_rest_of(text[24:]))


def next_snapshot(
    wanted: Sequence[Snapshot], stored: str
) -> tuple[Snapshot, SnapshotProgress] | None:
    """The one to go on with, and how far it is; None: all that are wanted are done."""
    had = progress_from(stored)
    for snapshot in sorted(wanted, key=lambda one: one.id):
        if had is None or had.snapshot < snapshot.id:
            return snapshot, SnapshotProgress(snapshot.id)
        if had.snapshot == snapshot.id and had.stage != "done":
            return snapshot, had
    return None


@dataclass(frozen=True, slots=True)
class Ask:
    """Rows of `collection` behind `behind` are to be read."""

    collection: str
    behind: str


@dataclass(frozen=True, slots=True)
class Due:
    """To be handed in: every partition gets its own of `events` and comes to `upto`, where the
    snapshot is as far as `progress` says."""

    events: Sequence[Event]
    upto: str
    progress: SnapshotProgress


@dataclass(slots=True)
class _Asked:
    ask: Ask
    stage: Stage
    overlap: Overlap = field(init=False)
    chunk: Chunk | None = None

    def __post_init__(self) -> None:
        self.overlap = Overlap(self.ask.collection)


class Snapshotting:
    """`chunks` counts those of this epoch of the connector `name`, over all its snapshots. Nothing
    is read of a collection that `leads` nowhere."""

    def __init__(
        self,
        snapshot: Snapshot,
        progress: SnapshotProgress,
        *,
        name: str,
        epoch: int,
        chunks: Iterator[int],
        level: str,
        leads: Callable[[str], bool],
    ) -> None:
        self.snapshot = snapshot
        self.progress = progress
        """As of what was due last."""
        self.collections: Sequence[str] = ()
        self.rows = 0
        """So many were handed in since it was begun here."""
        self._name = name
        self._epoch = epoch
        self._chunks = chunks
        self._level = level
        self._leads = leads
        self._is_listed = False
        self._is_agreed = False
        """All partitions are told where this one goes on: none has what a former reader said."""
        self._asked: deque[_Asked] = deque()

    # --- what is read ----------------------------------------------------------------------------

    def listed(self, collections: Iterable[str]) -> None:
        """These are there."""
        self.collections = sorted(filter(self._is_wanted, set(collections)))
        self._is_listed = True

    def ask(self, position: str) -> Ask | None:
        """What is to be read now, where the stream stands at `position`; it is taken for asked
        then."""
        if not self._is_listed or not self.is_level(position) or len(self._asked) >= AHEAD:
            return None
        last = self._asked[-1] if self._asked else None
        if last is not None and last.chunk is None:
            return None
        found = self._next(self.progress if last is None else self._after(last))
        if found is None:
            return None
        stage, ask = found
        self._asked.append(_Asked(ask, stage))
        return ask

    def read(self, ask: Ask, chunk: Chunk) -> None:
        """The chunk that was asked for; dropped if it isn't the one that was asked for last."""
        if self._asked and self._asked[-1].ask is ask:
            self._asked[-1].chunk = chunk
            self._asked[-1].overlap.read(chunk.rows)

    def forget(self) -> None:
        """What was asked for won't come: it is asked for again."""
        self._asked.clear()

    def away(self, ask: Ask) -> None:
        """What was asked for last wasn't there. If it is when everything is listed again, nobody
        knows what has become of the rows that were read of it: they are read once more."""
        self.forget()
        if ask.collection == self.progress.collection:
            self.progress = replace(self.progress, behind="")

    # --- the stream ------------------------------------------------------------------------------

    def saw(self, events: Iterable[Event]) -> list[tuple[str, SnapshotProgress]]:
        """The stream told these. Where that changes what is left to be read: from which position
        on, and how far the snapshot is then."""
        changed = []
        for event in events:
            for asked in self._asked:
                asked.overlap.saw((event,))
            if event.op == "rename" and event.key is None and self._renamed(event):
                changed.append((event.source or "", self.progress))
        return changed

    def _renamed(self, event: Event) -> bool:
        """What its new name has now was read under another one, or not at all."""
        *_, name = concerned(event)
        now = self.progress
        if not self._is_wanted(name) or now.stage not in ("rows", "again"):
            return False
        is_read = now.stage == "again" and now.again[0] == name
        others = tuple(one for one in now.again if one != name)
        behind = "" if is_read else now.behind
        # No step of its own: before all partitions agree it would be as far as a former reader's.
        self.progress = replace(now, behind=behind, again=(*others, name))
        self.forget()
        return True

    def _is_wanted(self, collection: str) -> bool:
        only = self.snapshot.collections
        return (not only or collection in only) and self._leads(collection)

    # --- what is handed in -----------------------------------------------------------------------

    def is_level(self, position: str) -> bool:
        """Has the stream told all that any partition has? What was handed in before that would
        stand behind what is newer, or be left out as had."""
        return position >= self._level

    def due(self, position: str) -> Due | None:
        """What can be handed in where the stream stands at `position`, if anything can."""
        if not self._is_agreed and self.is_level(position):
            self._is_agreed = True
            return self._stamped(position, [], self.progress)
        if not self._asked:
            is_through = (
                self._is_listed
                and self.is_level(position)
                and self.progress.stage in ("rows", "again")
                and self._next(self.progress) is None
            )
            return self._stamped(position, [], self._ended(self.progress)) if is_through else None
        first = self._asked[0]
        if first.chunk is None or position < first.chunk.upto:
            return None
        self._asked.popleft()
        return self._stamped(position, first.overlap.left(), self._after(first))

    def missing(self, position: str, events: Sequence[Event], *, are_all: bool) -> Due:
        """Deletes of what the log has and the origin lacks; `are_all`: there are no others."""
        assert self.is_level(position), "partitions have what lies ahead"
        step = self.progress.step + 1
        stage: Stage = "done" if are_all else "compare"
        return self._stamped(position, events, replace(self.progress, step=step, stage=stage))

    def _stamped(self, position: str, rows: Sequence[Event], progress: SnapshotProgress) -> Due:
        number, epoch = next(self._chunks), self._epoch
        ids = f"read/{self._name}/{epoch}/{number}/"
        places = places_of(position, epoch=epoch, chunk=number, rows=len(rows))
        events = [
            Event(
                f"{ids}{at}",
                row.document,
                row.key,
                row.op,
                row.collection,
                row.earlier,
                place,
                row.headers,
            )
            for at, (row, place) in enumerate(zip(rows, places, strict=True), 1)
        ]
        self.rows += len(rows)
        self.progress = progress
        upto = place_of(position, epoch=epoch, chunk=number, row=len(rows) + 1)
        return Due(events, upto, progress)

    # --- how it goes on --------------------------------------------------------------------------

    def _next(self, at: SnapshotProgress) -> tuple[Stage, Ask] | None:
        if at.stage == "rows":
            for name in self.collections:
                if name == at.collection and at.behind is not None:
                    return "rows", Ask(name, at.behind)
                if name > at.collection:
                    return "rows", Ask(name, "")
        if at.stage in ("rows", "again") and at.again:
            is_begun = at.stage == "again"
            return "again", Ask(at.again[0], (at.behind or "") if is_begun else "")
        return None

    def _after(self, asked: _Asked) -> SnapshotProgress:
        """How far it is when that is handed in."""
        assert asked.chunk is not None, "it hasn't been read"
        behind, now = asked.chunk.behind, self.progress
        if asked.stage == "rows":
            name = asked.ask.collection
            after = replace(now, step=now.step + 1, collection=name, behind=behind)
        else:
            again = now.again[1:] if behind is None else now.again
            after = replace(now, step=now.step + 1, stage="again", behind=behind, again=again)
        return after if self._next(after) is not None else self._ended(after)

    def _ended(self, at: SnapshotProgress) -> SnapshotProgress:
        stage: Stage = "compare" if self.snapshot.compares else "done"
        return replace(at, step=at.step + 1, stage=stage, behind="", again=())


class SnapshotSteps:
    """What partitions store of snapshots with each position: as of the last note at or before it.
    Texts as `SnapshotProgress` writes them; empty: there never was one."""

    def __init__(self, stored: str = "") -> None:
        self._notes = [("", stored)]

    @property
    def newest(self) -> str:
        return self._notes[-1][1]

    def add(self, position: str, progress: SnapshotProgress) -> None:
        """From `position` on it is that far; positions come in their order."""
        self._notes.append((position, str(progress)))

    def settle(self) -> None:
        """All up to the newest is stored wherever it belongs, so whatever is stored next is behind
        that."""
        del self._notes[:-1]
        self._notes[0] = ("", self.newest)

    def at(self, position: str) -> str:
        return next(text for since, text in reversed(self._notes) if since <= position)
