"""A position is put elsewhere over HTTP, with the real stores of positions and records."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import apsw
import pytest

from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.client.http import HttpClient
from headgate.decide.coordination.effects import FenceCheckpoints
from headgate.decide.coordination.sources import resetting
from headgate.errors import HeadgateError, NotNow, StorageFailed
from headgate.model.api import ResetAnswer, ResetPartition, ResetTo
from headgate.model.event import Event, Fence, PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.position import Position, Tally
from headgate.model.topology import FormerVersion, Owner, Topic
from headgate.services.coordinator import routes
from tests.services.coordinator.test_service import Served, running

REF = PartitionRef("flights", 0)
PATH = "/v1/topics/flights/partitions/0/reset"
HELD = Fence(1, 4)


async def prepare(served: Served, tmp_path: Path) -> EmbeddedCheckpointStore:
    """Ten records, of which six are settled by a lane under HELD."""
    term = served.coordinator._leading()
    await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
    folder = DataFolder.open(tmp_path / "data")
    writer, positions = EmbeddedLogWriter(folder), EmbeddedCheckpointStore(folder)
    await writer.open(REF, epoch=1, version=1)
    events = [Event(f"e{number}", b"{}") for number in range(10)]
    await writer.append(REF, events, version=1, now_ms=1)
    await writer.close()
    await positions.claim(REF, HELD)
    await positions.save(REF, HELD, 6, Tally(acknowledged=6))
    return positions


async def ask(served: Served, body: ResetPartition) -> ResetAnswer:
    async with HttpClient(served.coordinator._routes.url, timeout_s=10) as client:
        return await client.post(PATH, body, ResetAnswer)


@pytest.mark.parametrize(
    ("body", "counts", "expected"),
    [
        pytest.param(
            ResetPartition("earliest"), (1, 6, 0),
            Position(0, Tally(acknowledged=6), redeliver_to=6), id="everything again",
        ),
        pytest.param(
            ResetPartition(4), (4, 3, 0),
            Position(3, Tally(acknowledged=6), redeliver_to=6), id="some of it again",
        ),
        pytest.param(
            ResetPartition("latest"), (11, 0, 4),
            Position(10, Tally(acknowledged=6, skipped=4)), id="nothing of what waits",
        ),
        pytest.param(
            ResetPartition("latest", resync=True), (11, 0, 4),
            Position(6, Tally(acknowledged=6), skip_to=10), id="once subscribers know",
        ),
        pytest.param(
            ResetPartition("latest", dry_run=True), (11, 0, 4),
            Position(6, Tally(acknowledged=6)), id="only to see",
        ),
    ],
)  # fmt: skip
async def test_the_position_is_where_the_operator_wants_it(
    tmp_path: Path, body: ResetPartition, counts: tuple[int, int, int], expected: Position
) -> None:
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        answer = await ask(served, body)
        assert (answer.next_seq, answer.repeats, answer.skips) == counts
        assert answer.settled == 6
        assert await positions.list() == {REF: expected}
        if not body.dry_run:
            with pytest.raises(HeadgateError, match="is held by"):
                await positions.save(REF, HELD, 7, Tally())
        await positions.close()


async def test_a_store_that_is_away_resets_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "RESET_TIMEOUT_S", 0.2)
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        term = served.coordinator._leading()
        away = asyncio.Event()
        reset = term._checkpoints.reset

        async def fails(*_: object, **__: object) -> None:
            away.set()
            raise StorageFailed("the disk is full")

        monkeypatch.setattr(term._checkpoints, "reset", fails)
        with pytest.raises(NotNow, match="is reset when they do"):
            await ask(served, ResetPartition("earliest"))
        assert away.is_set()
        assert (await positions.list())[REF].settled == 6
        monkeypatch.setattr(term._checkpoints, "reset", reset)
        await term.until(lambda: resetting.is_done(term.cluster, REF), timeout_s=10)
        assert (await positions.list())[REF].settled == 0
        await positions.close()


async def test_what_a_coordinator_could_not_reset_before_its_end_is_reset_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "RESET_TIMEOUT_S", 0.2)
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)

        async def fails(*_: object, **__: object) -> None:
            raise StorageFailed("the disk is full")

        monkeypatch.setattr(served.coordinator._leading()._checkpoints, "reset", fails)
        with pytest.raises(NotNow, match="is reset when they do"):
            await ask(served, ResetPartition("earliest"))
        assert (await positions.list())[REF].settled == 6
    async with running(tmp_path) as served:
        term = served.coordinator._leading()
        await term.until(lambda: resetting.is_done(term.cluster, REF), timeout_s=10)
        assert (await positions.list())[REF].settled == 0
    await positions.close()


GROUP = Group(group_id("flights", "radar"), "flights", "radar", 2)


async def with_group(served: Served, positions: EmbeddedCheckpointStore) -> None:
    """Of its two targets one has processed five records; nobody is there."""
    served.coordinator._leading().cluster.groups.by_id[GROUP.id] = GROUP
    for target, settled in enumerate((5, 1)):
        place = GROUP.position_ref(target, 0)
        await positions.claim(place, Fence(1))
        await positions.save(place, Fence(1), settled, Tally())


async def found(positions: EmbeddedCheckpointStore) -> list[Position]:
    return [await positions.claim(place, Fence(9)) for place in GROUP.position_refs(0)]


async def test_groups_go_back_with_the_partition(tmp_path: Path) -> None:
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        await with_group(served, positions)
        await ask(served, ResetPartition(4))
        assert await found(positions) == [
            Position(3, again_to=5, ahead_to=6),
            Position(1, ahead_to=6),
        ]
        await positions.close()


async def test_groups_go_back_in_what_came_behind_the_partition_too(tmp_path: Path) -> None:
    """Of a topic that was repartitioned: who gets a key's older events again ends with the newer
    ones, which are in another partition by now."""
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        await with_group(served, positions)
        cluster = served.coordinator._leading().cluster
        former = FormerVersion(1, (0,), (10,))
        cluster.topics["flights"] = Topic(
            "flights", 2, version=2, after=(10, 4), former=(former,), original=1, begins=(4,)
        )
        place = GROUP.position_ref(0, 1)
        await positions.claim(place, Fence(1))
        await positions.save(place, Fence(1), 9, Tally())
        await ask(served, ResetPartition(4))
        assert await found(positions) == [
            Position(3, again_to=5, ahead_to=6),
            Position(1, ahead_to=6),
        ]
        assert await positions.claim(place, Fence(9)) == Position(4, again_to=9)
        await positions.close()


async def test_groups_go_back_where_nobody_has_claimed_their_position_yet(tmp_path: Path) -> None:
    """Whoever has the target saves what it processed of a new partition once the wish is noted: it
    goes on, and whoever comes next begins where the wish says."""
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        await with_group(served, positions)
        cluster = served.coordinator._leading().cluster
        former = FormerVersion(1, (0,), (10,))
        cluster.topics["flights"] = Topic(
            "flights", 2, version=2, after=(10, 0), former=(former,), original=1, begins=(0,)
        )
        owner = cluster.groups.targets.take(GROUP.refs()[0], "consumer")
        await ask(served, ResetPartition(4))
        place = GROUP.position_ref(0, 1)
        assert (await positions.claim(place, Fence(owner.epoch))).settled == 0
        await positions.save(place, Fence(owner.epoch), 9, Tally())
        assert await positions.claim(place, Fence(9)) == Position(0, again_to=9)
        await positions.close()


async def test_one_group_whose_position_is_damaged_holds_no_partition(tmp_path: Path) -> None:
    """It could not be put back: the operator is told which one it is, and nothing has changed."""
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        await with_group(served, positions)
        bad = GROUP.position_ref(1, 0)
        connection = apsw.Connection(str(DataFolder(tmp_path / "data").checkpoints_file))
        spoilt = "UPDATE checkpoints SET tally = 'lost' WHERE topic = ? AND partition = ?"
        connection.execute(spoilt, (bad.topic, bad.partition))
        with pytest.raises(StorageFailed, match=f"what is stored for {re.escape(str(bad))}"):
            await ask(served, ResetPartition(4))
        assert resetting.is_done(served.coordinator._leading().cluster, REF)
        await positions.save(REF, HELD, 7, Tally(acknowledged=7))
        deleted = "DELETE FROM checkpoints WHERE topic = ? AND partition = ?"
        connection.execute(deleted, (bad.topic, bad.partition))
        connection.close()
        await ask(served, ResetPartition(4))
        assert (await found(positions))[0] == Position(3, again_to=5, ahead_to=7)
        await positions.close()


@pytest.mark.parametrize("to", ["latest", 9], ids=["to the end", "on to a record"])
async def test_groups_stay_where_they_are_when_it_goes_forward(tmp_path: Path, to: ResetTo) -> None:
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        await with_group(served, positions)
        await ask(served, ResetPartition(to))
        assert await found(positions) == [Position(5), Position(1)]
        await positions.close()


async def test_groups_are_put_back_by_the_next_coordinator_too(tmp_path: Path) -> None:
    """The first one has put the partition back, and nobody knows."""
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        await with_group(served, positions)
        await positions.reset(REF, HELD, 3)
        await ask(served, ResetPartition(4))
        assert await found(positions) == [
            Position(3, again_to=5, ahead_to=6),
            Position(1, ahead_to=6),
        ]
        await positions.close()


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        pytest.param(PATH, ResetPartition(12), "records 1 to 10 of flights:0", id="beyond"),
        pytest.param(
            PATH, ResetPartition("earliest", resync=True), "leave --resync out", id="resync back"
        ),
        pytest.param(
            PATH.replace("/0/", "/7/"), ResetPartition(1), "no partition 7", id="no such partition"
        ),
        pytest.param(
            PATH.replace("/0/", "/x/"), ResetPartition(1), "no number", id="no partition at all"
        ),
        pytest.param(
            PATH.replace("flights", "ships"), ResetPartition(1), "no topic ships", id="no topic"
        ),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, path: str, body: ResetPartition, message: str
) -> None:
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        async with HttpClient(served.coordinator._routes.url) as client:
            with pytest.raises(HeadgateError, match=message):
                await client.post(path, body, ResetAnswer)
        assert await positions.list() == {REF: Position(6, Tally(acknowledged=6))}
        await positions.close()


async def test_what_was_settled_past_where_it_is_read_again_is_put_back(tmp_path: Path) -> None:
    """By somebody who went on while it couldn't be claimed, and whom nobody could stop."""
    async with running(tmp_path) as served:
        positions = await prepare(served, tmp_path)
        term = served.coordinator._leading()
        await term._fence(FenceCheckpoints((Owner(REF, "r-1", 8),), again={REF: 4}))
        expected = Position(4, Tally(acknowledged=6), redeliver_to=6)
        assert await positions.list() == {REF: expected}
        await term._fence(FenceCheckpoints((Owner(REF, "r-1", 9),), again={REF: 5}))
        assert await positions.list() == {REF: expected}
        await positions.close()
