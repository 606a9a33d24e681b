"""The judge of the hour, where it could be wrong by itself."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from headgate.decide.produce.placement import partition_of
from headgate.model.client_messages import Event
from headgate.model.delivery import Delivery
from headgate.model.event import Fence
from headgate.model.letters import NewLetter
from headgate.services.gateway.groups.bounds import ConsumerBounds
from tests.groups.network import GroupLink
from tests.groups.oracle import Oracle, Work
from tests.virtual_time import run_virtual

TARGETS = 8
KEY = "key-14"
LEASE_S = 40.0
"""By then what belongs to a gateway that nobody hears is somebody else's."""


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_key_that_was_never_sent_is_accounted_for_where_its_target_was_told(
    is_told: bool,
) -> None:
    oracle = Oracle(ConsumerBounds())
    oracle.targets = TARGETS
    oracle.appended(2, 873, "key-98")
    mine = partition_of("key-98", collection="", count=TARGETS)
    oracle.told[mine if is_told else (mine + 1) % TARGETS, 2].append((870, 880))
    assert oracle.missing() == ([] if is_told else [((2, 873), "key-98")])


@pytest.mark.parametrize("is_on_its_way", [True, False])
def test_what_was_written_before_a_gateway_was_lost_may_come_late(is_on_its_way: bool) -> None:
    """It was in the consumer's hands as far as anybody knew; what is written later never was."""

    async def scenario() -> None:
        oracle = judge(1)
        former, owner = Joined(oracle, "one"), Joined(oracle, "two")
        former.is_assigned(epoch=1)
        if is_on_its_way:
            former.is_sent(1, epoch=1)
        oracle.gateway_away("gateway of one", ["one"], is_away=True)
        await asyncio.sleep(LEASE_S)
        owner.is_assigned(epoch=2)
        owner.is_sent(1, epoch=2)
        owner.processes(owner.gets(1, epoch=2))
        owner.says(1, epoch=2)
        await asyncio.sleep(10.0)
        if not is_on_its_way:
            former.is_sent(1, epoch=1)
        oracle.begin(former.gets(1, epoch=1))
        assert ["comes to one again" in one for one in oracle.violations] == (
            [] if is_on_its_way else [True]
        )

    run_virtual(scenario())


@pytest.mark.parametrize("seqs", [[1, 2, 2, 1], [1, 2, 3]], ids=["asked for again", "too many"])
def test_what_a_former_owner_works_on_twice_overlaps_once(seqs: list[int]) -> None:
    async def scenario() -> None:
        oracle = judge(3, prefetch=2)
        former, owner = Joined(oracle, "one"), Joined(oracle, "two")
        former.is_assigned(epoch=1)
        for seq in (1, 2):
            former.is_sent(seq, epoch=1)
        works = [former.gets(seq, epoch=1) for seq in (1, 2)]
        oracle.gateway_away("gateway of one", ["one"], is_away=True)
        await asyncio.sleep(LEASE_S)
        owner.is_assigned(epoch=2)
        for seq in (1, 2):
            owner.is_sent(seq, epoch=2)
            owner.processes(owner.gets(seq, epoch=2))
            owner.says(seq, epoch=2)
        if 3 in seqs:
            oracle.acked.add((0, 3))
            works.append(Work("one", (0, 3), KEY, former.target, 0.0, 0.0, 0.0))
            owner.is_sent(3, epoch=2)
            owner.says(3, epoch=2)
        await asyncio.sleep(10.0)
        for seq in seqs:
            work = former.again(works[seq - 1])
            oracle.begin(work)
            oracle.end(work)
        assert ["2 events overlap" in one for one in oracle.violations] == [True] * (3 in seqs)

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("said", "failures", "is_violated"),
    [(1, [2], False), (1, [1, 2], False), (2, [1, 2], False), (2, [2], True)],
    ids=["stays", "had passed what is others'", "goes back", "goes back with its failures"],
)
def test_a_reset_to_where_a_target_stands_may_keep_what_it_failed_with(
    said: int, failures: list[int], is_violated: bool
) -> None:
    """The partition is put to 1. What had failed once before that is given up after `failures`."""

    async def scenario() -> None:
        oracle = judge(3)
        one = Joined(oracle, "one", limit=2)
        one.is_assigned(epoch=1)
        for seq in range(1, said + 1):
            one.is_sent(seq, epoch=1)
            one.processes(one.gets(seq, epoch=1))
            one.says(seq, epoch=1)
        one.is_sent(3, epoch=1)
        one.fails(3, epoch=1, deliveries=1)
        await asyncio.sleep(10.0)
        oracle.reset(0, 1, 3)
        one.goes_back(1)
        one.is_assigned(epoch=2)
        for deliveries in failures:
            one.is_sent(3, epoch=2, deliveries=deliveries)
            one.fails(3, epoch=2, deliveries=deliveries)
        one.gives_up(3, epoch=2)
        assert ["is given up at 2" in found for found in oracle.violations] == [True] * is_violated

    run_virtual(scenario())


