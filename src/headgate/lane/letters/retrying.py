"""Sends letters that an operator wants to be sent again, to all who are subscribed now.

Each letter is matched anew: subscriptions come and go, and change their ids, while it lies there.
It leaves the store when every gateway that it is for has taken it; what nobody wants, or can read,
is dead again, and says so. Letters are looked through one page after the other, so one for a
subscriber that doesn't read keeps only itself waiting, and a page that can't be read what is behind
it of its partition. Outside the order, as every subscriber is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet

import structlog
from msgspec.structs import replace

from headgate.decide.delivery.batch_size import BatchSize
from headgate.decide.pacing import Pace
from headgate.errors import Fenced, HeadgateError
from headgate.lane.delivery.sink import Sink, let_go
from headgate.lane.holding import Holding
from headgate.lane.subscriptions.matching import Matching
from headgate.model.delivery import Delivery, Verdict
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter
from headgate.ports.letters import LetterStore
from headgate.ports.machine import Machine
from headgate.telemetry import LogLine

log = structlog.get_logger()

PAGE = 100
"""Letters that are on their way at a time; fewer where the store takes too long for them."""
UNWANTED = "it was sent again, but nobody who is subscribed now wants it"
REJECTED = "a gateway rejected it"
DAMAGED = "it is damaged, so nobody can be sent it: delete it"
TAKEN: frozenset[Verdict] = frozenset({"accepted", "duplicate"})

SendAgain = Callable[[str, Delivery], Awaitable[Verdict | None]]
"""Delivers to a gateway once: its verdict, or None where it didn't give one."""


class Retrying:
    def __init__(
        self,
        store: LetterStore,
        matching: Matching,
        holding: Holding,
        sink: Sink,
        send: SendAgain,
        *,
        machine: Machine,
        every_s: float,
    ) -> None:
        self._store = store
        self._matching = matching
        self._holding = holding
        self._sink = sink
        self._send = send
        self._machine = machine
        self._pace = Pace(machine.monotonic_s)
        self._every_s = every_s
        self._now = asyncio.Event()
        self._now.set()
        self._taken: dict[tuple[PartitionRef, int, str], frozenset[str]] = {}
        """Of letters that not every gateway has taken: for whom which of them has."""
        self._size = BatchSize(PAGE)
        self._loop = asyncio.get_running_loop()
        self.error = ""
        """What is wrong with the store, if anything is."""

    def look_now(self) -> None:
        """An operator has just said so."""
        self._now.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._now.wait()
            self._now.clear()
            try:
                await self._look()
            except Fenced as error:
                let_go(self._sink, error)
                self._now.set()

    async def _look(self) -> None:
        """Through all partitions together; where that fails, through each by itself, so that a
        letter that can't be read holds no others'."""
        refs = list(self._holding.fences())
        wrong = await self._tried(refs)
        if wrong and len(refs) > 1:
            wrong = [one for ref in refs for one in await self._tried([ref])]
        for error in dict.fromkeys(wrong):
            log.error(LogLine.LETTERS_FAILED, error=error)
        self.error = wrong[0] if wrong else ""

    async def _tried(self, refs: Sequence[PartitionRef]) -> list[str]:
        """What went wrong, if anything did."""
        try:
            await self._look_through(refs)
        except Fenced:
            raise
        except HeadgateError as error:
            self._size.failed(self._size.limit, now_s=self._loop.time())
            return [error.message]
        return []

    async def _look_through(self, refs: Sequence[PartitionRef]) -> None:
        after_id = 0
        seen: set[int] = set()
        while True:
            limit = self._size.limit
            letters = await self._store.revived(refs, after_id=after_id, limit=limit)
            if letters:
                await self._send_page(letters)
                after_id = letters[-1].id
                seen.update(letter.id for letter in letters)
            full = len(letters) >= limit
            self._size.fitted(len(letters), full=full, now_s=self._loop.time())
            if not full:
                self._forget_taken(refs, seen)
                return

    def _forget_taken(self, refs: Sequence[PartitionRef], seen: AbstractSet[int]) -> None:
        """Forget letters that are gone: these partitions have no others than those `seen`."""
        held = self._holding.fences()
        self._taken = {
            (ref, id_, gateway_id): names
            for (ref, id_, gateway_id), names in self._taken.items()
            if ref in held and (ref not in refs or id_ in seen)
        }

    async def _send_page(self, letters: Sequence[Letter]) -> None:
        fences = self._holding.fences()
        held = [letter for letter in letters if letter.ref in fences]
        targets = await self._all_addressed(held)
        answers = await asyncio.gather(
            *(self._send_to_all(*one) for one in zip(held, targets, strict=True))
        )
        through: list[Letter] = []
        dead: list[Letter] = []
        for letter, verdicts in zip(held, answers, strict=True):
            if letter.damage:
                dead.append(replace(letter, error=DAMAGED))
            elif not verdicts:
                dead.append(replace(letter, error=UNWANTED))
            elif "stale_fence" in verdicts:
                reason = f"a gateway has seen a newer owner of {letter.ref}"
                self._sink.overtaken(letter.ref, reason)
            elif TAKEN.issuperset(verdicts):
                through.append(letter)
            elif "rejected" in verdicts:
                dead.append(replace(letter, attempts=letter.attempts + 1, error=REJECTED))
        fences = self._holding.fences()
        await self._store.remove([one for one in through if one.ref in fences], fences)
        now_ms = self._machine.wall_ms()
        await self._store.bury([one for one in dead if one.ref in fences], fences, now_ms=now_ms)

    async def _send_to_all(
        self, letter: Letter, targets: dict[str, Delivery]
    ) -> list[Verdict | None]:
        """The verdict of each gateway; gateways that have the letter already aren't asked again."""

        async def send(gateway_id: str, delivery: Delivery) -> Verdict | None:
            names = frozenset(delivery.subscriptions)
            place = letter.ref, letter.id, gateway_id
            if names and names <= self._taken.get(place, frozenset()):
                return "duplicate"
            verdict = await self._send(gateway_id, delivery)
            if verdict in TAKEN:
                self._taken[place] = names
            elif verdict == "no_subscriber" and delivery.lost_from:
                return "accepted"  # nobody there has to hear of the gap any more
            return verdict

        return await asyncio.gather(*(send(*target) for target in targets.items()))

    async def _all_addressed(self, letters: Sequence[Letter]) -> list[dict[str, Delivery]]:
        """For each who gets it; others have their turn in between, however long matching takes."""
        found: list[dict[str, Delivery]] = []
        self._pace.begin()
        for letter in letters:
            found.append(self._addressed(letter))
            if self._pace.is_over():
                await asyncio.sleep(0)
                self._pace.begin()
        return found

    def _addressed(self, letter: Letter) -> dict[str, Delivery]:
        """Who gets it, as of now: per gateway its delivery. When it was revived names the wish."""
        if letter.damage:
            found: dict[str, Delivery] = {}
        elif letter.delivery.lost_from:
            known = letter.gateway_id in self._holding.around.urls
            found = {letter.gateway_id: letter.delivery} if known else {}
        else:
            found = self._matching.anew(letter.delivery)
        fence = self._holding.fence(letter.ref)
        epoch = letter.delivery.epoch if fence is None else fence.epoch
        return {
            gateway_id: replace(one, epoch=epoch, redelivery=True, wish=letter.at_ms)
            for gateway_id, one in found.items()
        }
