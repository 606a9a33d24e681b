"""The coordinator's decisions: ownership, fences, adoption, and what survives a restart."""

from __future__ import annotations

import pytest

from headgate.decide.coordination.effects import FenceCheckpoints, Persist, Send
from headgate.decide.coordination.lanes.lanes import CLAIM_MS
from headgate.errors import CallerError, InvalidRequest, NotNow, TopicExists, UnknownTopic
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import RouterReport
from headgate.model.control.to_coordinator import Hello
from headgate.model.stored import StoredState
from headgate.model.topology import Owner, Topic
from tests.decide.coordination.world import World, ref


@pytest.fixture
def world() -> World:
    return World()


class TestOwnership:
    def test_a_topic_gets_owners_for_its_log_and_its_reading(self, world: World) -> None:
        world.join("ingest", "ingest-1")
        router = world.join("router", "router-1")
        world.create("flights", 3)
        topology = world.last(router, from_coordinator.PushTopology).topology
        assert [o.node_id for o in topology.logs] == ["ingest-1"] * 3
        assert [(o.node_id, o.epoch) for o in topology.sources] == [("router-1", 1)] * 3
        assert world.last(router, from_coordinator.Assign).sources == tuple(
            world.sources("flights")
        )

    def test_partitions_spread_over_the_nodes_that_own_fewest(self, world: World) -> None:
        world.join("router", "router-1")
        world.join("router", "router-2")
        world.create("one", 1)
        world.create("many", 5)
        owners = [o.node_id for o in world.cluster.sources.owned()]
        assert owners.count("router-1") == owners.count("router-2") == 3

    def test_a_topic_made_before_any_node_is_assigned_when_nodes_come(self, world: World) -> None:
        world.create("flights", 2)
        assert world.sources("flights") == []
        router = world.join("router", "router-1")
        assert len(world.last(router, from_coordinator.Assign).sources) == 2

    def test_a_router_is_assigned_only_when_live_gateways_adopted_the_epoch(self) -> None:
        world = World(acks=False)
        gateway = world.join("gateway", "gateway-1")
        router = world.join("router", "router-1")
        world.create("flights")
        assert all(not a.sources for a in world.sent(router, from_coordinator.Assign))
        world.say(gateway, to_coordinator.AckTopology(world.cluster.generation))
        assert len(world.last(router, from_coordinator.Assign).sources) == 1

    def test_a_gateway_that_never_adopts_holds_a_router_only_for_its_lease(self) -> None:
        world = World(acks=False)
        world.join("gateway", "gateway-1")
        router = world.join("router", "router-1")
        world.create("flights")
        world.wait(29_000, alive=(router,))
        assert all(not a.sources for a in world.sent(router, from_coordinator.Assign))
        world.wait(2_000, alive=(router,))
        assert len(world.last(router, from_coordinator.Assign).sources) == 1

    def test_a_gateway_whose_connection_is_gone_holds_a_router_only_for_the_grace(self) -> None:
        world = World(acks=False)
        gateway = world.join("gateway", "gateway-1")
        router = world.join("router", "router-1")
        world.create("flights")
        world.drop(gateway)
        world.wait(1_000, alive=(router,))
        assert all(not a.sources for a in world.sent(router, from_coordinator.Assign))
        world.wait(1_000, alive=(router,))
        assert len(world.last(router, from_coordinator.Assign).sources) == 1

    def test_a_restarted_router_reads_under_a_higher_epoch_after_the_fence(
        self, world: World
    ) -> None:
        first = world.join("router", "router-1", "a")
        [owner] = world.create("flights")
        world.drop(first)
        world.effects.clear()
        second = world.join("router", "router-1", "b")
        [again] = world.sources("flights")
        assert again.epoch == owner.epoch + 1
        order = [
            type(e.message if isinstance(e, Send) else e)
            for e in world.effects
            if isinstance(e, Persist | FenceCheckpoints)
            or (isinstance(e, Send) and isinstance(e.message, from_coordinator.Assign))
        ]
        assert order == [Persist, FenceCheckpoints, from_coordinator.Assign]
        assert world.last(second, from_coordinator.Assign).sources == (again,)

    def test_a_lane_of_a_former_epoch_is_refused(self, world: World) -> None:
        first = world.join("router", "router-1", "a")
        [owner] = world.create("flights")
        world.drop(first)
        world.join("router", "router-1", "b")
        lane = world.lane(owner)
        assert world.sent(lane, from_coordinator.Refused)
        assert lane in world.hung
        assert lane not in world.cluster.lanes.by_session

    def test_a_reconnect_of_the_same_process_changes_no_epoch(self, world: World) -> None:
        first = world.join("router", "router-1", "a")
        [owner] = world.create("flights")
        number = world.last(first, from_coordinator.Assign).number
        world.drop(first)
        second = world.join("router", "router-1", "a")
        assert world.sources("flights") == [owner]
        assert world.last(second, from_coordinator.Assign).number == number

    def test_a_silent_routers_partitions_move_after_its_lease(self, world: World) -> None:
        world.join("router", "router-1")
        [owner] = world.create("flights")
        stays = world.join("router", "router-2")
        world.wait(29_000, alive=(stays,))
        assert world.sources("flights") == [owner]
        world.wait(2_000, alive=(stays,))
        assert world.sources("flights") == [Owner(ref("flights"), "router-2", owner.epoch + 1)]
        assert world.last(stays, from_coordinator.Assign).sources == tuple(world.sources("flights"))

    def test_a_goodbye_moves_partitions_at_once(self, world: World) -> None:
        leaves = world.join("router", "router-1")
        world.create("flights")
        world.join("router", "router-2")
        world.say(leaves, to_coordinator.Goodbye())
        assert [o.node_id for o in world.sources("flights")] == ["router-2"]

    def test_a_second_node_of_the_same_name_is_refused_while_the_first_lives(
        self, world: World
    ) -> None:
        first = world.join("gateway", "gateway-1", "a")
        second = world.join("gateway", "gateway-1", "b")
        assert world.sent(second, from_coordinator.Refused)
        assert second in world.hung
        assert first not in world.hung


