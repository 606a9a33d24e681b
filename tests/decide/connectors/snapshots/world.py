"""An origin, its stream, a log of several partitions and a connector that takes a snapshot, one
step after the other, in any order: what `Snapshotting` is judged in.

The origin is a list of all states that it ever had. Rows are read at any moment behind the one in
which they are asked for, and brought at any later one. Whoever hands in may die between any two
partitions; partitions admit what comes by the same rules as every store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import msgspec
from msgspec.structs import replace

from headgate.decide.connectors.intake import admit
from headgate.decide.connectors.intake_portions import portions
from headgate.decide.connectors.plan import ConnectorPlan, in_turns, plan
from headgate.decide.connectors.snapshots.missing_keys import Divide, MissingKeys
from headgate.decide.connectors.snapshots.places import of_stream
from headgate.decide.connectors.snapshots.snapshotting import (
    Ask,
    Due,
    Snapshotting,
    next_snapshot,
)
from headgate.decide.produce.placement import partition_of
from headgate.model.chunk import Chunk
from headgate.model.connector import Connector, ConnectorRoute, Snapshot
from headgate.model.event import UNKNOWN_HEADER, Event, PartitionRef, Record
from headgate.model.intake import IntakeMark, IntakePosition
from headgate.model.topology import Topic

NAME = "shop"
COLLECTIONS = ("items", "orders")
ASIDE = "made_aside"
"""What is renamed onto another one; no route leads there."""
Row = dict[str, int]
Table = dict[tuple[str, str], Row]
PARTIAL = msgspec.json.encode({UNKNOWN_HEADER: '["large"]'})


class Died(Exception):
    """Whoever read the connector is no more."""


def position(number: int) -> str:
    return f"{number:06d}"


def _behind(key: str) -> str:
    """Where the origin goes on, in its own words: they don't sort like keys."""
    return f"t{99 - int(key[1:]):02d}"


def _key_of(behind: str) -> str:
    return f"k{99 - int(behind[1:])}" if behind else ""


def document(row: Row) -> bytes:
    return msgspec.json.encode(row)


