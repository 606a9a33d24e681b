"""A repartition, phase by phase: what each waits for, what ends it early, who goes on with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.decide.coordination.sources.resetting import PlannedReset, wanted
from headgate.decide.coordination.topics.repartitions import LIFE, Event, Phase
from headgate.decide.lane.checkpoints import Reset
from headgate.decide.states import OutOfTurn
from headgate.errors import InvalidRequest, NotNow, UnknownTopic
from headgate.model.api import ResetTo
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import IngestReport, LaneReport, PartitionReport
from headgate.model.control.to_coordinator import Sealed
from headgate.model.topology import FormerVersion, Topic
from tests.decide.coordination.world import World, ref

ENDS = {0: 5, 1: 7, 2: 0, 3: 0, 4: 0}
"""Where partitions end when they are sealed."""


class Cutover(World):
    """Sessions acknowledge when the test says so, and ingest nodes tell where partitions end."""

    def begin(self, partitions: int = 2, to: int = 4, *, read: bool = True) -> None:
        self.gateway = self.join("gateway", "gateway-1")
        self.ingest = self.join("ingest", "ingest-1")
        self.router = self.join("router", "router-1")
        self.create("flights", partitions)
        self.acks = False
        self.apply(self.cluster.repartition("flights", to, self.now_ms))
        if read:
            self.reader = self.lane(*self.sources("flights"))

    @property
    def topic(self) -> Topic:
        return self.cluster.topics["flights"]

    @property
    def phase(self) -> str:
        """Empty where there is no repartition."""
        return str(self.topic.repartition.phase) if self.topic.repartition else ""

    def acknowledge(self, *sessions: int, generation: int | None = None) -> None:
        for session in sessions:
            now = self.cluster.generation if generation is None else generation
            sealed = self.ends() if session == self.ingest else ()
            self.say(session, to_coordinator.AckTopology(now, sealed=sealed))

    def ends(self) -> tuple[Sealed, ...]:
        """What the node has sealed, as the topology wants it."""
        owners = self.cluster.logs.of_node("ingest-1")
        is_sealing = self.phase == "sealing"
        return tuple(
            Sealed(owner.ref, owner.epoch, ENDS[owner.ref.partition])
            for owner in owners
            if is_sealing or owner.ref.partition >= self.topic.partitions
        )

    def settle(self, lane: int, *, parked: bool = False, **settled: int) -> None:
        """`settled` by partition, as p0=5."""
        reports = [
            PartitionReport(ref("flights", int(name[1:])), seq, seq, 0, parked=parked)
            for name, seq in settled.items()
        ]
        report = LaneReport(
            partitions=tuple(reports), read=0, matched=0, delivered=0, filter_errors=0
        )
        self.say(lane, report)

    def to_fenced(self) -> None:
        self.acknowledge(self.ingest)
        self.acknowledge(self.ingest)


@pytest.fixture
def world() -> Cutover:
    world = Cutover()
    world.begin()
    return world


def test_the_partitions_to_come_get_owners_before_anything_waits() -> None:
    world = Cutover()
    world.begin(read=False)
    assert world.phase == "announced"
    assert [owner.ref.partition for owner in world.cluster.logs.owned()] == [0, 1, 2, 3]
    assert [owner.ref.partition for owner in world.sources("flights")] == [0, 1, 2, 3]
    assert world.topic.partitions == 2
    world.acknowledge(world.gateway, world.router)
    assert world.phase == "announced"
    world.acknowledge(world.ingest)
    waiting = world.cluster.repartitions.progress["flights"].waits_for
    assert (world.phase, waiting) == ("announced", "no lane of router router-1 reads flights:0 yet")
    world.lane(*world.sources("flights"))
    world.acknowledge(world.ingest)
    assert world.phase == "sealing"


def test_lanes_that_take_long_are_not_waited_for() -> None:
    world = Cutover()
    world.begin(read=False)
    world.acknowledge(world.ingest)
    world.wait(15_000, alive=(world.gateway, world.ingest, world.router))
    assert world.phase == "sealing"


def test_the_fence_is_kept_in_one_step_with_where_everything_ends(world: Cutover) -> None:
    world.to_fenced()
    assert world.phase == "fenced"
    assert world.topic.former == (FormerVersion(1, (0, 0), (5, 7)),)
    assert (world.topic.version, world.topic.after) == (2, (5, 7, 0, 0))
    assert world.persisted().topics == (world.topic,)
    pushed = world.last(world.ingest, from_coordinator.PushTopology).topology
    assert pushed.topic("flights") == world.topic


def test_what_was_sealed_by_an_earlier_topology_counts_for_nothing(world: Cutover) -> None:
    world.acknowledge(world.ingest)
    world.say(
        world.ingest,
        to_coordinator.AckTopology(world.cluster.generation - 1, sealed=world.ends()),
    )
    assert world.phase == "sealing"


def test_what_changed_hands_while_it_was_sealed_is_sealed_by_its_new_owner(world: Cutover) -> None:
    world.acknowledge(world.ingest)
    sealed = world.ends()
    world.say(world.ingest, to_coordinator.EpochTooLow(ref("flights", 1), 5))
    world.say(world.ingest, to_coordinator.AckTopology(world.cluster.generation, sealed=sealed))
    assert world.phase == "sealing"
    world.acknowledge(world.ingest)
    assert world.phase == "fenced"


def test_lanes_go_on_once_every_gateway_knows(world: Cutover) -> None:
    world.to_fenced()
    world.acknowledge(world.router)
    assert world.phase == "fenced"
    world.acknowledge(world.gateway)
    assert world.phase == "draining"


def test_it_is_drained_when_lanes_have_settled_what_was_before(world: Cutover) -> None:
    world.to_fenced()
    world.acknowledge(world.gateway, world.router)
    lane = world.reader
    world.settle(lane, p0=5, p1=6, p2=1)
    world.wait(1_000, alive=(world.gateway, world.ingest, world.router))
    assert world.phase == "draining"
    waiting = world.cluster.repartitions.progress["flights"].waits_for
    assert waiting == "records from before the cutover are unsettled in partition 1"
    world.settle(lane, p0=5, p1=7, p2=1)
    world.wait(1_000, alive=(world.gateway, world.ingest, world.router))
    assert world.phase == "drained"


def drained(world: Cutover) -> None:
    world.to_fenced()
    world.acknowledge(world.gateway, world.router)
    world.settle(world.reader, p0=5, p1=7)
    world.wait(1_000, alive=(world.gateway, world.ingest, world.router))


def test_it_is_final_when_everybody_routes_by_it(world: Cutover) -> None:
    drained(world)
    assert world.phase == "drained"
    world.acknowledge(world.ingest)
    world.wait(1_000, alive=(world.gateway, world.ingest, world.router))
    assert not world.phase
    assert (world.topic.partitions, world.topic.version) == (4, 2)


def test_whoever_never_routes_by_it_is_waited_for_until_a_bound(world: Cutover) -> None:
    drained(world)
    alive = (world.gateway, world.ingest, world.router)
    world.wait(29_000, alive=alive)
    assert world.phase == "drained"
    waiting = world.cluster.repartitions.progress["flights"].waits_for
    assert waiting == "ingest node ingest-1 doesn't route by the new version yet"
    world.wait(2_000, alive=alive)
    assert not world.phase


def test_without_an_owner_that_opens_all_it_is_given_up_and_nothing_has_changed(
    world: Cutover,
) -> None:
    world.wait(31_000, alive=(world.gateway, world.ingest, world.router))
    assert not world.phase
    assert (world.topic.partitions, world.topic.version, world.topic.former) == (2, 1, ())
    assert [owner.ref.partition for owner in world.cluster.logs.owned()] == [0, 1]
    assert [owner.ref.partition for owner in world.sources("flights")] == [0, 1]
    assert "hasn't opened flights:0 yet" in world.cluster.repartitions.given_up["flights"]


def test_a_seal_that_takes_too_long_is_taken_back(world: Cutover) -> None:
    world.acknowledge(world.ingest)
    world.wait(5_000, alive=(world.gateway, world.ingest, world.router))
    assert not world.phase
    pushed = world.last(world.ingest, from_coordinator.PushTopology).topology.topic("flights")
    assert pushed is not None
    assert pushed.repartition is None
    world.apply(world.cluster.repartition("flights", 3, world.now_ms))
    assert world.topic.repartition is not None


def test_behind_the_fence_nothing_gives_it_up(world: Cutover) -> None:
    world.to_fenced()
    world.wait(120_000, alive=(world.gateway, world.ingest, world.router))
    assert world.phase == "fenced"


@pytest.mark.parametrize("phase", ["announced", "sealing", "fenced", "draining", "drained"])
def test_the_next_coordinator_goes_on_with_it(world: Cutover, phase: str) -> None:
    match phase:
        case "sealing":
            world.acknowledge(world.ingest)
        case "fenced":
            world.to_fenced()
        case "draining":
            world.to_fenced()
            world.acknowledge(world.gateway)
        case "drained":
            drained(world)
    assert world.phase == phase
    kept = world.persisted()
    after = Cutover(stored=replace(kept, boot=kept.boot + 1))
    assert after.phase == phase
    after.gateway = after.join("gateway", "gateway-1")
    after.ingest = after.join("ingest", "ingest-1")
    after.router = after.join("router", "router-1")
    alive = (after.gateway, after.ingest, after.router)
    after.acknowledge(*alive)
    lane = after.lane(*after.sources("flights"))
    for _ in range(8):
        after.acknowledge(*alive)
        after.wait(1_000, alive=alive)
    after.settle(lane, p0=5, p1=7)
    for _ in range(4):
        after.acknowledge(*alive)
        after.wait(1_000, alive=alive)
    assert not after.phase
    assert (after.topic.partitions, after.topic.version) == (4, 2)
    assert after.topic.former == (FormerVersion(1, (0, 0), (5, 7)),)


def test_a_smaller_count_leaves_the_others_to_be_read_and_takes_nothing_there() -> None:
    world = Cutover()
    world.begin(partitions=4, to=2)
    world.to_fenced()
    assert (world.topic.partitions, world.topic.after) == (2, (5, 7))
    assert world.topic.former == (FormerVersion(1, (0,) * 4, (5, 7, 0, 0)),)
    assert [owner.ref.partition for owner in world.sources("flights")] == [0, 1, 2, 3]
    assert [owner.ref.partition for owner in world.cluster.logs.owned()] == [0, 1, 2, 3]


def test_a_deleted_topic_takes_its_repartition_with_it(world: Cutover) -> None:
    world.acknowledge(world.ingest)
    world.apply(world.cluster.delete_topic("flights"))
    assert world.cluster.logs.owned() == ()
    assert world.sources("flights") == []
    assert len(world.cluster.topology().emptied) == 4
    world.wait(60_000, alive=(world.gateway, world.ingest, world.router))
    assert not world.cluster.repartitions.progress


def test_one_at_a_time_and_only_to_another_count(world: Cutover) -> None:
    with pytest.raises(NotNow, match="on its way to 4 partitions"):
        world.apply(world.cluster.repartition("flights", 8, world.now_ms))
    with pytest.raises(UnknownTopic):
        world.apply(world.cluster.repartition("flight", 8, world.now_ms))
    world.wait(31_000, alive=(world.gateway, world.ingest, world.router))
    with pytest.raises(InvalidRequest, match="has 2 partitions already"):
        world.apply(world.cluster.repartition("flights", 2, world.now_ms))
    with pytest.raises(InvalidRequest, match="1 to "):
        world.apply(world.cluster.repartition("flights", 0, world.now_ms))


def test_positions_are_not_reset_meanwhile(world: Cutover) -> None:
    world.acknowledge(world.ingest)
    with pytest.raises(NotNow, match="sealing"):
        world.apply(world.cluster.reset(ref("flights"), Reset(1), world.now_ms))


def test_what_cannot_be_read_is_skipped_meanwhile(world: Cutover) -> None:
    """Or everything that waits for it waits for ever."""
    world.to_fenced()
    with pytest.raises(NotNow, match=r"when that is over$"):
        world.apply(world.cluster.reset(ref("flights"), Reset(5, only_forward=True), world.now_ms))
    world.acknowledge(world.gateway, world.router)
    assert world.phase == "draining"
    with pytest.raises(NotNow, match="or skip what can't be read"):
        world.apply(world.cluster.reset(ref("flights"), Reset(1), world.now_ms))
    world.apply(world.cluster.reset(ref("flights"), Reset(5, only_forward=True), world.now_ms))
    assert ref("flights") in world.cluster.resets


@pytest.mark.parametrize(
    ("to", "repeats", "only_forward"),
    [(6, 0, True), (6, 2, False), ("latest", 0, True), ("earliest", 4, False)],
)
def test_what_skips_goes_forward_alone_while_it_is_under_way(
    world: Cutover, to: ResetTo, repeats: int, only_forward: bool
) -> None:
    plan = PlannedReset(5, repeats, 0)
    reset = wanted(world.cluster, ref("flights"), to, plan, resync=True)
    assert reset == Reset(5, resync=True, only_forward=only_forward)


def test_nor_is_it_begun_while_one_is_reset() -> None:
    world = Cutover()
    world.join("ingest", "ingest-1")
    world.join("router", "router-1")
    world.lane(*world.create("flights", 2))
    world.apply(world.cluster.reset(ref("flights"), Reset(1), world.now_ms))
    with pytest.raises(NotNow, match="being reset"):
        world.apply(world.cluster.repartition("flights", 4, world.now_ms))


def test_what_is_not_in_the_table_is_a_mistake() -> None:
    with pytest.raises(OutOfTurn):
        LIFE.after(Phase.FENCED, Event.TOO_LATE)


def test_a_version_is_forgotten_when_the_log_has_nothing_of_it(world: Cutover) -> None:
    drained(world)
    world.acknowledge(world.ingest)
    alive = (world.gateway, world.ingest, world.router)
    world.wait(1_000, alive=alive)
    places = [ref("flights", number) for number in range(2)]
    world.say(world.ingest, IngestReport((), ((places[0], 6), (places[1], 7))))
    world.wait(1_000, alive=alive)
    assert world.topic.former, "record 7 of partition 1 is still there"
    world.say(world.ingest, IngestReport((), ((places[1], 8),)))
    world.wait(1_000, alive=alive)
    assert world.topic.former == ()
    assert (world.topic.original, world.topic.begins) == (2, (0, 0))
    assert world.topic.after == (5, 7, 0, 0)


def test_what_was_said_of_the_log_before_a_version_says_nothing_about_it(world: Cutover) -> None:
    """Who said so counted no idempotency keys of that version, and may have."""
    earliest = tuple((ref("flights", number), 9) for number in range(2))
    world.say(world.ingest, IngestReport((), earliest))
    drained(world)
    world.acknowledge(world.ingest)
    alive = (world.gateway, world.ingest, world.router)
    world.wait(1_000, alive=alive)
    world.wait(1_000, alive=alive)
    assert not world.phase
    assert world.topic.former
    world.say(world.ingest, IngestReport((), earliest))
    world.wait(1_000, alive=alive)
    assert world.topic.former == ()


def test_a_version_is_kept_while_letters_of_it_are_parked(world: Cutover) -> None:
    """Nothing else tells which letters come before which."""
    drained(world)
    world.acknowledge(world.ingest)
    alive = (world.gateway, world.ingest, world.router)
    world.wait(1_000, alive=alive)
    earliest = tuple((ref("flights", number), 9) for number in range(2))
    world.settle(world.reader, p0=5, p1=7, parked=True)
    world.say(world.ingest, IngestReport((), earliest))
    world.wait(1_000, alive=alive)
    assert world.topic.former
    world.settle(world.reader, p0=5, p1=7)
    world.wait(1_000, alive=alive)
    assert world.topic.former == ()


def test_a_number_stays_when_its_version_is_forgotten() -> None:
    world = Cutover()
    world.begin(partitions=4, to=2)
    world.to_fenced()
    world.acknowledge(world.gateway, world.router)
    world.settle(world.reader, p0=5, p1=7)
    alive = (world.gateway, world.ingest, world.router)
    world.wait(1_000, alive=alive)
    world.acknowledge(world.ingest)
    world.wait(1_000, alive=alive)
    ends = {0: 6, 1: 8, 2: 1, 3: 1}
    earliest = tuple((ref("flights", number), seq) for number, seq in ends.items())
    world.say(world.ingest, IngestReport((), earliest))
    world.wait(1_000, alive=alive)
    assert world.topic.former == ()
    assert [owner.ref.partition for owner in world.sources("flights")] == [0, 1, 2, 3]
