"""Which holder may move the position of a partition: the one rule that every checkpoint store
applies.

Invariant: what these functions return has a fence that is at least the one stored, of another
claimant only where it is higher, or none had said who it is; and, but for what an operator wants
again, so is the position. The tally only changes with the position. A store must compare and set:
what it passes in must still be there when it writes what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from headgate.errors import Fenced, NoPosition
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally, Tries

FIRST_VERSION = 1
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Reset:
    """An operator wants the position at `settled`; with `resync`, subscribers are told what that
    skips before it goes there. With `only_forward` it stays if it has come further meanwhile."""

    settled: int
    resync: bool = False
    only_forward: bool = False

    def goes_back_from(self, position: Position) -> bool:
        """Whether records come again; also where it was put there before, and nobody knows."""
        if self.only_forward or self.resync:
            return False
        was_put = self.settled == position.settled < position.redeliver_to
        return was_put or self.settled < position.settled


def put_after(position: Position, reset: Reset | None, *, again: int | None) -> Reset | None:
    """Where a position goes that was found at `position`, if elsewhere: where an operator wants it,
    and, unless he wants it past that, back to `again`."""
    stays = reset is None or (reset.only_forward and position.settled >= reset.settled)
    if not stays:
        return reset
    wanted = 0 if reset is None else reset.settled
    if again is not None and position.settled > max(again, wanted):
        return Reset(max(again, wanted))
    if reset is not None and position.stopped:
        return Reset(position.settled, reset.resync)
    return None


class Checkpoint(msgspec.Struct, frozen=True):
    """A position and who holds it; `version` is the partitioning version it was made under."""

    epoch: int
    window: int
    attempt: int
    settled: int
    version: int = FIRST_VERSION
    tally: Tally = Tally()
    redeliver_to: int = 0
    skip_to: int = 0
    tried: Tries = ()
    stopped: str = ""
    again_to: int = 0
    back_to: int = NOWHERE
    """Where the next to claim it begins, at the latest: an operator wants what follows again."""
    ahead_to: int = 0
    claimant: str = ""

    @property
    def fence(self) -> Fence:
        return Fence(self.epoch, self.window, self.attempt, self.claimant)

    @property
    def position(self) -> Position:
        tried = tuple(one for one in self.tried if one[0] > self.settled)
        return Position(
            self.settled,
            self.tally,
            self.redeliver_to,
            self.skip_to,
            tried,
            self.stopped,
            self.again_to,
            ahead_to=self.ahead_to if self.ahead_to > self.settled else 0,
        )


def listed(read: Callable[[], Checkpoint]) -> Position:
    """One of many that are read; `read` raises NoPosition where what is stored is none."""
    try:
        return read().position
    except NoPosition as error:
        return Position(unreadable=error.message)


def claimed(
    stored: Checkpoint | None,
    ref: PartitionRef,
    fence: Fence,
    *,
    after: Collection[Fence] | None = None,
) -> Checkpoint:
    """What to store when `fence` claims the partition, with `after` only from one of those;
    raises Fenced."""
    held = None if stored is None else stored.fence
    if after is not None and held not in after:
        raise fenced(ref, held, fence)
    if stored is None:
        return Checkpoint(*fence.numbers, settled=0, claimant=fence.claimant)
    if stored.fence.bars(fence):
        raise fenced(ref, stored.fence, fence)
    found = _gone_back(stored) if stored.fence.numbers < fence.numbers else stored
    return msgspec.structs.replace(found, **held_under(fence))


def held_under(fence: Fence) -> dict[str, int | str]:
    """The fields of a checkpoint that name its holder."""
    return {name: getattr(fence, name) for name in Fence.__struct_fields__}


def _gone_back(stored: Checkpoint) -> Checkpoint:
    """The checkpoint as another holder finds it. The one before had its own positions in memory,
    and would have saved those."""
    if stored.back_to == NOWHERE or stored.back_to >= stored.settled:
        return msgspec.structs.replace(stored, back_to=NOWHERE)
    again_to = max(stored.again_to, stored.settled)
    return msgspec.structs.replace(
        stored, settled=stored.back_to, again_to=again_to, tried=(), back_to=NOWHERE
    )


def wanted_back(
    stored: Checkpoint | None, settled: int, until: int, *, instead: bool
) -> Checkpoint:
    """What to store when an operator wants what follows `settled` again, up to `until`, also while
    a consumer holds the position; maybe `instead` of what was wanted before. Where none ever held
    it, nothing is processed ahead of it."""
    held = stored or Checkpoint(0, 0, 0, settled=0)
    is_first = instead or held.back_to == NOWHERE
    back_to = settled if is_first else min(settled, held.back_to)
    ahead_to = max(held.ahead_to, until) if held.epoch else 0
    return msgspec.structs.replace(held, back_to=back_to, ahead_to=ahead_to, skip_to=0)


def wanted_ahead(stored: Checkpoint | None, settled: int) -> Checkpoint:
    """What to store when an operator wants nothing up to `settled`, also while a consumer holds the
    position: the one that claims it next begins behind that. What was wanted back before isn't any
    more."""
    held = stored or Checkpoint(0, 0, 0, settled=0)
    return msgspec.structs.replace(held, skip_to=settled, back_to=NOWHERE)


def moved(
    stored: Checkpoint | None, ref: PartitionRef, fence: Fence, *, settled: int, tally: Tally
) -> Checkpoint:
    """What to store when the holder of `fence` saves `settled`; raises Fenced."""
    held = _held(stored, ref, fence)
    if settled <= held.settled:
        return held
    return msgspec.structs.replace(held, settled=settled, tally=tally)


def noted(
    stored: Checkpoint | None, ref: PartitionRef, fence: Fence, *, tried: Tries
) -> Checkpoint:
    """What to store when the holder of `fence` says what was tried in vain; raises Fenced."""
    return msgspec.structs.replace(_held(stored, ref, fence), tried=tried)


def stopped(stored: Checkpoint | None, ref: PartitionRef, fence: Fence, why: str) -> Checkpoint:
    """What to store when the holder of `fence` says that nothing more is to be read; raises Fenced.
    Only an operator's reset has it read again."""
    return msgspec.structs.replace(_held(stored, ref, fence), stopped=why)