class World:
    def __init__(self, chance: Random, *, keys: int = 7, partitions: int = 2) -> None:
        self.chance = chance
        self.keys = [f"k{number}" for number in range(keys)]
        self.states: list[Table] = [{}]
        self.changes: list[Event] = []
        self.untold: set[str] = set()
        """Positions of changes that the stream has lost."""
        self.topic = Topic("changes", partitions)
        self.logs: dict[PartitionRef, list[Record]] = {}
        self.stored: dict[PartitionRef, list[IntakePosition]] = {}
        self.epoch = 1
        self.deaths = 0.0
        self.connector = Connector(
            NAME,
            "mongodb",
            tuple(ConnectorRoute(name, "changes") for name in COLLECTIONS),
            {},
            beginning=1,
        )
        self.reader: Reader | None = None
        self.begun_at = ""
        self.rows_ended_at = ""
        """Where the stream stood when all rows of the last snapshot were in the log."""

    # --- the origin ------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        return len(self.changes)

    def commit(self, *, told: bool = True) -> None:
        """Anything that a program may do."""
        table = dict(self.states[-1])
        name = self.chance.choice((*COLLECTIONS, COLLECTIONS[1], ASIDE))
        key, value = self.chance.choice(self.keys), self.head
        there = table.get((name, key))
        draw = self.chance.random()
        if draw < 0.03:
            table = {at: row for at, row in table.items() if at[0] != name}
            self._changed(Event("", b"null", None, "truncate", name), table, told)
        elif draw < 0.06 and name != ASIDE:
            table = {at: row for at, row in table.items() if at[0] != name}
            moved = [at for at in table if at[0] == ASIDE]
            for at in moved:
                table[name, at[1]] = table.pop(at)
            to = msgspec.json.encode({"to": name})
            self._changed(Event("", to, None, "rename", ASIDE), table, told)
        elif there is None:
            row = table[name, key] = {"n": value, "large": value}
            self._changed(Event("", document(row), key, "insert", name), table, told)
        elif draw < 0.25:
            del table[name, key]
            self._changed(Event("", b"{}", key, "delete", name), table, told)
        elif draw < 0.6:
            table[name, key] = {**there, "n": value}
            part = Event("", document({"n": value}), key, "update", name, headers=PARTIAL)
            self._changed(part, table, told)
        else:
            row = table[name, key] = {"n": value, "large": value}
            self._changed(Event("", document(row), key, "update", name), table, told)

    def _changed(self, event: Event, table: Table, told: bool) -> None:
        at = position(self.head + 1)
        self.changes.append(replace(event, event_id=f"e{at}", source=at))
        self.states.append(table)
        if not told:
            self.untold.add(at)

    # --- the log ---------------------------------------------------------------------------------

    def take_in(self, ref: PartitionRef, mark: IntakeMark, events: Sequence[Event]) -> str:
        known, log = self.stored.get(ref, []), self.logs.setdefault(ref, [])
        version = self.topic.version
        admitted = admit(ref, known, mark, events, version=version)
        for event in admitted.events:
            log.append(
                Record(
                    ref.topic,
                    ref.partition,
                    len(log) + 1,
                    version,
                    event.event_id,
                    event.key,
                    event.collection,
                    event.op,
                    event.document,
                    event.earlier,
                    event.source,
                    0,
                    event.headers,
                )
            )
        kept = [one for one in known if mark.forgets_below <= one.version != version]
        self.stored[ref] = [*kept, admitted.position]
        return admitted.position.position

    def repartition(self, to: int) -> None:
        topic = self.topic
        known = (topic.original or topic.partitions) + len(topic.begins)
        self.topic = replace(
            topic,
            partitions=to,
            version=topic.version + 1,
            after=(0,) * to,
            original=topic.original or topic.partitions,
            begins=(*topic.begins, *(0 for _ in range(known, to))),
        )
        self.reader = None

    # --- the connector ---------------------------------------------------------------------------

    def wish(self, *, compares: bool = False) -> None:
        """A snapshot of everything."""
        self.epoch += 1
        wanted = (*self.connector.snapshots, Snapshot(self.epoch, compares=compares))
        self.connector = replace(self.connector, snapshots=wanted)
        self.reader = None

    def reset(self) -> None:
        """Begin anew at now, and find out what there is."""
        self.epoch += 1
        snapshots = (Snapshot(self.epoch, compares=True),)
        self.connector = replace(
            self.connector, beginning=self.epoch, begun=False, snapshots=snapshots
        )
        self.reader = None

    def step(self) -> None:
        """Whoever reads does one thing; somebody does."""
        try:
            if self.reader is None:
                self.epoch += 1
                self.reader = Reader(self)
            self.reader.step()
        except Died:
            self.reader = None

    def is_done(self) -> bool:
        reader = self.reader
        return (
            reader is not None
            and reader.position == position(self.head)
            and reader.snapshotting is None
        )

    def records(self) -> list[Record]:
        found = [record for log in self.logs.values() for record in log]
        return sorted(found, key=lambda one: (one.version, one.seq))