class TestTopics:
    @pytest.mark.parametrize(
        ("name", "partitions"),
        [
            pytest.param("", 1, id="empty name"),
            pytest.param("-flights", 1, id="leading dash"),
            pytest.param("../etc", 1, id="path"),
            pytest.param("a" * 129, 1, id="too long"),
            pytest.param("a\n", 1, id="newline"),
            pytest.param("flights", 0, id="no partition"),
            pytest.param("flights", 1_025, id="too many partitions"),
        ],
    )
    def test_an_impossible_topic_is_refused_and_changes_nothing(
        self, world: World, name: str, partitions: int
    ) -> None:
        generation = world.cluster.generation
        with pytest.raises(InvalidRequest):
            world.create(name, partitions)
        assert world.cluster.topics == {}
        assert world.cluster.generation == generation

    def test_a_topic_is_created_once(self, world: World) -> None:
        world.create("flights")
        with pytest.raises(TopicExists):
            world.create("flights")

    def test_names_that_differ_only_in_case_are_the_same(self, world: World) -> None:
        world.create("flights")
        with pytest.raises(TopicExists, match="topic flights exists"):
            world.create("Flights")

    def test_deleting_what_is_not_there_is_an_error(self, world: World) -> None:
        with pytest.raises(UnknownTopic):
            world.apply(world.cluster.delete_topic("flights"))

    def test_a_deleted_topic_takes_its_subscriptions_along(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        router = world.join("router", "router-1")
        owners = world.create("flights")
        lane = world.lane(*owners)
        world.subscribe(gateway, "s1")
        world.apply(world.cluster.delete_topic("flights"))
        assert world.last(lane, from_coordinator.LetGo).owners == tuple(owners)
        assert not world.cluster.registry.subscriptions
        assert world.last(router, from_coordinator.Assign).sources == ()
        assert world.last(gateway, from_coordinator.PushTopology).topology.deleted == ("flights",)

    def test_a_topic_that_comes_back_continues_its_epochs(self, world: World) -> None:
        world.join("ingest", "ingest-1")
        world.join("router", "router-1")
        [before] = world.create("flights")
        world.apply(world.cluster.delete_topic("flights"))
        [after] = world.create("flights")
        assert after.epoch > before.epoch
        assert world.cluster.topology().deleted == ()

    def test_a_name_is_free_again_when_the_ingest_nodes_know_that_its_topic_is_gone(self) -> None:
        world = World(acks=False)
        ingest = world.join("ingest", "ingest-1")
        world.create("flights")
        world.drop(ingest)
        world.apply(world.cluster.delete_topic("flights"))
        with pytest.raises(NotNow):
            world.create("flights")
        again = world.join("ingest", "ingest-1")
        with pytest.raises(NotNow):
            world.create("flights")
        world.say(again, to_coordinator.AckTopology(world.cluster.generation))
        world.create("flights")

    def test_a_topic_of_which_not_all_is_dropped_cannot_come_back(self) -> None:
        world = World(acks=False)
        ingest = world.join("ingest", "ingest-1")
        world.create("flights")
        world.apply(world.cluster.delete_topic("flights"))
        generation = world.cluster.generation
        world.say(ingest, to_coordinator.AckTopology(generation, undropped=("flights",)))
        with pytest.raises(NotNow):
            world.create("flights")
        world.create("ships")
        world.say(ingest, to_coordinator.AckTopology(world.cluster.generation))
        world.create("flights")

    def test_a_topic_is_served_when_all_of_it_is_open(self) -> None:
        world = World(acks=False)
        ingest = world.join("ingest", "ingest-1")
        world.create("broken")
        world.create("sound")
        [broken] = world.cluster.topics["broken"].refs()
        acknowledged = to_coordinator.AckTopology(world.cluster.generation, unopened=(broken,))
        world.say(ingest, acknowledged)
        served = {n: world.cluster.logs_adopted(t) for n, t in world.cluster.topics.items()}
        assert served == {"broken": False, "sound": True}

    def test_every_refusal_is_the_callers_error(self) -> None:
        assert issubclass(InvalidRequest, CallerError)
        assert issubclass(TopicExists, CallerError)


class TestAdoption:
    def test_without_lanes_a_subscription_is_adopted_at_once(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        revision = world.subscribe(gateway, "s1")
        assert world.floor(gateway) >= revision

    def test_the_floor_waits_for_every_lane(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        a, b = world.create("flights", 2)
        lanes = [world.lane(a), world.lane(b)]
        revision = world.subscribe(gateway, "s1")
        world.say(lanes[0], to_coordinator.AckSubscriptions(revision))
        assert world.floor(gateway) < revision
        world.say(lanes[1], to_coordinator.AckSubscriptions(revision))
        assert world.floor(gateway) == revision

    def test_a_lane_that_starts_gets_all_subscriptions_and_holds_nothing(
        self, world: World
    ) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        revision = world.subscribe(gateway, "s1")
        lane = world.lane(*owners)
        snapshot = world.last(lane, from_coordinator.SubscriptionSnapshot)
        assert snapshot.revision >= revision
        assert [s.id for s in snapshot.subscriptions] == ["s1"]
        assert world.floor(gateway) >= revision

    def test_a_lane_that_broke_off_holds_the_floor_until_it_is_run_again(
        self, world: World
    ) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        world.drop(world.lane(*owners))
        revision = world.subscribe(gateway, "s1")
        assert world.floor(gateway) < revision
        world.lane(*owners, attempt=1)
        assert world.floor(gateway) >= revision

    def test_a_lane_that_said_goodbye_holds_nothing(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        world.say(world.lane(*owners), to_coordinator.Goodbye())
        revision = world.subscribe(gateway, "s1")
        assert world.floor(gateway) >= revision

    def test_a_lane_silent_for_a_lease_is_fenced_and_then_holds_nothing(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        router = world.join("router", "router-1")
        [owner] = world.create("flights")
        world.drop(world.lane(owner))
        revision = world.subscribe(gateway, "s1")
        world.wait(31_000, alive=(gateway, router))
        assert world.floor(gateway) >= revision
        assert world.sources("flights")[0].epoch == owner.epoch + 1
        assert world.sources("flights")[0] in world.fenced()

    def test_a_reconnected_lane_counts_with_what_it_had(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        lane = world.lane(*owners)
        adopted = world.last(lane, from_coordinator.SubscriptionSnapshot).revision
        world.drop(lane)
        revision = world.subscribe(gateway, "s1")
        again = world.lane(*owners, revision=adopted)
        assert world.floor(gateway) < revision
        world.say(again, to_coordinator.AckSubscriptions(revision))
        assert world.floor(gateway) == revision

    def test_a_lane_reads_on_until_its_successor_has_claimed(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        former = world.lane(*owners, window=1)
        waiting = world.lane(*owners, window=2, claimed=False)
        assert world.sent(waiting, from_coordinator.SubscriptionSnapshot)
        assert not world.sent(former, from_coordinator.LetGo)
        assert world.cluster.lanes.reader(owners[0].ref) == former
        revision = world.subscribe(gateway, "s1")
        for lane in (waiting, former):
            assert world.floor(gateway) < revision, "whoever reads next must know it too"
            world.say(lane, to_coordinator.AckSubscriptions(revision))
        assert world.floor(gateway) == revision
        world.say(waiting, to_coordinator.Claimed(tuple(owners)))
        assert world.last(former, from_coordinator.LetGo) == from_coordinator.LetGo(
            tuple(owners), settle=False
        )
        assert world.cluster.lanes.reader(owners[0].ref) == waiting
        revision = world.subscribe(gateway, "s2")
        world.say(waiting, to_coordinator.AckSubscriptions(revision))
        assert world.floor(gateway) == revision, "the former one counts no more"

    def test_a_lane_that_breaks_off_before_it_claims_may_have_claimed(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        former = world.lane(*owners, window=1)
        world.drop(world.lane(*owners, window=2, claimed=False))
        revision = world.subscribe(gateway, "s1")
        world.say(former, to_coordinator.AckSubscriptions(revision))
        assert world.floor(gateway) < revision
        again = world.lane(*owners, window=2, claimed=False, attempt=1)
        assert world.floor(gateway) < revision
        world.say(again, to_coordinator.Claimed(tuple(owners)))
        assert world.floor(gateway) >= revision

    def test_a_lane_that_leaves_before_it_claims_holds_nothing(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        former = world.lane(*owners, window=1)
        world.say(world.lane(*owners, window=2, claimed=False), to_coordinator.Goodbye())
        revision = world.subscribe(gateway, "s1")
        world.say(former, to_coordinator.AckSubscriptions(revision))
        assert world.floor(gateway) >= revision

    def test_a_claim_that_comes_too_late_is_told_so(self, world: World) -> None:
        world.join("gateway", "gateway-1")
        router = world.join("router", "router-1", "a")
        [owner] = world.create("flights")
        waiting = world.lane(owner, claimed=False)
        world.drop(router)
        world.join("router", "router-1", "b")
        world.say(waiting, to_coordinator.Claimed((owner,)))
        assert world.last(waiting, from_coordinator.LetGo) == from_coordinator.LetGo(
            (owner,), settle=False
        )
        assert world.cluster.lanes.reader(owner.ref) is None

    def test_a_lane_hears_when_what_it_handed_off_is_somebody_elses(self, world: World) -> None:
        """It waits for that, and lanes get no topology for a change of owners."""
        gateway = world.join("gateway", "gateway-1")
        donor = world.join("router", "router-1")
        owners = tuple(world.create("flights", 2))
        lane = world.lane(*owners)
        recipient = world.join("router", "router-2")
        world.apply(world.cluster.drain("router-1", world.now_ms))
        world.wait(12_000, alive=(gateway, donor, recipient))
        assert world.last(lane, from_coordinator.LetGo) == from_coordinator.LetGo(
            owners, settle=True
        )
        pushes = len(world.sent(lane, from_coordinator.PushTopology))
        world.say(lane, to_coordinator.Released(owners[:1]))
        world.wait(5_000, alive=(gateway, donor, recipient))
        world.say(lane, to_coordinator.Released(owners[1:]))
        told = [one for one in world.sent(lane, from_coordinator.LetGo) if not one.settle]
        assert [owner for one in told for owner in one.owners] == list(owners)
        assert {owner.node_id for owner in world.sources("flights")} == {"router-2"}
        assert len(world.sent(lane, from_coordinator.PushTopology)) == pushes

    def test_a_lane_that_says_late_what_it_handed_off_hears_it_at_once(self, world: World) -> None:
        world.join("router", "router-1")
        [owner] = world.create("flights")
        lane = world.lane(owner)
        world.say(lane, to_coordinator.Released((older := Owner(owner.ref, "router-1", 0),)))
        assert world.last(lane, from_coordinator.LetGo) == from_coordinator.LetGo(
            (older,), settle=False
        )

    def test_a_partition_whose_lane_waits_is_not_without_one(self) -> None:
        """Another window's lane would wait for the same, and so would that of another epoch."""
        world = World(StoredState(boot=1, gateways=("gateway-2",)))
        gateway = world.join("gateway", "gateway-1")
        router = world.join("router", "router-1")
        world.say(router, RouterReport("ready", 1, 0.0))
        [owner] = world.create("flights")
        waiting = world.lane(owner, claimed=False)
        assert not world.sent(waiting, from_coordinator.SubscriptionSnapshot)
        world.wait(29_000, alive=(gateway, router))
        assert not world.sent(waiting, from_coordinator.EndWindow)
        world.wait(31_000, alive=(gateway, router))
        assert world.sent(waiting, from_coordinator.SubscriptionSnapshot)
        assert not world.sent(waiting, from_coordinator.EndWindow)
        assert world.sources("flights") == [owner]

    def test_lanes_that_start_and_find_it_held_do_not_hide_that_nobody_reads(
        self, world: World
    ) -> None:
        """The store may know a higher epoch than this coordinator: only a new one helps."""
        router = world.join("router", "router-1")
        world.say(router, RouterReport("ready", 1, 0.0))
        [owner] = world.create("flights")
        for window in range(1, 41):
            lane = world.lane(owner, window=window, claimed=False)
            world.apply(world.cluster.tick(world.now_ms))
            world.say(lane, to_coordinator.Goodbye())
            world.wait(1_000, alive=(router,))
        assert world.sources("flights")[0].epoch > owner.epoch

    def test_a_new_window_is_not_judged_by_the_age_of_the_former_one(self, world: World) -> None:
        router = world.join("router", "router-1")
        a, b = world.create("flights", 2)
        former, lost = world.lane(a, window=1), world.lane(b, window=1)
        world.wait(20_000, alive=(router,))
        world.drop(lost)
        world.wait(4_000, alive=(router,))
        waiting = world.lane(a, window=2, claimed=False)
        world.wait(2_000, alive=(router,))
        assert not world.sent(waiting, from_coordinator.EndWindow), (
            "its other lane may be about to start"
        )
        world.wait(4_000, alive=(router,))
        assert world.sent(waiting, from_coordinator.EndWindow)
        assert world.cluster.lanes.reader(a.ref) == former

    def test_a_subscription_of_another_gateway_is_refused(self, world: World) -> None:
        one = world.join("gateway", "gateway-1")
        other = world.join("gateway", "gateway-2")
        world.subscribe(one, "s1")
        world.subscribe(other, "s1")
        assert "s1" in world.last(other, from_coordinator.Registered).errors
        assert world.cluster.registry.subscriptions["s1"].gateway_id == "gateway-1"
        world.say(other, to_coordinator.Unregister(8, ("s1",)))
        assert "s1" in world.cluster.registry.subscriptions

    def test_a_lost_gateways_subscriptions_end_with_its_lease(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        router = world.join("router", "router-1")
        owners = world.create("flights")
        lane = world.lane(*owners)
        world.subscribe(gateway, "s1")
        world.drop(gateway)
        world.wait(29_000, alive=(router,))
        assert "s1" in world.cluster.registry.subscriptions
        world.wait(2_000, alive=(router,))
        assert world.last(lane, from_coordinator.SubscriptionChanges).removals == ("s1",)

    def test_what_a_restarted_gateway_does_not_name_again_is_over(self, world: World) -> None:
        first = world.join("gateway", "gateway-1", "a")
        world.subscribe(first, "old")
        world.subscribe(first, "kept")
        world.drop(first)
        second = world.join("gateway", "gateway-1", "b")
        world.subscribe(second, "kept")
        world.say(second, to_coordinator.RegistrationComplete())
        assert set(world.cluster.registry.subscriptions) == {"kept"}


class TestFencing:
    def test_a_router_hears_of_nothing_while_the_checkpoint_store_is_away(self) -> None:
        world = World(fences=False)
        router = world.join("router", "router-1")
        owners = world.create("flights", 2)
        assert world.last(router, from_coordinator.Assign).sources == ()
        asked = len(world.fenced())
        world.wait(3_000, alive=(router,))
        assert len(world.fenced()) > asked, "the store is asked again"
        world.apply(world.cluster.fenced(owners[:1]))
        assert world.last(router, from_coordinator.Assign).sources == ()
        world.apply(world.cluster.fenced(owners))
        assert world.last(router, from_coordinator.Assign).sources == tuple(owners)

    def test_a_lane_that_is_not_fenced_yet_holds_the_floor(self) -> None:
        """Its position still counts, and it knows nothing of who has subscribed since."""
        world = World()
        gateway = world.join("gateway", "gateway-1")
        router = world.join("router", "router-1")
        [owner] = world.create("flights")
        world.drop(world.lane(owner))
        world.fences = False
        revision = world.subscribe(gateway, "s1")
        world.wait(35_000, alive=(gateway, router))
        [again] = world.sources("flights")
        assert again.epoch == owner.epoch + 1
        assert world.floor(gateway) < revision
        world.apply(world.cluster.fenced([again]))
        assert world.floor(gateway) >= revision

    def test_a_fence_of_an_older_epoch_does_not_count(self) -> None:
        world = World(fences=False)
        router = world.join("router", "router-1")
        owners = world.create("flights")
        world.apply(world.cluster.fenced((), overtaken=((owners[0].ref, 7),)))
        world.apply(world.cluster.fenced(owners))
        assert world.last(router, from_coordinator.Assign).sources == ()
        world.apply(world.cluster.fenced(world.sources("flights")))
        assert [o.epoch for o in world.last(router, from_coordinator.Assign).sources] == [8]


class TestStartingRouters:
    def test_a_router_gets_its_share_when_it_is_warm(self, world: World) -> None:
        first = world.join("router", "router-1")
        world.say(first, RouterReport("ready", 1, 0.0))
        world.create("flights", 4)
        second = world.join("router", "router-2")
        world.say(second, RouterReport("starting", 0, 0.0))
        world.wait(12_000, alive=(first, second))
        assert {o.node_id for o in world.sources("flights")} == {"router-1"}
        world.say(second, RouterReport("ready", 1, 0.0))
        world.wait(2_000, alive=(first, second))
        assert {o.node_id for o in world.sources("flights")} == {"router-1", "router-2"}

    def test_the_only_router_gets_everything_at_once(self, world: World) -> None:
        router = world.join("router", "router-1")
        world.say(router, RouterReport("starting", 0, 0.0))
        world.create("flights", 4)
        assert len(world.last(router, from_coordinator.Assign).sources) == 4


class TestWindows:
    def test_a_changed_assignment_ends_the_running_window(self, world: World) -> None:
        router = world.join("router", "router-1")
        owners = world.create("flights")
        lane = world.lane(*owners)
        world.create("trains")
        assert world.sent(lane, from_coordinator.EndWindow)
        assert len(world.last(router, from_coordinator.Assign).sources) == 2

    def test_a_lane_planned_under_an_old_assignment_ends_as_it_appears(self, world: World) -> None:
        world.join("router", "router-1")
        owners = world.create("flights")
        number = world.cluster.members["router-1"].assignment
        world.create("trains")
        late = world.lane(*owners, assignment=number)
        assert world.sent(late, from_coordinator.EndWindow)

    def test_a_window_ends_when_one_of_its_lanes_does_not_report(self, world: World) -> None:
        router = world.join("router", "router-1")
        a, b = world.create("flights", 2)
        healthy, broken = world.lane(a), world.lane(b)
        world.drop(broken)
        world.wait(4_000, alive=(router,))
        assert not world.sent(healthy, from_coordinator.EndWindow)
        world.wait(2_000, alive=(router,))
        assert len(world.sent(healthy, from_coordinator.EndWindow)) == 1
        again = world.lane(b, attempt=1)
        assert world.sent(again, from_coordinator.EndWindow)

    def test_a_router_hears_which_window_ends(self, world: World) -> None:
        """Of a former one it has the tallies; the open one may be slow to start."""
        router = world.join("router", "router-1")
        a, b = world.create("flights", 2)
        world.lane(a, window=1)
        world.drop(world.lane(b, window=1))
        world.wait(6_000, alive=(router,))
        assert world.last(router, from_coordinator.EndWindow).window == 1
        world.lane(b, window=2)
        world.create("trains")
        assert world.last(router, from_coordinator.EndWindow).window == 2

    def test_a_lane_that_comes_back_in_time_ends_nothing(self, world: World) -> None:
        router = world.join("router", "router-1")
        a, b = world.create("flights", 2)
        healthy, broken = world.lane(a), world.lane(b)
        world.drop(broken)
        world.wait(2_000, alive=(router,))
        world.lane(b, attempt=1)
        world.wait(10_000, alive=(router,))
        assert not world.sent(healthy, from_coordinator.EndWindow)

    def test_a_lane_of_the_next_window_takes_over_from_the_one_before(self, world: World) -> None:
        world.join("router", "router-1")
        owners = world.create("flights")
        before = world.lane(*owners, window=1)
        after = world.lane(*owners, window=2)
        assert world.last(before, from_coordinator.LetGo) == from_coordinator.LetGo(
            tuple(owners), settle=False
        )
        assert set(world.cluster.lanes.by_session) == {after}

    @pytest.mark.parametrize(("window", "attempt"), [(1, 0), (2, 0)], ids=["window", "attempt"])
    def test_a_lane_that_was_overtaken_is_refused_when_it_comes_back(
        self, world: World, window: int, attempt: int
    ) -> None:
        world.join("router", "router-1")
        owners = world.create("flights")
        newer = world.lane(*owners, window=2, attempt=1)
        older = world.lane(*owners, window=window, attempt=attempt, revision=1)
        assert world.sent(older, from_coordinator.Refused)
        assert set(world.cluster.lanes.by_session) == {newer}

    def test_lanes_that_end_one_after_the_other_raise_no_alarm(self, world: World) -> None:
        router = world.join("router", "router-1")
        a, b = world.create("flights", 2)
        first, second = world.lane(a), world.lane(b)
        world.wait(20_000, alive=(router,))
        world.say(first, to_coordinator.Goodbye())
        world.wait(2_000, alive=(router,))
        assert not world.sent(second, from_coordinator.EndWindow)

    def test_a_stopping_router_ends_also_lanes_that_appear_later(self, world: World) -> None:
        router = world.join("router", "router-1")
        a, b = world.create("flights", 2)
        early = world.lane(a, window=3)
        world.say(router, to_coordinator.EndMyWindow(3, "the router stops"))
        late = world.lane(b, window=3)
        for lane in (early, late):
            assert world.last(lane, from_coordinator.EndWindow).hand_over is False


class TestSilence:
    def test_a_lane_that_falls_silent_is_lost_though_its_stream_looks_well(
        self, world: World
    ) -> None:
        router = world.join("router", "router-1")
        a, b = world.create("flights", 2)
        healthy, frozen = world.lane(a), world.lane(b)
        world.wait(4_000, alive=(router,), frozen=(frozen,))
        assert not world.cluster.lanes.lost_since_ms
        world.wait(2_000, alive=(router,), frozen=(frozen,))
        assert set(world.cluster.lanes.lost_since_ms) == {b.ref}
        assert frozen in world.hung
        world.wait(6_000, alive=(router,), frozen=(frozen,))
        assert world.sent(healthy, from_coordinator.EndWindow)
        assert world.sent(router, from_coordinator.EndWindow), "so that it expects the tallies"

    def test_a_paused_coordinator_blames_nobody(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        lane = world.lane(*owners)
        world.subscribe(gateway, "s1")
        world.now_ms += 40_000
        world.apply(world.cluster.tick(world.now_ms))
        assert set(world.cluster.members) == {"gateway-1", "router-1"}
        assert "s1" in world.cluster.registry.subscriptions
        assert lane in world.cluster.lanes.by_session

    @pytest.mark.parametrize(
        ("incarnation", "silent_ms", "resumed"),
        [
            pytest.param("a", 1_000, True, id="back soon"),
            pytest.param("a", 31_000, False, id="back after its lease"),
            pytest.param("b", 1_000, False, id="another process"),
        ],
    )
    def test_a_node_learns_whether_it_was_forgotten(
        self, world: World, incarnation: str, silent_ms: int, resumed: bool
    ) -> None:
        first = world.join("gateway", "gateway-1", "a")
        assert world.last(first, from_coordinator.Welcome).resumed is False
        world.say(first, to_coordinator.RegistrationComplete())
        world.drop(first)
        world.wait(silent_ms)
        second = world.join("gateway", "gateway-1", incarnation)
        assert world.last(second, from_coordinator.Welcome).resumed is resumed

    def test_it_learns_so_again_until_it_has_named_what_it_has(self, world: World) -> None:
        """The answer may be lost on its way."""
        world.say(world.join("gateway", "gateway-1"), to_coordinator.RegistrationComplete())
        world.wait(31_000)
        for _ in range(3):
            session = world.join("gateway", "gateway-1")
            assert world.last(session, from_coordinator.Welcome).resumed is False
            world.drop(session)
        world.say(world.join("gateway", "gateway-1"), to_coordinator.RegistrationComplete())
        again = world.join("gateway", "gateway-1")
        assert world.last(again, from_coordinator.Welcome).resumed is True

    def test_one_whose_name_another_process_had_meanwhile_was_forgotten(self, world: World) -> None:
        """Lanes sent there what was for it, however short that was."""
        first = world.join("gateway", "gateway-1", "a")
        world.say(first, to_coordinator.RegistrationComplete())
        world.drop(first)
        world.drop(world.join("gateway", "gateway-1", "b"))
        assert not world.persisted().kept, "known before a lane hears of it"
        again = world.join("gateway", "gateway-1", "a")
        assert world.last(again, from_coordinator.Welcome).resumed is False

    def test_one_that_was_away_while_a_topic_was_deleted_was_forgotten_in_part(self) -> None:
        """It may come back to a topic of the same name."""
        world = World()
        world.join("ingest", "ingest-1")
        gateway, other = world.join("gateway", "gateway-1"), world.join("gateway", "gateway-2")
        world.create("flights")
        world.subscribe(gateway, "s1")
        for session in (gateway, other):
            world.say(session, to_coordinator.RegistrationComplete())
            world.drop(session)
        world.apply(world.cluster.delete_topic("flights"))
        world.create("flights")
        back = [world.join("gateway", name) for name in ("gateway-1", "gateway-2")]
        assert [world.last(one, from_coordinator.Welcome).resumed for one in back] == [False, True]


class TestRestartOfTheCoordinator:
    def restarted(self, world: World) -> World:
        state = world.persisted()
        return World(
            stored=StoredState(
                boot=state.boot + 1,
                topics=state.topics,
                deleted=state.deleted,
                logs=state.logs,
                sources=state.sources,
                gateways=state.gateways,
                nodes=state.nodes,
            )
        )

    def test_nobody_loses_sight_of_nodes_that_never_went_away(self, world: World) -> None:
        world.join("ingest", "ingest-1")
        world.join("gateway", "gateway-1")
        world.create("flights")
        after = self.restarted(world)
        client = after.join("client", "client-1")
        nodes = after.last(client, from_coordinator.PushTopology).topology.nodes
        assert [node.id for node in nodes] == ["gateway-1", "ingest-1"]
        gateway = after.join("gateway", "gateway-1")
        after.wait(31_000, alive=(gateway, client))
        nodes = after.last(client, from_coordinator.PushTopology).topology.nodes
        assert [node.id for node in nodes] == ["gateway-1"], "its lease has ended"

    def test_everybody_hears_of_a_node_that_is_back_as_it_was(self, world: World) -> None:
        world.join("ingest", "ingest-1")
        world.create("flights")
        logs = world.cluster.logs.owned()
        after = self.restarted(world)
        after.wait(20_000)
        client = after.join("client", "client-1")
        after.open(Hello(role="ingest", node_id="ingest-1", incarnation="a", owns=logs))
        assert after.cluster.logs.owned() == logs, "no new epoch"
        assert after.last(client, from_coordinator.PushTopology).topology.node("ingest-1")

    def test_lanes_keep_their_subscriptions_until_the_gateways_are_back(self, world: World) -> None:
        world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        after = self.restarted(world)
        lane = after.lane(*owners, revision=1)
        assert not after.sent(lane, from_coordinator.SubscriptionSnapshot)
        gateway = after.join("gateway", "gateway-1")
        after.subscribe(gateway, "s1")
        assert not after.sent(lane, from_coordinator.SubscriptionSnapshot)
        after.say(gateway, to_coordinator.RegistrationComplete())
        [snapshot] = after.sent(lane, from_coordinator.SubscriptionSnapshot)
        assert [s.id for s in snapshot.subscriptions] == ["s1"]

    def test_a_gateway_that_never_returns_is_awaited_for_a_lease(self, world: World) -> None:
        world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        after = self.restarted(world)
        lane = after.lane(*owners, revision=1)
        after.wait(29_000)
        assert not after.sent(lane, from_coordinator.SubscriptionSnapshot)
        after.wait(2_000)
        assert after.sent(lane, from_coordinator.SubscriptionSnapshot)

    def test_a_working_router_keeps_its_epochs(self, world: World) -> None:
        world.join("router", "router-1")
        owners = world.create("flights", 2)
        number = world.cluster.members["router-1"].assignment
        after = self.restarted(world)
        router = after.open(
            Hello(
                role="router",
                node_id="router-1",
                incarnation="a",
                owns=tuple(owners),
                assignment=number,
            )
        )
        assert after.sources("flights") == owners
        assert after.last(router, from_coordinator.Assign).number == number

    def test_the_floor_waits_for_lanes_that_have_not_reported_yet(self, world: World) -> None:
        world.join("gateway", "gateway-1")
        world.join("router", "router-1")
        owners = world.create("flights")
        after = self.restarted(world)
        gateway = after.join("gateway", "gateway-1")
        after.say(gateway, to_coordinator.RegistrationComplete())
        revision = after.subscribe(gateway, "s1")
        assert after.floor(gateway) < revision
        lane = after.lane(*owners, revision=1)
        after.say(lane, to_coordinator.AckSubscriptions(revision))
        assert after.floor(gateway) < revision, "a lane that nobody has heard of may be claiming"
        after.wait(CLAIM_MS, alive=(gateway, lane))
        asked = after.last(lane, from_coordinator.Prove)
        after.say(lane, to_coordinator.Claimed(tuple(owners)))
        assert after.floor(gateway) < revision, "the store may have been asked before that"
        after.say(lane, to_coordinator.Claimed(tuple(owners), asked.asked_ms))
        assert after.floor(gateway) >= revision

    def test_what_belongs_to_a_node_that_nobody_knows_is_given_away(self) -> None:
        lost = Owner(ref("flights"), "ghost", 3)
        topics = (Topic("flights", 1),)
        world = World(stored=StoredState(boot=2, topics=topics, sources=(lost,)))
        world.join("router", "router-1")
        assert world.sources("flights") == [Owner(lost.ref, "router-1", 4)]

    def test_generations_and_revisions_grow_over_a_restart(self, world: World) -> None:
        gateway = world.join("gateway", "gateway-1")
        revision = world.subscribe(gateway, "s1")
        generation = world.cluster.generation
        after = self.restarted(world)
        assert after.cluster.generation > generation
        assert after.cluster.registry.revision > revision

    def test_a_coordinator_without_state_starts_above_what_nodes_report(self) -> None:
        world = World(stored=StoredState(boot=1))
        high = 1 << 60
        world.open(
            Hello(role="gateway", node_id="g", incarnation="a", generation=high, revision=high)
        )
        assert world.cluster.generation > high
        assert world.cluster.registry.revision > high