def put(
    stored: Checkpoint | None, ref: PartitionRef, fence: Fence, *, settled: int, resync: bool
) -> Checkpoint:
    """What to store when an operator wants the position at `settled`; raises Fenced.

    Wanting it twice is like wanting it once.
    """
    held = msgspec.structs.replace(claimed(stored, ref, fence), stopped="")
    if settled < held.settled:
        redeliver_to = max(held.redeliver_to, held.settled)
        return msgspec.structs.replace(
            held, settled=settled, redeliver_to=redeliver_to, skip_to=0, tried=()
        )
    if resync:
        return msgspec.structs.replace(held, skip_to=settled)
    skipped = held.tally.skipped + settled - held.settled
    tally = msgspec.structs.replace(held.tally, skipped=skipped)
    return msgspec.structs.replace(held, settled=settled, tally=tally, skip_to=0)


def _held(stored: Checkpoint | None, ref: PartitionRef, fence: Fence) -> Checkpoint:
    if stored is None or stored.fence != fence:
        raise fenced(ref, None if stored is None else stored.fence, fence)
    return stored


def fenced(ref: PartitionRef, held: Fence | None, fence: Fence) -> Fenced:
    holder = "nobody" if held is None else _named(held)
    return Fenced(
        f"the position of partition {ref.partition} of {ref.topic} is held by {holder}, not by "
        f"{_named(fence)}; claim it before moving it",
        topic=ref.topic,
        partition=ref.partition,
        epoch=0 if held is None else held.epoch,
    )


def _named(fence: Fence) -> str:
    who = f" of {fence.claimant}" if fence.claimant else ""
    return f"epoch {fence.epoch}, window {fence.window}, attempt {fence.attempt}{who}"
