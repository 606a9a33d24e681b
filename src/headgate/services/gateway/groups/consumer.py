"""One consumer of a group at this gateway: its targets, the items it is sent, how it lets go.

Invariants: a target is handed over only after its consumer has finished with it, or had its time;
what a consumer hasn't acknowledged is bounded, per target and in all (handing_out.py). However a
consumer ends, its acknowledgements are saved first, as far as the store allows, and the items it
had in hand count as failed where it didn't say goodbye.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any

import structlog

from headgate import errors
from headgate.decide.groups.tries import Place
from headgate.model.access import Principal
from headgate.model.control.to_coordinator import (
    EpochTooLow,
    JoinGroup,
    NoRoom,
    Released,
    StillInHand,
    ToCoordinator,
)
from headgate.model.groups import Group
from headgate.model.topology import Owner
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.failures import Again, Thing
from headgate.services.gateway.groups.handing_out import HandingOut, Sink
from headgate.services.gateway.groups.target import Acknowledged, Target
from headgate.services.gateway.wire import joined_message, target_message
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()

OPEN_AGAIN_S = 0.5
BURY_AGAIN_S = 1.0
SAVE_AGAIN_S = 0.2
SAVE_LAST_S = 10.0
"""For a store that fails when a consumer ends."""
TELL_EVERY_S = 1.0
"""However often a consumer says that it needs more time."""


class GroupConsumer:
    """`tell` speaks to the coordinator, `make_target` makes a target of what it gives out. Without
    `max_deliveries` it is handed everything as often as it fails."""

    def __init__(
        self,
        request: JoinGroup,
        sink: Sink,
        *,
        bounds: ConsumerBounds,
        tell: Callable[[ToCoordinator], Coroutine[Any, Any, object]],
        make_target: Callable[[Group, Owner], Target],
        crew: Crew,
        max_deliveries: int = 0,
        at_work: Collection[tuple[int, int, int, int]] = (),
        principal: Principal | None = None,
    ) -> None:
        self._crew = crew
        self.principal = principal
        self._max_deliveries = max_deliveries
        self._at_work = list(at_work)
        """Target, partition, seq and the delivery of what it worked on when it connected, of the
        targets that it has not lost since."""
        self._may_work_on_more = bool(at_work)
        """Whether it may work on something that isn't in hand here any more: then nothing that it
        is lost with is certain to be the reason."""
        self.request = request
        self.sink = sink
        self.group: Group | None = None
        self.joined: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self.ended = False
        self.ending: asyncio.Task[None] | None = None
        """The task that ends the consumer and tells the coordinator, once it is to end."""
        self._bounds = bounds
        self._tell = tell
        self._make_target = make_target
        self._targets: dict[int, Target] = {}
        self._handing_out = HandingOut(
            sink,
            self._targets,
            most=bounds.in_hand,
            most_bytes=bounds.in_hand_bytes,
            blamed=bool(max_deliveries),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        """Targets on their way out, which are never kept from it."""
        self._last_saves: dict[int, asyncio.Event] = {}
        """Of targets that were dropped, by their numbers: set once nothing more of it is saved."""

    def owned(self) -> tuple[Owner, ...]:
        return tuple(target.owner for _, target in sorted(self._targets.items()))

    def targets(self) -> list[Target]:
        return list(self._targets.values())

    # --- from the coordinator --------------------------------------------------------------------

    def assigned(self, group: Group, owners: Iterable[Owner]) -> None:
        """From now on it owns `owners`, and nothing else."""
        if self.ended:
            return
        self.group = group
        if not self.joined.done():
            # Now: what follows may be heard in the same moment, and it hears nothing before this.
            self.sink.answer(joined_message(group, self.request.consumer))
            self.joined.set_result(group)
        wanted = {owner.ref.partition: owner for owner in owners}
        for target in self.targets():
            if wanted.get(target.number) != target.owner:
                self.drop(target)
        for number, owner in wanted.items():
            if number not in self._targets:
                self._targets[number] = target = self._make_target(group, owner)
                target.max_deliveries = self._max_deliveries
                target.on_given_up = partial(self._give_up, target)
                target.at_work = {(p, seq): n for t, p, seq, n in self._at_work if t == number}
                self._spawn("opening of a target", target, self._open(target))

    def let_go(self, owners: Iterable[Owner]) -> None:
        """Hand these over: finish, save, say so."""
        for owner in owners:
            target = self._targets.get(owner.ref.partition)
            if target is not None and target.owner == owner and not target.stopped:
                self._spawn("release of a target", target, self._release(target))

    def drop(self, target: Target) -> None:
        """It belongs to another consumer already, or will be given out anew."""
        if self._targets.get(target.number) is target:
            del self._targets[target.number]
            self._handing_out.forget(target)
            self._may_work_on_more |= target.out > 0
            if target.is_open:
                self._at_work = [one for one in self._at_work if one[0] != target.number]
            self.sink.answer(target_message("revoked", target.number, target.owner.epoch))
            self._last_saves[target.number] = saved = asyncio.Event()
            self._spawn("closing of a target", target, self._close(target, saved), self._closing)
            self._handing_out.all_ready()

    async def _close(self, target: Target, saved: asyncio.Event) -> None:
        """What was acknowledged before it was taken away is saved, unless another owner was quicker
        and has claimed it."""
        try:
            if not target.is_saved:
                await target.save()
        except errors.HeadgateError as error:
            log.warning(LogLine.CHECKPOINT_FAILED, target=str(target.owner.ref), error=str(error))
        finally:
            saved.set()
        await target.close()

    async def _open(self, target: Target) -> None:
        if (saved := self._last_saves.pop(target.number, None)) is not None:
            await saved.wait()  # to claim it would fence that
        begun_s = asyncio.get_running_loop().time()
        while self._has(target) and not target.stopped:
            waited_s = asyncio.get_running_loop().time() - begun_s
            try:
                await target.open(from_the_end=waited_s > self._bounds.beyond_end_s)
            except errors.Fenced as error:
                # The coordinator gives it out anew, above that epoch; until then it is asked again.
                await self._tell_epoch(target, error)
                await asyncio.sleep(OPEN_AGAIN_S)
                continue
            except errors.HeadgateError as error:
                if not _may_pass(error):
                    self.sink.fail(error)
                    return
                log.warning(LogLine.TARGET_DELAYED, target=str(target.owner.ref), error=str(error))
                if isinstance(error, errors.Overloaded):
                    await self._decline(target)
                    return
                await asyncio.sleep(OPEN_AGAIN_S)
                continue
            break
        if not self._has(target):
            await target.close()
            return
        if target.stopped:
            return  # it is asked for, and closed when its consumer is done
        epoch = target.owner.epoch
        self.sink.answer(target_message("assigned", target.number, epoch, target.starts))
        target.begin(partial(self._handing_out.ready, target))

    async def _release(self, target: Target) -> None:
        """The consumer is asked also where nothing of it is in hand: it may work on what it had of
        the target under an earlier epoch."""
        owner = target.owner
        await self._ask_for(target)
        if not target.finished.is_set():
            target.lost(certain=self._is_certain)
        await self._save_last(target, self._bounds.release_s)
        if self._has(target):
            self.drop(target)
            await self._tell(Released((owner,)))

    async def _decline(self, target: Target) -> None:
        """There is no room for it here. The consumer that gets it instead begins at once, so this
        one is asked first; then the coordinator is told until it takes the target away."""
        if target.stopped:
            return  # it is asked for already
        await self._ask_for(target)
        while self._has(target):
            await self._tell(NoRoom(target.owner))
            await asyncio.sleep(OPEN_AGAIN_S)

    async def _ask_for(self, target: Target) -> None:
        target.stop()
        self._handing_out.all_ready()
        self.sink.answer(target_message("revoke", target.number, target.owner.epoch))
        await self._until_finished(target)

    async def _until_finished(self, target: Target) -> None:
        """Or until the consumer has had its time, and says no longer that it needs more."""
        bounds, loop = self._bounds, asyncio.get_running_loop()
        begun_s = loop.time()
        while not target.finished.is_set():
            renewed_s = min(max(begun_s, target.renewed_s), begun_s + bounds.keep_s)
            if loop.time() >= renewed_s + bounds.release_s:
                error = "still in hand"
                log.warning(LogLine.TARGET_DELAYED, target=str(target.owner.ref), error=error)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(renewed_s + bounds.release_s):
                    await target.finished.wait()

    # --- from the consumer -----------------------------------------------------------------------

    def acknowledge(self, number: int, epoch: int, acks: Acknowledged) -> None:
        self._held(number, epoch).acknowledge(acks)
        self._handing_out.all_ready()

    def nack(
        self, number: int, epoch: int, place: Place, deliveries: int, *, redelivery: bool
    ) -> None:
        """The consumer failed with the item at `place`, for the time number `deliveries`."""
        self._held(number, epoch).nacked(place, deliveries, redelivery=redelivery)
        self._handing_out.all_ready()

    def holds_back(self, number: int, epoch: int, items: Iterable[Again]) -> None:
        """It has these of the target, and its program has none of them."""
        target = self._held(number, epoch)
        target.holds_back(items)
        if target.wants_alone:
            # The consumer has the item that it was to be alone with after all.
            self._handing_out.is_alone_with(target)
        self._handing_out.all_ready()

    def renew(self, number: int, epoch: int) -> None:
        """The consumer works on items of the target; that matters once the target is asked for."""
        target = self._held(number, epoch)
        target.renewed_s = asyncio.get_running_loop().time()
        if target.stopped and target.renewed_s - target.told_s >= TELL_EVERY_S:
            target.told_s = target.renewed_s
            self._spawn("renewal", target, self._say_in_hand(target))

    async def _say_in_hand(self, target: Target) -> None:
        await self._tell(StillInHand(target.owner))

    def released(self, number: int, epoch: int) -> None:
        target = self._held(number, epoch)
        if not target.stopped:
            raise errors.InvalidRequest(
                f"target {number} was not asked for; leave, or close the connection"
            )
        target.finished.set()

    def _held(self, number: int, epoch: int) -> Target:
        target = self._targets.get(number)
        if target is None or target.owner.epoch != epoch:
            raise errors.Fenced(
                f"target {number} is not this consumer's any more under epoch {epoch}",
                epoch=0 if target is None else target.owner.epoch,
            )
        return target

    # --- what it fails with ----------------------------------------------------------------------

    def _give_up(self, target: Target, thing: Thing) -> None:
        self._spawn("letter of a group", target, self._bury(target, thing))

    async def _bury(self, target: Target, thing: Thing) -> None:
        """Until its letter is written, or the target is another owner's, which does the same."""
        while self._has(target):
            try:
                await target.bury(thing)
            except errors.Fenced as error:
                await self._overtaken(target, error)
                return
            except errors.HeadgateError as error:
                log.error(LogLine.LETTERS_FAILED, target=str(target.owner.ref), error=str(error))
                await asyncio.sleep(BURY_AGAIN_S)
                continue
            said = target.buried(thing)
            if said is not None and self._has(target):
                self.sink.answer(said)
            self._handing_out.ready(target)
            return

    # --- to the consumer -------------------------------------------------------------------------

    @property
    def _is_certain(self) -> bool:
        """Whether a failure now is that of the one thing it has in hand."""
        return self._handing_out.out == 1 and not self._may_work_on_more

    def flush(self) -> None:
        """There is room in the connection again."""
        self._handing_out.flush()

    # --- saving ----------------------------------------------------------------------------------

    async def save(self, target: Target) -> bool:
        """True when everything that is processed is saved."""
        try:
            await self._save(target)
            self._go_on(target)
        except errors.Fenced as error:
            await self._overtaken(target, error)
        except errors.HeadgateError as error:
            log.warning(LogLine.CHECKPOINT_FAILED, target=str(target.owner.ref), error=str(error))
            return False
        return True

    async def _save_last(self, target: Target, within_s: float) -> None:
        """What isn't saved then comes again, to the consumer that owns the target next."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + within_s
        while not await self.save(target):
            if loop.time() >= ends_s:
                return
            await asyncio.sleep(SAVE_AGAIN_S)

    def confirm(self, target: Target, at_s: float) -> None:
        """The coordinator was there then, and would have said if it weren't ours any more."""
        target.confirm(at_s)
        self._go_on(target)

    def _go_on(self, target: Target) -> None:
        if target.waits_to_be_sure and target.is_sure:
            target.waits_to_be_sure = False
            self._handing_out.ready(target)

    async def _save(self, target: Target) -> None:
        try:
            await target.save()
        except errors.Fenced as error:
            if error.epoch >= target.owner.epoch:
                raise
            log.warning(LogLine.CHECKPOINT_FAILED, target=str(target.owner.ref), error=str(error))
            await target.take_again()
            await target.save()

    async def check(self, target: Target) -> None:
        """Is it still ours? Asked while the coordinator can't tell."""
        try:
            await target.check()
            self._go_on(target)
        except errors.Fenced as error:
            await self._overtaken(target, error)
        except errors.HeadgateError as error:
            log.warning(LogLine.CHECKPOINT_FAILED, target=str(target.owner.ref), error=str(error))

    async def _overtaken(self, target: Target, error: errors.Fenced) -> None:
        log.warning(LogLine.FENCED, target=str(target.owner.ref), epoch=target.owner.epoch)
        if self._has(target):
            self.drop(target)
            await self._tell_epoch(target, error)

    async def _tell_epoch(self, target: Target, error: errors.Fenced) -> None:
        owner = target.owner
        await self._tell(EpochTooLow(owner.ref, error.epoch, owner.epoch))

    # --- the end ---------------------------------------------------------------------------------

    async def end(self, *, failed: bool) -> None:
        """Stop, save what is processed, and let go of every target. `failed`: the consumer is lost
        with what it has in hand."""
        if self.ended:
            return
        self.ended = True
        certain = self._is_certain
        if not self.joined.done():
            self.joined.cancel()
        self._handing_out.stop()
        targets = self.targets()
        for target in targets:
            target.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*tuple(self._tasks), return_exceptions=True)
        if failed:
            for target in targets:
                target.lost(certain=certain)
        saves = (self._save_last(target, SAVE_LAST_S) for target in targets)
        for outcome in await asyncio.gather(*saves, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error(LogLine.UNEXPECTED, error=str(outcome))
        self._targets.clear()
        closing = (target.close() for target in targets)
        await asyncio.gather(*closing, *tuple(self._closing), return_exceptions=True)

    def _has(self, target: Target) -> bool:
        return not self.ended and self._targets.get(target.number) is target

    def _spawn(
        self,
        name: str,
        target: Target,
        work: Coroutine[Any, Any, None],
        tasks: set[asyncio.Task[None]] | None = None,
    ) -> None:
        among = self._tasks if tasks is None else tasks
        task = self._crew.start(name, self._guarded(work), about=str(target.owner.ref))
        among.add(task)
        task.add_done_callback(among.discard)
        task.add_done_callback(lambda _: work.close())  # one that never got to begin

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self.sink.fail(
                errors.NotNow("something went wrong here; the server's log says what; join again")
            )
            raise


def _may_pass(error: errors.HeadgateError) -> bool:
    """Whether it is worth trying again: also a log that ends before what was seen of it."""
    return isinstance(error, errors.NotNow | errors.OperatorError) or "head" in error.details
