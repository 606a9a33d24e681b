"""Consumer groups at the coordinator: who owns which target, and how that changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from headgate.decide.coordination.effects import FenceCheckpoints, Persist, Send
from headgate.decide.coordination.groups.sharing import KEEP_MS
from headgate.decide.coordination.views.group_status import describe_groups, planned_targets
from headgate.decide.lane.checkpoints import Reset
from headgate.model.api import ConsumerStatus, GroupStatus
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.event import PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.stored import StoredState
from headgate.model.topology import Owner, Topic
from tests.decide.coordination.world import TIMING, World

RADAR = group_id("flights", "radar")
SECOND = 1_000


class Place:
    """A world with a topic and gateways, and the words to say what consumers do."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World(StoredState(boot=1, topics=(Topic("flights", 2),)))
        self.gateways: dict[str, int] = {}
        self.gateway("gateway-1")

    def gateway(self, name: str, incarnation: str = "a") -> int:
        self.gateways[name] = self.world.join("gateway", name, incarnation)
        return self.gateways[name]

    def join(self, consumer: str, gateway: str = "gateway-1", **asked: Any) -> None:
        message = to_coordinator.JoinGroup(
            **{
                "topic": "flights",
                "group": "radar",
                "consumer": consumer,
                "incarnation": "1",
                "keys": 400,
                **asked,
            }
        )
        self.world.say(self.gateways[gateway], message)

    def again(self, consumer: str, gateway: str = "gateway-1") -> None:
        """The gateway is back, and says that the consumer is still there."""
        last = self.told(consumer, gateway)
        self.join(consumer, gateway, known=last.group, owns=last.owners)

    def leave(self, consumer: str, gateway: str = "gateway-1", *, for_good: bool = True) -> None:
        message = to_coordinator.LeaveGroup(RADAR, consumer, "1", for_good)
        self.world.say(self.gateways[gateway], message)

    def release(self, gateway: str = "gateway-1") -> tuple[Owner, ...]:
        """The gateway lets go of what it was asked for last."""
        owners = self.world.last(self.gateways[gateway], from_coordinator.LetGo).owners
        self.world.say(self.gateways[gateway], to_coordinator.Released(owners))
        return owners

    def no_room(self, owner: Owner, gateway: str = "gateway-1") -> None:
        self.world.say(self.gateways[gateway], to_coordinator.NoRoom(owner))

    def wait(self, ms: int) -> None:
        self.world.wait(ms, alive=tuple(self.gateways.values()))

    def told(self, consumer: str, gateway: str = "gateway-1") -> from_coordinator.AssignTargets:
        """What was said last about a consumer."""
        sent = self.world.sent(self.gateways[gateway], from_coordinator.AssignTargets)
        return [message for message in sent if message.consumer == consumer][-1]

    def has(self, consumer: str, gateway: str = "gateway-1") -> set[int]:
        return {owner.ref.partition for owner in self.told(consumer, gateway).owners}

    def refused(self, gateway: str = "gateway-1") -> from_coordinator.RefuseConsumer:
        return self.world.last(self.gateways[gateway], from_coordinator.RefuseConsumer)

    def owners(self) -> dict[int, str]:
        owned = self.world.cluster.groups.targets.owned()
        return {owner.ref.partition: owner.node_id for owner in owned}

    def epochs(self) -> dict[int, int]:
        return {o.ref.partition: o.epoch for o in self.world.cluster.groups.targets.all()}


@pytest.fixture
def place() -> Place:
    return Place()


# --- joining -------------------------------------------------------------------------------------


def test_the_first_consumer_makes_the_group_and_gets_all_of_it(place: Place) -> None:
    place.join("one", keys=401, where="alt > 5", starts=(7, 9))
    assert place.has("one") == {0, 1, 2, 3, 4}
    assert place.told("one").group == Group(RADAR, "flights", "radar", 5, "alt > 5", (7, 9))
    stored = place.world.persisted()
    assert stored.groups == (place.told("one").group,)
    assert stored.targets == place.told("one").owners