@pytest.mark.parametrize("is_said", [True, False])
def test_what_was_said_by_itself_may_be_passed_by_a_position(is_said: bool) -> None:
    """As behind a resync that the consumer hasn't said anything about."""

    async def scenario() -> None:
        oracle = judge(2)
        former, owner = Joined(oracle, "one", limit=2), Joined(oracle, "two")
        former.is_assigned(epoch=1)
        former.is_sent(1, epoch=1)
        former.processes(former.gets(1, epoch=1))
        if is_said:
            former.says(1, epoch=1, alone=True)
        owner.is_assigned(epoch=2, after=1)
        assert ["no owner said" in one for one in oracle.violations] == [True] * (not is_said)

    run_virtual(scenario())


@pytest.mark.parametrize("epoch", [2, 3])
def test_what_was_in_hand_before_somebody_else_had_its_target_may_come_again(epoch: int) -> None:
    """Also where its consumer began with it only then."""

    async def scenario() -> None:
        oracle = judge(1)
        one = Joined(oracle, "one")
        one.is_assigned(epoch=1)
        one.is_sent(1, epoch=1)
        work = one.gets(1, epoch=1)
        await asyncio.sleep(1.0)
        one.is_assigned(epoch=epoch)
        one.is_sent(1, epoch=epoch)
        again = one.gets(1, epoch=epoch)
        await asyncio.sleep(1.0)
        one.processes(work)
        await asyncio.sleep(1.0)
        oracle.begin(one.again(again))
        assert ["itself" in found for found in oracle.violations] == [True] * (epoch == 2)

    run_virtual(scenario())


def judge(records: int, *, prefetch: int = 100) -> Oracle:
    oracle = Oracle(ConsumerBounds(prefetch=prefetch))
    for seq in range(1, records + 1):
        oracle.appended(0, seq, KEY)
    return oracle


class Joined:
    """A consumer, what passes its link, and what it does with that."""

    target = partition_of(KEY, collection="", count=TARGETS)

    def __init__(self, oracle: Oracle, member: str, *, limit: int = 0) -> None:
        self._oracle, self._member = oracle, member
        self._link = cast("GroupLink", _Link(member))
        oracle.to_gateway(self._link, {"type": "join", "max_deliveries": limit})
        oracle.arrived(self._link, {"type": "joined", "targets": TARGETS})

    def is_assigned(self, *, epoch: int, after: int = 0) -> None:
        about = {"target": self.target, "epoch": epoch, "positions": {"0": after}}
        self._oracle.to_client(self._link, {"type": "assigned", **about})
        self._oracle.arrived(self._link, {"type": "assigned", **about})

    def is_sent(self, seq: int, *, epoch: int, deliveries: int = 1) -> None:
        said = {**self._event(seq, epoch), "deliveries": deliveries}
        self._oracle.to_client(self._link, said)

    def fails(self, seq: int, *, epoch: int, deliveries: int) -> None:
        about = {"target": self.target, "epoch": epoch, "partition": 0, "seq": seq}
        self._oracle.to_gateway(self._link, {"type": "nack", **about, "deliveries": deliveries})

    def goes_back(self, seq: int) -> None:
        about = {"target": self.target, "partition": 0, "from": seq + 1}
        self._oracle.to_client(self._link, {"type": "resync", "reason": "reset", **about})

    def gives_up(self, seq: int, *, epoch: int) -> None:
        place, nothing = ("flights", 0, seq), msgspec.Raw(b"{}")
        delivery = Delivery(*place, str(seq), KEY, "", "insert", nothing, (), epoch)
        name = f"group:flights/g/{self.target}-of-{TARGETS}"
        self._oracle.written(NewLetter(name, "dead", "failed", delivery), Fence(epoch))

    def gets(self, seq: int, *, epoch: int) -> Work:
        self._oracle.arrived(self._link, said := self._event(seq, epoch))
        return self._oracle.taken(
            self._member, msgspec.json.decode(msgspec.json.encode(said), type=Event)
        )

    def again(self, work: Work) -> Work:
        """After it was nacked."""
        handed = work.came_s, work.handed_s, self._oracle.now_s
        return Work(work.member, work.place, work.key, work.target, *handed)

    def processes(self, work: Work) -> None:
        self._oracle.begin(work)
        self._oracle.end(work)
        self._oracle.acknowledged(work)

    def says(self, seq: int, *, epoch: int, alone: bool = False) -> None:
        said = {"processed": {"0": [seq]}} if alone else {"positions": {"0": seq}}
        about = {"type": "ack", "target": self.target, "epoch": epoch}
        self._oracle.to_gateway(self._link, about | said)

    def _event(self, seq: int, epoch: int) -> dict[str, Any]:
        record = {"topic": "flights", "partition": 0, "seq": seq, "event_id": str(seq), "key": KEY}
        change = {"collection": "", "op": "insert", "document": {}}
        return {"type": "event", **record, **change, "target": self.target, "epoch": epoch}


class _Link:
    def __init__(self, member: str) -> None:
        self.member = member
        self.node_id = f"gateway of {member}"
