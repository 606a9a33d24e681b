"""Records that a consumer group has given up, as dead letters of its targets.

A target writes them, sends them again when an operator wants it, and removes them, all under its
own epoch; so neither a former owner nor a lane changes them. Invariant: a letter is durable before
the target's position passes its record, and removed only when a consumer has acknowledged it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from headgate.errors import Fenced
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.event_message import EventMessage, read_part
from headgate.model.groups import Group
from headgate.model.letters import Letter, LetterQuery, NewLetter
from headgate.ports.letters import LetterStore
from headgate.ports.machine import Machine
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.subscriptions.catch_up import CatchUp
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.wire import shared_part

PAGE = 100
"""Letters that are looked at together."""
GONE = "; the log doesn't have it any more, so the letter is without its document"


@dataclass(frozen=True, slots=True)
class LetterMark:
    """A letter that is sent again, and when an operator wanted that."""

    id: int
    revived_ms: int


def mark_of(letter: Letter) -> LetterMark:
    return LetterMark(letter.id, letter.at_ms)


class GroupLetters:
    def __init__(
        self, store: LetterStore, catch_up: CatchUp, evidence: GatewayEvidence, machine: Machine
    ) -> None:
        self._store = store
        self._catch_up = catch_up
        self._evidence = evidence
        self._machine = machine

    async def write(
        self,
        group: Group,
        target: int,
        fence: Fence,
        subscriber: LiveSubscription,
        place: tuple[int, int],
        *,
        message: bytes | None,
        attempts: int,
        error: str,
    ) -> None:
        """A dead letter of the record at `place`, as `message` or, without one, as the log has it.
        Raises Fenced, and StorageFailed."""
        partition, seq = place
        if message is None:
            message = await self._catch_up.message_of(subscriber, partition, seq)
        if message is None:
            error += GONE
        name = group.target_name(target)
        event = None if message is None else read_part(message)
        delivery = _delivery(event, PartitionRef(group.topic, partition), seq, name, fence)
        letter = NewLetter(name, "dead", "failed", delivery, attempts, error)
        await self._store.put([letter], {letter.fenced_by: fence}, now_ms=self._machine.wall_ms())
        self._evidence.came_to("dead", delivery)

    async def claim(self, group: Group, target: int, fence: Fence, partitions: int) -> None:
        """From now on no former owner changes the letters of the target."""
        refs = [group.position_ref(target, number) for number in range(partitions)]
        await self._store.claim(dict.fromkeys(refs, fence))

    async def bury(self, letter: Letter, fence: Fence, *, attempts: int, error: str) -> None:
        """One that was sent again is dead again."""
        dead = replace(letter, attempts=letter.attempts + attempts, error=error)
        await self._store.bury([dead], {letter.fenced_by: fence}, now_ms=self._machine.wall_ms())
        self._evidence.came_to("dead", letter.delivery)

    async def bury_stranded(self, letter: Letter, *, error: str) -> None:
        """One of a target that there isn't any more is dead again. Such a target has no owner, so
        any gateway that finds the letter changes it, under the fence that the last owner left."""
        try:
            await self.bury(letter, Fence(0), attempts=0, error=error)
        except Fenced as fenced:
            await self.bury(letter, Fence(fenced.epoch), attempts=0, error=error)

    async def remove(self, letters: Sequence[Letter], fence: Fence) -> None:
        """They are processed."""
        await self._store.remove(letters, {letter.fenced_by: fence for letter in letters})
        for letter in letters:
            self._evidence.came_to("accepted", letter.delivery)

    async def wanted(self, group: Group, *, after_id: int) -> list[Letter]:
        """The next of those that an operator wants the group to get again, by id."""
        query = LetterQuery(state="parked", topic=group.topic, group=group.name)
        return await self._store.find(query, after_id=after_id, limit=PAGE)

    async def close(self) -> None:
        await self._store.close()


def as_message(letter: Letter) -> bytes:
    """The message that the consumer gets for the letter, up to its target."""
    again = replace(letter.delivery, redelivery=True)
    return shared_part(again, "left" if letter.delivery.left else "event")


def _delivery(
    event: EventMessage | None, ref: PartitionRef, seq: int, name: str, fence: Fence
) -> Delivery:
    return Delivery(
        ref.topic,
        ref.partition,
        seq,
        event.event_id if event else "",
        event.key if event else None,
        event.collection if event else "",
        event.op if event else "update",
        event.document if event else msgspec.Raw(b"null"),
        subscriptions=(name,),
        epoch=fence.epoch,
        left=(name,) if event and event.type == "left" else (),
        headers=event.headers if event else msgspec.UNSET,
    )