def test_it_is_kept_before_anybody_is_told(place: Place) -> None:
    place.join("one")
    kinds = [
        type(effect.message) if isinstance(effect, Send) else type(effect)
        for effect in place.world.effects
    ]
    assert kinds.index(from_coordinator.AssignTargets) > kinds.index(Persist)


def test_a_group_keeps_its_number_of_targets(place: Place) -> None:
    place.join("one", keys=400)
    place.join("two", keys=90_000)
    assert place.told("two").group.targets == 4


def test_without_a_number_of_keys_a_thousand_are_expected(place: Place) -> None:
    place.join("one", keys=0)
    assert place.told("one").group.targets == 10


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        pytest.param({"group": "a/b"}, "invalid", "group name 'a/b' is not allowed", id="group"),
        pytest.param({"consumer": ""}, "invalid", "consumer name '' is not allowed", id="consumer"),
        pytest.param({"topic": "boats"}, "unknown_topic", "no topic boats", id="topic"),
        pytest.param({"where": "alt > 5"}, "invalid", "has no filter", id="another filter"),
        pytest.param(
            {"consumer": "one", "incarnation": "2"}, "invalid", "connected already", id="twice"
        ),
    ],
)
def test_who_cannot_join_is_told_why(
    place: Place, asked: dict[str, Any], code: str, words: str
) -> None:
    place.join("one")
    before = place.world.cluster.to_store()
    place.join(**{"consumer": "two", **asked})
    assert place.refused().code == code
    assert words in place.refused().reason
    assert place.world.cluster.to_store() == before


def test_the_filter_of_a_group_is_named_to_whoever_brings_another(place: Place) -> None:
    place.join("one", where="alt > 5")
    place.join("two")
    assert "has the filter alt > 5; join with that" in place.refused().reason


def test_who_may_not_know_what_others_see_is_not_told_their_filter(place: Place) -> None:
    place.join("one", where='tenant == "theirs"')
    place.join("two", where='tenant == "mine"', restricted=True)
    reason = place.refused().reason
    assert "another filter" in reason
    assert "theirs" not in reason


def test_groups_and_the_same_consumer_id_in_them_are_apart(place: Place) -> None:
    place.join("one")
    place.join("one", group="tower", incarnation="2")
    assert len(place.told("one").owners) == 4
    assert len(place.world.cluster.groups.targets.owned()) == 8
    place.leave("one")
    assert set(place.owners().values()) == {"one"}
    assert len(place.world.cluster.groups.targets.owned()) == 4


# --- sharing -------------------------------------------------------------------------------------


def test_a_second_consumer_gets_its_share_by_handoff(place: Place) -> None:
    place.join("one")
    place.join("two")
    assert place.has("two") == set()
    place.wait(TIMING.settle_ms)
    asked = place.world.last(place.gateways["gateway-1"], from_coordinator.LetGo)
    assert asked.settle
    assert {owner.node_id for owner in asked.owners} == {"one"}
    assert len(asked.owners) == 2
    assert place.has("two") == set(), "not before the donor has let go"
    before = place.epochs()
    leaving = {owner.ref.partition for owner in place.release()}
    assert place.has("two") == leaving
    assert place.has("one") == {0, 1, 2, 3} - leaving
    assert {n: place.epochs()[n] - before[n] for n in before} == {
        number: int(number in leaving) for number in range(4)
    }
    place.wait(30 * SECOND)
    assert Counter(place.owners().values()) == {"one": 2, "two": 2}


def test_more_consumers_than_targets_wait_for_one(place: Place) -> None:
    for name in ("one", "two"):
        place.join(name, keys=100)
    place.wait(30 * SECOND)
    assert place.owners() == {0: "one"}
    place.leave("one")
    assert place.has("two") == {0}