class Reader:
    """What a connector's reader does, one step at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance
        refs = [PartitionRef("changes", number) for number in range(world.topic.partitions)]
        for ref in refs:
            world.take_in(ref, self._mark(), ())
        found = {ref: world.stored.get(ref, []) for ref in world.topic.all_refs()}
        self.plan: ConnectorPlan = plan(world.connector, [world.topic], found)
        begin = of_stream(self.plan.resume) or position(world.head)
        self.position = begin
        world.begun_at = world.begun_at or begin
        if not self.plan.resume:
            had = {record.source for record in world.records()}
            before = {one.source or "" for one in world.changes[: int(begin)]}
            world.untold |= before - had
        lacking = self.plan.lacking(begin)
        for ref in self.plan.unpinned():
            marker = Event(f"begun/{ref.partition}", b"null", None, "lost", "", None, begin)
            self._hand_in(ref, [marker] if ref in lacking else [], begin)
        self.chunks = count(1)
        self.snapshotting: Snapshotting | None = None
        self.asked: tuple[Ask, int] | None = None
        self.missing: MissingKeys | None = None
        self._go_on()

    def _go_on(self) -> None:
        stored = self.plan.snapshots.newest
        found = next_snapshot(self.world.connector.snapshots, stored)
        self.snapshotting = None
        if found is not None:
            snapshot, progress = found
            self.snapshotting = Snapshotting(
                snapshot,
                progress,
                name=NAME,
                epoch=self.world.epoch,
                chunks=self.chunks,
                level=self.plan.level,
                leads=lambda name: self.plan.topic_of(name) is not None,
            )
            self.snapshotting.listed((*COLLECTIONS, ASIDE))

    def step(self) -> None:
        """The stream goes on; rows are asked for, or brought; what is due is handed in."""
        end = min(int(self.position) + self.chance.randrange(4), self.world.head)
        events = self.world.changes[int(self.position) : end]
        events = [one for one in events if one.source not in self.world.untold]
        self.position = position(end)
        self.plan.snapshots.settle()
        due = None if self.snapshotting is None else self._beside(self.snapshotting, events)
        *before, last = in_turns(events)
        for turn in before:
            self._hand_in_all(turn, turn[-1].source or "", everywhere=False)
        self._hand_in_all(last, self.position, everywhere=self.chance.random() < 0.3)
        if due is not None:
            self.plan.snapshots.add(due.upto, due.progress)
            self._hand_in_all(due.events, due.upto, everywhere=True)
            if due.progress.stage in ("compare", "done") and self.missing is None:
                self.world.rows_ended_at = max(self.world.rows_ended_at, self.position)
            if due.progress.stage == "done":
                self._go_on()

    def _beside(self, snapshotting: Snapshotting, events: Sequence[Event]) -> Due | None:
        for since, progress in snapshotting.saw(events):
            self.plan.snapshots.add(since, progress)
        if self.missing is not None:
            self.missing.since(events)
        if self.asked is not None and self.chance.random() < 0.5:
            snapshotting.read(self.asked[0], self._rows(*self.asked))
            self.asked = None
        if self.asked is None and (ask := snapshotting.ask(self.position)) is not None:
            self.asked = ask, int(self.position)
        if snapshotting.progress.stage == "compare" and snapshotting.is_level(self.position):
            return self._compared(snapshotting)
        return snapshotting.due(self.position)

    def _rows(self, ask: Ask, since: int) -> Chunk:
        """As they were at any moment since they were asked for."""
        head = self.world.head
        at = self.chance.choice((since, self.chance.randint(since, head)))
        table = self.world.states[at]
        last = _key_of(ask.behind)
        mine = sorted(key for name, key in table if name == ask.collection and key > last)
        some = mine[: self.chance.randint(1, 3)]
        rows = [
            Event("", document(table[ask.collection, key]), key, "read", ask.collection)
            for key in some
        ]
        upto = position(self.chance.choice((at, self.chance.randint(at, head))))
        return Chunk(rows, upto, _behind(some[-1]) if len(some) < len(mine) else None)

    def _compared(self, snapshotting: Snapshotting) -> Due:
        if self.missing is None:
            self.missing = MissingKeys(
                0, 1, is_own=lambda _: True, is_asked=lambda name: name in COLLECTIONS
            )
            divide = Divide("begun/")
            for log in self.world.logs.values():
                divide.look(log)
            records = [one for log in self.world.logs.values() for one in log]
            self.missing.before(one for one in records if not divide.is_since(one))
            self.missing.since(one for one in records if divide.is_since(one))
            self.missing.since(self.world.changes[int(self._least()) : int(self.position)])
        keys = [key for key, _ in self.missing.found()][:2]
        deletes = [Event("", b"{}", key, "delete", name) for name, key in keys]
        due = snapshotting.missing(self.position, deletes, are_all=len(keys) < 2)
        self.missing.since(deletes)
        return due

    def _least(self) -> str:
        return of_stream(min(self.plan.reached.values()))

    # --- handing in ------------------------------------------------------------------------------

    def _hand_in_all(self, events: Sequence[Event], upto: str, *, everywhere: bool) -> None:
        parts, _ = self.plan.split(events)
        refs = self.plan.refs if everywhere else list(parts)
        self.chance.shuffle(refs)
        for ref in refs:
            self._hand_in(ref, parts.get(ref, []), upto)

    def _hand_in(self, ref: PartitionRef, events: Sequence[Event], upto: str) -> None:
        for portion, end in portions(events, upto, most_events=2, most_bytes=1_000):
            after = self.plan.reached.get(ref, "")
            if after >= end:
                continue
            if self.chance.random() < self.world.deaths:
                raise Died
            mark = self._mark(after=after, upto=end, snapshot=self.plan.snapshots.at(end))
            mark = replace(mark, forgets_below=self.plan.forgets_below(ref))
            self.plan.reached[ref] = self.world.take_in(ref, mark, portion)

    def _mark(self, **more: str) -> IntakeMark:
        return IntakeMark(
            connector=NAME,
            epoch=self.world.epoch,
            beginning=self.world.connector.beginning,
            partitions=self.world.topic.partitions,
            **more,  # type: ignore[arg-type]
        )


# --- what came of it ------------------------------------------------------------------------------


def judge(world: World, counts: dict[int, int]) -> None:
    """Every read tells how the row was at its place, and the log's last state of every key is the
    origin's."""
    final = {at: row for at, row in world.states[-1].items() if at[0] in COLLECTIONS}
    for name in COLLECTIONS:
        for key in world.keys:
            row, renamed_at = _folded(world, name, key, counts)
            if renamed_at <= world.rows_ended_at:
                assert row == final.get((name, key)), (name, key)
    told = [one for one in world.changes if one.source not in world.untold]
    by_source = {record.source for record in world.records()}
    lost = [
        one
        for one in told
        if one.collection in COLLECTIONS
        and one.key
        and (one.source or "") > world.begun_at
        and one.source not in by_source
    ]
    assert not lost, lost


