"""A stand-in for what consumer groups need: the coordinator of one group."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.model.control.from_coordinator import AssignTargets, LetGo, RefuseConsumer
from headgate.model.control.to_coordinator import JoinGroup, LeaveGroup, Released, ToCoordinator
from headgate.model.event import PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.topology import Owner
from tests.services.gateway.doubles import FakeCoordinator


@dataclass
class GroupCoordinator(FakeCoordinator):
    """Takes everybody in and gives out what the test says, under the next epoch to one that
    connects again; `targets` is the group's number."""

    targets: int = 4
    refusal: tuple[str, str] | None = None
    answering: bool = True
    incarnations: dict[str, str] = field(default_factory=dict)
    owned: dict[str, dict[int, Owner]] = field(default_factory=dict)
    group: Group = field(init=False)

    def _on_message(self, message: ToCoordinator) -> None:
        super()._on_message(message)
        if isinstance(message, JoinGroup) and self.answering:
            self.answer(message)

    def answer(self, message: JoinGroup) -> None:
        assert self.session is not None
        gid = group_id(message.topic, message.group)
        if self.refusal is not None:
            refused = RefuseConsumer(gid, message.consumer, message.incarnation, *self.refusal)
            self.session.push(refused)
            return
        self.group = message.known or Group(
            gid, message.topic, message.group, self.targets, message.where, message.starts
        )
        if message.consumer in self.incarnations and message.known is None:
            mine = self.owned.get(message.consumer, {})
            for number, owner in mine.items():
                mine[number] = replace(owner, epoch=owner.epoch + 1)
        self.incarnations[message.consumer] = message.incarnation
        self.tell(message.consumer)

    def tell(self, consumer: str) -> None:
        assert self.session is not None
        owners = tuple(self.owned.get(consumer, {}).values())
        self.session.push(AssignTargets(self.group, consumer, self.incarnations[consumer], owners))

    def give(self, consumer: str, *numbers: int, epoch: int = 1) -> None:
        mine = self.owned.setdefault(consumer, {})
        gid = group_id("flights", "radar")
        for number in numbers:
            mine[number] = Owner(PartitionRef(gid, number), consumer, epoch)
        if consumer in self.incarnations:
            self.tell(consumer)

    def take(self, consumer: str, *numbers: int) -> None:
        for number in numbers:
            del self.owned[consumer][number]
        self.tell(consumer)

    def let_go(self, consumer: str, *numbers: int) -> None:
        assert self.session is not None
        owners = tuple(self.owned[consumer][number] for number in numbers)
        self.session.push(LetGo(owners, settle=True))

    def released(self) -> list[int]:
        said = [m for m in self.received if isinstance(m, Released)]
        return [owner.ref.partition for message in said for owner in message.owners]

    def left(self) -> list[tuple[str, bool]]:
        said = [m for m in self.received if isinstance(m, LeaveGroup)]
        return [(message.consumer, message.for_good) for message in said]