def test_who_leaves_gives_everything_back_at_once(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    place.release()
    place.leave("two")
    assert place.has("one") == {0, 1, 2, 3}


def test_a_donor_that_never_lets_go_is_passed_over(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms + TIMING.handoff_ms - SECOND)
    assert place.has("two") == set()
    place.wait(2 * SECOND)
    assert len(place.has("two")) == 2


def test_a_donor_that_works_on_what_it_has_is_waited_for_within_bounds(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    leaving = place.world.last(place.gateways["gateway-1"], from_coordinator.LetGo).owners
    waited_ms = 0
    while place.has("two") == set():
        for owner in leaving:
            place.world.say(place.gateways["gateway-1"], to_coordinator.StillInHand(owner))
        place.wait(TIMING.handoff_ms // 2)
        waited_ms += TIMING.handoff_ms // 2
    assert abs(waited_ms - KEEP_MS) <= 2 * TIMING.handoff_ms


def test_an_imbalance_that_is_allowed_moves_nothing() -> None:
    place = Place()
    balance = place.world.cluster.balance
    place.world.cluster.balance = type(balance)(consumer=3)
    place.join("one")
    place.join("two")
    place.wait(30 * SECOND)
    assert set(place.owners().values()) == {"one"}


# --- gateways without room -----------------------------------------------------------------------


def test_what_a_gateway_has_no_room_for_goes_to_a_consumer_elsewhere(place: Place) -> None:
    place.join("one")
    place.gateway("gateway-2")
    place.join("two", "gateway-2")
    owner = place.told("one").owners[3]
    place.no_room(owner)
    assert place.has("one") == {0, 1, 2}
    assert place.has("two", "gateway-2") == {3}
    assert place.epochs()[3] > owner.epoch
    place.wait(20 * SECOND)
    assert place.owners() == {0: "one", 1: "one", 2: "one", 3: "two"}, "it keeps what it has"
    place.no_room(owner)
    assert place.owners()[3] == "two", "it was said of what isn't so any more"


def test_where_nobody_has_room_it_waits_and_the_status_says_so(place: Place) -> None:
    place.join("one")
    place.no_room(place.told("one").owners[3])
    assert place.has("one") == {0, 1, 2}
    [status] = describe_groups(place.world.cluster)
    assert status.unowned == 1
    place.wait(29 * SECOND)
    assert place.has("one") == {0, 1, 2}
    place.wait(2 * SECOND)
    assert place.has("one") == {0, 1, 2, 3}, "there may be room again"


def test_a_full_gateway_gets_no_share_of_what_others_have(place: Place) -> None:
    place.gateway("gateway-2")
    place.join("one")
    place.join("two", "gateway-2")
    place.wait(TIMING.settle_ms)
    place.release()
    [first, _] = place.told("two", "gateway-2").owners
    place.no_room(first, "gateway-2")
    assert len(place.has("one")) == 3
    place.wait(20 * SECOND)
    assert len(place.has("one")) == 3
    place.wait(60 * SECOND)
    place.release()
    assert Counter(place.owners().values()) == {"one": 2, "two": 2}


# --- failing -------------------------------------------------------------------------------------


def test_a_lost_consumer_keeps_its_targets_for_a_lease(place: Place) -> None:
    place.join("one")
    place.gateway("gateway-2")
    place.join("two", "gateway-2")
    place.leave("one", for_good=False)
    place.wait(TIMING.lease_ms - SECOND)
    assert set(place.owners().values()) == {"one"}
    place.wait(2 * SECOND)
    assert place.has("two", "gateway-2") == {0, 1, 2, 3}


def test_who_is_back_within_the_lease_has_the_same_under_new_epochs(place: Place) -> None:
    place.join("one")
    before = place.epochs()
    place.leave("one", for_good=False)
    place.wait(10 * SECOND)
    place.join("one", incarnation="2")
    assert place.has("one") == {0, 1, 2, 3}
    assert place.epochs() == {number: epoch + 1 for number, epoch in before.items()}
    place.wait(60 * SECOND)
    assert set(place.owners().values()) == {"one"}


def test_a_consumer_that_comes_in_elsewhere_takes_its_place_along(place: Place) -> None:
    place.join("one")
    place.gateway("gateway-2")
    place.join("one", "gateway-2")
    assert place.has("one", "gateway-2") == {0, 1, 2, 3}
    assert "another gateway" in place.refused("gateway-1").reason
    place.leave("one", "gateway-1", for_good=True)
    assert set(place.owners().values()) == {"one"}, "the former gateway has no say any more"


def test_a_gateway_that_comes_back_cannot_call_back_who_has_gone_elsewhere(place: Place) -> None:
    place.gateway("gateway-2")
    place.join("one")
    known = place.told("one")
    place.world.drop(place.gateways["gateway-1"])
    place.join("one", "gateway-2")
    place.gateway("gateway-1")
    place.join("one", known=known.group, owns=known.owners)
    assert "another gateway" in place.refused("gateway-1").reason
    assert place.has("one", "gateway-2") == {0, 1, 2, 3}


def test_another_process_is_not_let_in_while_the_gateway_of_the_first_is_cut_off(
    place: Place,
) -> None:
    """The first one may be connected there, and goes on with what it has."""
    place.gateway("gateway-2")
    place.join("one")
    epochs = place.epochs()
    place.world.drop(place.gateways.pop("gateway-1"))
    place.join("one", "gateway-2", incarnation="2")
    assert place.refused("gateway-2").code == "unavailable"
    assert "try again" in place.refused("gateway-2").reason
    assert place.epochs() == epochs
    place.wait(TIMING.lease_ms)
    place.join("one", "gateway-2", incarnation="2")
    assert place.has("one", "gateway-2") == {0, 1, 2, 3}


def test_another_process_is_let_in_once_the_gateway_of_the_first_does_not_name_it(
    place: Place,
) -> None:
    place.gateway("gateway-2")
    place.join("one")
    place.world.drop(place.gateways["gateway-1"])
    place.gateway("gateway-1", "b")
    place.world.say(place.gateways["gateway-1"], to_coordinator.RegistrationComplete())
    place.join("one", "gateway-2", incarnation="2")
    assert place.has("one", "gateway-2") == {0, 1, 2, 3}


def test_the_consumers_of_a_dead_gateway_go_with_its_lease(place: Place) -> None:
    place.gateway("gateway-2")
    place.join("one")
    place.join("two", "gateway-2")
    dead = place.gateways.pop("gateway-1")
    place.world.drop(dead)
    place.wait(TIMING.lease_ms - SECOND)
    assert set(place.owners().values()) == {"one"}
    place.wait(2 * SECOND)
    assert place.has("two", "gateway-2") == {0, 1, 2, 3}


def test_a_gateway_that_ends_on_purpose_leaves_its_consumers_a_lease(place: Place) -> None:
    place.gateway("gateway-2")
    place.join("one")
    place.join("two", "gateway-2")
    place.world.say(place.gateways.pop("gateway-1"), to_coordinator.Goodbye())
    place.wait(TIMING.lease_ms - SECOND)
    assert set(place.owners().values()) == {"one"}
    place.join("one", "gateway-2")
    place.wait(60 * SECOND)
    assert "one" in place.owners().values()


def test_a_gateway_that_was_cut_off_names_who_is_still_there(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    place.release()
    owned, epochs = place.owners(), place.epochs()
    known = place.told("one")
    place.world.drop(place.gateways["gateway-1"])
    place.gateway("gateway-1")
    place.join("one", known=known.group, owns=known.owners)
    place.world.say(place.gateways["gateway-1"], to_coordinator.RegistrationComplete())
    assert place.told("one").owners == known.owners
    assert (place.owners(), place.epochs()) == (owned, epochs)
    place.wait(TIMING.lease_ms + SECOND)
    assert place.has("one") == {0, 1, 2, 3}, "the other was not named, so its lease has ended"


def test_a_recipient_that_is_gone_leaves_the_target_with_its_donor(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    before = place.epochs()
    leaving = {o.ref.partition for o in place.world.cluster.groups.targets.owned()} - {
        ref.partition
        for ref in place.told("one").group.refs()
        if ref not in place.world.cluster.groups.handoffs.by_ref
    }
    place.leave("two")
    place.wait(SECOND)
    assert place.epochs() == before, "it finishes with what it was asked for"
    place.release()
    assert place.has("one") == {0, 1, 2, 3}
    assert {n for n in before if place.epochs()[n] > before[n]} == leaving


@pytest.mark.parametrize("first", ["one", "two"])
def test_both_sides_of_a_handoff_may_go(place: Place, first: str) -> None:
    """In whatever order: what was on its way goes to whoever is left."""
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    assert place.world.cluster.groups.handoffs.by_ref
    place.join("three")
    place.leave(first)
    place.leave("two" if first == "one" else "one")
    assert place.has("three") == {0, 1, 2, 3}
    assert not place.world.cluster.groups.handoffs.by_ref


def test_a_donor_that_is_another_process_takes_back_what_has_no_recipient(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    place.leave("two")
    place.leave("one", for_good=False)
    place.join("one", incarnation="2")
    assert place.has("one") == {0, 1, 2, 3}
    assert not place.world.cluster.groups.handoffs.by_ref


def test_a_recipient_that_is_lost_meanwhile_gets_nothing(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    place.leave("two", for_good=False)
    place.release()
    assert place.has("one") == {0, 1, 2, 3}


def test_a_donor_that_dies_while_releasing_loses_the_target_with_its_lease(place: Place) -> None:
    place.join("one")
    place.gateway("gateway-2")
    place.join("two", "gateway-2")
    place.wait(TIMING.settle_ms)
    place.leave("one", for_good=False)
    place.wait(TIMING.handoff_ms)
    assert place.has("two", "gateway-2") == set(), "a donor that is cut off has its whole lease"
    place.wait(TIMING.lease_ms)
    assert place.has("two", "gateway-2") == {0, 1, 2, 3}


def asked_to_share(place: Place) -> None:
    """Of `one` at the first gateway, for `two` at the second one."""
    place.gateway("gateway-2")
    place.join("one")
    place.join("two", "gateway-2")
    place.wait(TIMING.settle_ms)
    assert len(place.world.last(place.gateways["gateway-1"], from_coordinator.LetGo).owners) == 2


def test_a_donor_whose_gateway_is_cut_off_has_its_whole_lease(place: Place) -> None:
    """It may not have heard that it is asked, and hand out as before."""
    asked_to_share(place)
    place.world.drop(place.gateways.pop("gateway-1"))
    place.wait(TIMING.lease_ms - SECOND)
    assert place.has("two", "gateway-2") == set()
    place.wait(2 * SECOND)
    assert place.has("two", "gateway-2") == {0, 1, 2, 3}


def test_a_donor_whose_gateway_says_nothing_is_not_passed_over(place: Place) -> None:
    """Its stream may be broken, and nobody has noticed."""
    asked_to_share(place)
    silent = place.gateways.pop("gateway-1")
    place.wait(TIMING.lease_ms - 2 * SECOND)
    assert place.has("two", "gateway-2") == set()
    place.world.say(silent, to_coordinator.CheckIn())
    place.wait(SECOND)
    assert len(place.has("two", "gateway-2")) == 2, "it is there, and took too long"


def test_a_donor_whose_gateway_is_back_is_asked_anew(place: Place) -> None:
    asked_to_share(place)
    known = place.told("one")
    place.world.drop(place.gateways.pop("gateway-1"))
    place.wait(TIMING.lease_ms - 2 * SECOND)
    place.gateway("gateway-1")
    place.wait(SECOND)
    place.join("one", known=known.group, owns=known.owners)
    assert len(place.world.last(place.gateways["gateway-1"], from_coordinator.LetGo).owners) == 2
    place.wait(TIMING.handoff_ms - 2 * SECOND)
    assert place.has("two", "gateway-2") == set(), "as much time as anybody has"
    place.wait(2 * SECOND)
    assert len(place.has("two", "gateway-2")) == 2


def test_a_donor_that_merely_connects_again_has_not_let_go(place: Place) -> None:
    """Its process is the same, and may work on what it has."""
    place.gateway("gateway-2")
    place.join("one")
    place.join("two", "gateway-2")
    place.wait(TIMING.settle_ms)
    place.leave("one", for_good=False)
    place.join("one")
    assert place.has("two", "gateway-2") == set()
    assert place.has("one") == {0, 1, 2, 3}
    place.wait(2 * TIMING.settle_ms)
    leaving = {owner.ref.partition for owner in place.release()}
    place.wait(SECOND)
    assert place.has("two", "gateway-2") == leaving


def test_it_has_no_more_time_for_that_it_connects_again_and_again(place: Place) -> None:
    asked_to_share(place)
    waited_ms = 0
    while place.has("two", "gateway-2") == set() and waited_ms < 2 * KEEP_MS:
        for owner in place.world.last(place.gateways["gateway-1"], from_coordinator.LetGo).owners:
            place.world.say(place.gateways["gateway-1"], to_coordinator.StillInHand(owner))
        place.wait(TIMING.handoff_ms // 2)
        waited_ms += TIMING.handoff_ms // 2
        if waited_ms % 60_000 == 0:
            place.leave("one", for_good=False)
            place.join("one")
    assert abs(waited_ms - KEEP_MS) <= 2 * TIMING.handoff_ms


def test_one_that_had_let_go_before_it_connected_again_has(place: Place) -> None:
    place.gateway("gateway-2")
    place.join("one")
    place.join("two", "gateway-2")
    place.wait(TIMING.settle_ms)
    *first, last = place.world.last(place.gateways["gateway-1"], from_coordinator.LetGo).owners
    place.world.say(place.gateways["gateway-1"], to_coordinator.Released(tuple(first)))
    place.join("one")
    assert place.has("two", "gateway-2") == {owner.ref.partition for owner in first}
    assert last.ref.partition in place.has("one")


def test_a_donor_that_comes_back_as_another_process_has_let_go(place: Place) -> None:
    place.gateway("gateway-2")
    place.join("one")
    place.join("two", "gateway-2")
    place.wait(TIMING.settle_ms)
    place.leave("one", for_good=False)
    place.join("one", incarnation="2")
    assert len(place.has("two", "gateway-2")) == 2


def test_released_under_an_older_epoch_means_nothing(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    asked = place.world.last(place.gateways["gateway-1"], from_coordinator.LetGo).owners
    older = tuple(msgspec.structs.replace(owner, epoch=owner.epoch - 1) for owner in asked)
    place.world.say(place.gateways["gateway-1"], to_coordinator.Released(older))
    place.wait(SECOND)
    assert place.has("two") == set()


def test_a_store_that_knows_a_higher_epoch_is_gone_above(place: Place) -> None:
    place.join("one")
    ref = PartitionRef(RADAR, 2)
    place.world.say(place.gateways["gateway-1"], to_coordinator.EpochTooLow(ref, 40))
    assert place.epochs()[2] == 41
    assert place.told("one").owners[2] == Owner(ref, "one", 41)


def test_a_former_owner_that_is_overtaken_takes_nothing_from_the_present_one(place: Place) -> None:
    """What it met is the epoch of that one, which may be at the same gateway."""
    place.join("one")
    ref = PartitionRef(RADAR, 2)
    gateway = place.gateways["gateway-1"]
    former = place.epochs()[2]
    place.world.say(gateway, to_coordinator.EpochTooLow(ref, 40, own=former))
    assert place.epochs()[2] == 41
    place.world.say(gateway, to_coordinator.EpochTooLow(ref, 41, own=former))
    assert place.epochs()[2] == 41
    place.world.say(gateway, to_coordinator.EpochTooLow(ref, 50, own=41))
    assert place.epochs()[2] == 51


def test_a_deleted_topic_ends_its_groups_and_says_so(place: Place) -> None:
    place.world.join("ingest", "ingest-1")
    place.join("one")
    before = place.epochs()
    place.world.apply(place.world.cluster.delete_topic("flights"))
    assert place.refused().code == "unknown_topic"
    assert place.world.persisted().groups == ()
    place.world.create("flights", 1)
    place.join("one", keys=100)
    assert place.has("one") == {0}
    assert place.epochs()[0] > before[0], "no epoch is given out twice"


def test_an_operator_sees_who_owns_what_and_what_would_move(place: Place) -> None:
    place.join("one")
    place.join("two", where=None)
    place.leave("two", for_good=False)
    [status] = describe_groups(place.world.cluster)
    assert status == GroupStatus(
        topic="flights",
        group="radar",
        targets=4,
        where=None,
        moving=0,
        unowned=0,
        consumers=[
            ConsumerStatus("one", "gateway-1", "connected", [0, 1, 2, 3]),
            ConsumerStatus("two", "gateway-1", "lost", []),
        ],
    )
    assert planned_targets(place.world.cluster) == []
    place.join("two")
    planned = planned_targets(place.world.cluster)
    assert [(move.kind, move.topic, move.from_id, move.to_id) for move in planned] == [
        ("target", "flights/radar", "one", "two")
    ] * 2


# --- the coordinator itself ----------------------------------------------------------------------


def is_learning(world: World) -> bool:
    return world.cluster.learning.is_on


def restarted(place: Place, stored: StoredState | None = None) -> Place:
    stored = stored or place.world.persisted()
    world = World(msgspec.structs.replace(stored, boot=2), now_ms=place.world.now_ms)
    return Place(world)


def test_a_restarted_coordinator_goes_on_with_the_same_owners(place: Place) -> None:
    place.join("one")
    known, epochs = place.told("one"), place.epochs()
    after = restarted(place)
    after.join("one", known=known.group, owns=known.owners)
    after.wait(2 * TIMING.lease_ms)
    assert after.told("one").owners == known.owners
    assert after.epochs() == epochs


def test_consumers_that_do_not_come_back_to_a_restarted_coordinator_lose_their_targets(
    place: Place,
) -> None:
    place.join("one")
    after = restarted(place)
    after.join("two")
    after.wait(TIMING.lease_ms - SECOND)
    assert after.has("two") == set()
    after.wait(2 * SECOND)
    assert after.has("two") == {0, 1, 2, 3}


def test_a_handoff_outlives_the_coordinator(place: Place) -> None:
    place.join("one")
    place.join("two")
    place.wait(TIMING.settle_ms)
    one, two = place.told("one"), place.told("two")
    after = restarted(place)
    assert len(after.world.cluster.groups.handoffs.by_ref) == 2
    after.join("two", known=two.group, owns=two.owners)
    after.join("one", known=one.group, owns=one.owners)
    after.release()
    assert len(after.has("two")) == 2


def test_state_from_before_there_were_groups_is_taken_up() -> None:
    old = b'{"boot": 4, "topics": [{"name": "flights", "partitions": 1}]}'
    stored = msgspec.json.decode(old, type=StoredState)
    place = Place(World(stored))
    place.join("one")
    assert place.has("one") == {0, 1, 2, 3}


def test_a_coordinator_that_lost_everything_learns_from_the_gateways(place: Place) -> None:
    place.join("one", starts=(3, 4))
    for _ in range(3):
        place.leave("one", for_good=False)
        place.join("one", starts=(3, 4))
    known, topology = place.told("one"), place.world.cluster.topology()
    assert {owner.epoch for owner in known.owners} == {4}
    world = World(StoredState(boot=1), now_ms=place.world.now_ms)
    hello = to_coordinator.Hello(
        role="gateway", node_id="gateway-1", incarnation="a", generation=topology.generation
    )
    after = Place.__new__(Place)
    after.world, after.gateways = world, {"gateway-1": world.open(hello)}
    assert is_learning(world)
    after.join("two")
    assert after.refused().code == "unavailable", "which groups there are isn't known yet"
    after.join("one", known=known.group, owns=known.owners)
    world.say(after.gateways["gateway-1"], to_coordinator.Recall(topology))
    after.join("two")
    after.wait(SECOND)
    assert not is_learning(world)
    assert after.told("one").owners == known.owners
    after.wait(2 * SECOND)
    after.release()
    assert len(after.has("two")) == 2


def test_a_group_of_a_topic_that_nobody_remembers_ends_with_the_learning() -> None:
    world = World(StoredState(boot=1))
    hello = to_coordinator.Hello(role="gateway", node_id="gateway-1", incarnation="a", generation=7)
    after = Place.__new__(Place)
    after.world, after.gateways = world, {"gateway-1": world.open(hello)}
    after.join("one", known=Group(RADAR, "flights", "radar", 4))
    assert RADAR in world.cluster.groups.by_id
    after.wait(TIMING.learn_for_ms + SECOND)
    assert not is_learning(world)
    assert after.refused().code == "unknown_topic"
    assert not world.cluster.groups.by_id


def test_groups_without_a_consumer_are_remembered_by_whoever_recalls_them(place: Place) -> None:
    place.join("one")
    place.leave("one")
    topology = place.world.cluster.topology()
    world = World(StoredState(boot=1))
    hello = to_coordinator.Hello(
        role="router", node_id="router-1", incarnation="a", generation=topology.generation
    )
    router = world.open(hello)
    world.say(router, to_coordinator.Recall(topology))
    assert [group.id for group in world.cluster.groups.all()] == [RADAR]


def test_the_names_of_targets_are_those_of_the_groups_that_there_are() -> None:
    place = Place()
    place.join("c1")
    groups = place.world.cluster.groups
    count = groups.by_id[RADAR].targets
    assert groups.is_target_name(f"{RADAR}/0-of-{count}")
    for name in (f"{RADAR}/{count}-of-{count}", f"{RADAR}/0-of-{count + 1}", "gateway-1"):
        assert not groups.is_target_name(name), name
    assert not groups.is_target_name(f"{group_id('flights', 'other')}/0-of-{count}")


# --- what a reset puts back ----------------------------------------------------------------------


def reset(place: Place, *, put_back: bool) -> FenceCheckpoints:
    """Of a partition that nobody reads, in a store that finds that it goes back, or doesn't."""
    world = place.world
    world.fences = False
    ref = PartitionRef("flights", 0)
    world.apply(world.cluster.reset(ref, Reset(3), world.now_ms))
    asked = [one for one in world.effects if isinstance(one, FenceCheckpoints)][-1]
    refs = (ref,) if put_back else ()
    world.apply(world.cluster.fenced(asked.owners, put_back=refs))
    return asked


def test_a_reset_says_which_groups_go_back_with_it(place: Place) -> None:
    place.join("one")
    place.join("other", group="tower")
    place.world.create("ships")
    place.join("sailor", topic="ships")
    asked = reset(place, put_back=True)
    assert [group.name for group in asked.groups] == ["radar", "tower"]


def test_owners_claim_anew_what_a_reset_puts_back(place: Place) -> None:
    """Whoever has a target, has lost its connection or is asked for it: under the epoch that it has
    it would go on where it is."""
    place.join("one", keys=300)
    place.join("two")
    place.join("gone")
    place.wait(11 * SECOND)
    cluster = place.world.cluster
    assert cluster.groups.handoffs.by_ref, "some are on their way"
    place.leave("gone", for_good=False)
    before = place.epochs()
    owners = place.owners()
    reset(place, put_back=True)
    assert place.epochs() == {target: epoch + 1 for target, epoch in before.items()}
    assert place.owners() == owners
    assert {o.epoch for o in place.told("one").owners} <= set(place.epochs().values())
    assert place.world.persisted().targets == cluster.groups.targets.all()
    assert cluster.groups.handoffs.by_ref, "they are still on their way"
    place.release()
    assert not cluster.groups.handoffs.by_ref


def test_owners_claim_anew_also_where_the_partition_has_another_epoch_by_then(place: Place) -> None:
    """The store took its time, and the operator has changed his mind."""
    place.join("one")
    before, cluster, ref = place.epochs(), place.world.cluster, PartitionRef("flights", 0)
    place.world.fences = False
    for settled in (3, 5):
        place.world.apply(cluster.reset(ref, Reset(settled), place.world.now_ms))
    first, second = [
        one for one in place.world.effects if isinstance(one, FenceCheckpoints) and one.resets
    ]
    place.world.apply(cluster.fenced(first.owners, put_back={ref}))
    assert place.epochs() == {target: epoch + 1 for target, epoch in before.items()}
    assert cluster.unfenced[ref] == second.owners[0], "that is still to be done"


def test_a_reset_that_goes_forward_leaves_groups_where_they_are(place: Place) -> None:
    place.join("one")
    before = place.epochs()
    reset(place, put_back=False)
    assert place.epochs() == before