def _folded(world: World, name: str, key: str, counts: dict[int, int]) -> tuple[Row | None, str]:
    """What the log says that the row is; and where something was renamed onto its collection since
    it was last told: what came with that nobody has told."""
    row: Row | None = None
    newest = renamed_at = ""
    for record in _of_key(world, name, key, counts):
        if record.op == "lost":
            continue
        source = record.source or ""
        if record.key is None:
            if record.op == "rename" and _to(record) == name:
                row, renamed_at = None, source
            elif record.op != "rename" and record.collection == name:
                row, renamed_at = None, ""
            continue
        assert source > newest, f"{record} comes behind {newest}"
        newest = source
        told = msgspec.json.decode(record.document)
        if record.headers is not None:
            row = {**(row or {}), **told}
        else:
            row, renamed_at = (None if record.op == "delete" else told), ""
        if record.op == "read":
            was = world.states[int(of_stream(source))].get((name, key))
            assert told == was, f"{record} tells what was not so there: {was}"
    return row, renamed_at


def _to(record: Record) -> str:
    found: dict[str, str] = msgspec.json.decode(record.document)
    return found["to"]


def _of_key(world: World, name: str, key: str, counts: dict[int, int]) -> list[Record]:
    """What stands in the partitions of the key, of each version."""
    return [
        record
        for record in world.records()
        if record.partition == partition_of(key, collection=name, count=counts[record.version])
        and (record.key is None or (record.collection, record.key) == (name, key))
    ]


def run(world: World, work: Callable[[], None], *, steps: int) -> dict[int, int]:
    """`work` says what else happens, before each step; then all is left alone until it is done. The
    counts of all versions."""
    counts = {world.topic.version: world.topic.partitions}
    for _ in range(steps):
        work()
        counts[world.topic.version] = world.topic.partitions
        world.step()
    world.deaths = 0.0
    for _ in range(2_000):
        if world.is_done():
            return counts
        world.step()
    raise AssertionError(f"it doesn't end: {world.reader and world.reader.plan.snapshots.newest}")
