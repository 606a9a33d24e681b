"""All pipelines of a lane, what they set aside, and how fast the lane may read for them.

A lane reads faster than gateways take. It waits for those that keep pace, so that a backlog isn't
parked for no reason, and it doesn't wait for a straggler, so that one slow gateway never slows the
others: what piles up for a straggler is parked. Where that comes faster than letters are written,
only the partitions that it is of have to wait; and where it comes faster than they are sent, those
that nobody gets at once (decide.letters.pacing).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping

import structlog

from headgate.decide.delivery.batching import BatchLimits
from headgate.decide.delivery.pressure import Watermarks
from headgate.decide.delivery.retrying import Backoff
from headgate.decide.delivery.rules import DeliveryRules
from headgate.errors import Fenced, HeadgateError
from headgate.lane.delivery.evidence import LaneEvidence
from headgate.lane.delivery.ledger import Ledger
from headgate.lane.delivery.pipeline import GatewayPipeline
from headgate.lane.delivery.sink import let_go
from headgate.lane.holding import Holding
from headgate.lane.letters.retrying import Retrying
from headgate.lane.letters.writing import LetterWriter
from headgate.lane.subscriptions.matching import Matching
from headgate.model.control.reports import GatewayLink
from headgate.model.delivery import Delivery, Verdict
from headgate.model.event import PartitionRef
from headgate.model.lanes import LaneSettings
from headgate.model.topology import Node
from headgate.ports.letters import LetterStore
from headgate.ports.machine import Machine
from headgate.ports.transport import DeliveryTransport
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()

STRAGGLES = 5.0
"""A gateway that takes so many times longer than the quickest one isn't waited for."""
AT_LEAST_S = 0.05
"""Round trips below this are quick, whatever the others take."""
LOOK_AGAIN_S = 0.05
"""A straggler shows only with time."""
STORE_AGAIN_S = 1.0
BEHIND_ALL = 2**63 - 1
"""No letter has an id above that."""
REMEMBERED = 500_000
"""Matched records that a lane reads ahead of the oldest unsettled one, at most; from three quarters
of that on nothing more is read of the partitions that have the most of them."""


class Dispatcher:
    """Pipelines come into being with the first delivery for their gateway."""

    def __init__(
        self,
        settings: LaneSettings,
        *,
        fence: tuple[int, int],
        transport: DeliveryTransport,
        store: LetterStore,
        matching: Matching,
        holding: Holding,
        ledger: Ledger,
        evidence: LaneEvidence,
        crew: Crew,
        machine: Machine,
    ) -> None:
        self._settings = settings
        self._fence = fence
        self._transport = transport
        self._store = store
        self._holding = holding
        self._ledger = ledger
        self._evidence = evidence
        self._rules = rules_of(settings)
        self._crew = crew
        self._machine = machine
        self._letters = LetterWriter(
            store, holding, ledger, machine=machine, capacity_bytes=settings.queue_bytes
        )
        self._retrying = Retrying(
            store,
            matching,
            holding,
            ledger,
            self._send_again,
            machine=machine,
            every_s=settings.redrive_every_s,
        )
        self._pipelines: dict[str, GatewayPipeline] = {}
        self._behind: dict[str, frozenset[PartitionRef]] = {}
        self._gateways: dict[str, Node] = {}
        self._troubled: frozenset[str] = frozenset()
        self._has_looked = False
        """Whether the store has said what is parked."""
        self._hurries = False
        """Whether nothing is to wait for long."""
        self._error = ""

    # --- life ------------------------------------------------------------------------------------

    async def store_answers(self, refs: Collection[PartitionRef]) -> bool:
        """Whether letters of `refs` can be read now; waits a while where they can't. None is read
        for that: one that is damaged keeps no lane from beginning."""
        try:
            await self._store.revived(refs, after_id=BEHIND_ALL, limit=1)
        except HeadgateError as error:
            self._failed(error)
            await asyncio.sleep(STORE_AGAIN_S)
            return False
        self._error = ""
        return True

    async def look_behind(self) -> None:
        """Take the letters of the lane's partitions and find out what is parked; returns only when
        the store has said so, because nothing may overtake it."""
        while True:
            try:
                self._behind = await self._store.claim(self._holding.fences())
                break
            except Fenced as error:
                let_go(self._ledger, error)
            except HeadgateError as error:
                self._failed(error)
                await asyncio.sleep(STORE_AGAIN_S)
        self._error = ""

    def start(self) -> None:
        """Begin to deliver: subscriptions and gateways are known."""
        self._has_looked = True
        for gateway_id in self._behind:
            self._pipeline(gateway_id)
        self._crew.need("letters", self._letters.run())
        self._crew.need("retrying", self._retrying.run())

    async def flush(self, timeout_s: float) -> None:
        """What is in flight may still be acknowledged; what isn't stays unsettled."""
        for pipeline in self._pipelines.values():
            pipeline.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(p.drained() for p in self._pipelines.values()))
                await self._letters.all_written()

    # --- deliveries ------------------------------------------------------------------------------

    def put(self, gateway_id: str, delivery: Delivery) -> int:
        """Returns in how many parts it goes on, each of which settles."""
        return (self._pipelines.get(gateway_id) or self._pipeline(gateway_id)).put(delivery)

    async def _send_again(self, gateway_id: str, delivery: Delivery) -> Verdict | None:
        return await self._pipeline(gateway_id).send_again(delivery)

    async def gateways_behind(self, before: Mapping[PartitionRef, int]) -> set[str]:
        """Those for which something of these partitions is parked, up to there. Raises what the
        store of letters raises."""
        asked: set[str] = set()
        behind: set[str] = set()
        while before and (unasked := {*self._holding.around.urls, *self._pipelines} - asked):
            for gateway_id in unasked:
                letters = await self._store.parked(gateway_id, before, each=1)
                if any(letter.delivery.seq <= before[letter.ref] for letter in letters):
                    behind.add(gateway_id)
            asked |= unasked
        return behind

    def fall_behind(self, ref: PartitionRef, gateway_ids: Iterable[str]) -> None:
        """For these gateways, older records are parked of other partitions that may have the same
        keys: new deliveries of `ref` are parked there, too."""
        for gateway_id in gateway_ids:
            self._pipeline(gateway_id).fall_behind(ref)

    def drop(self, ref: PartitionRef) -> None:
        """The partition is another lane's."""
        for pipeline in self._pipelines.values():
            pipeline.drop(ref)
        self._ledger.progress.set()

    def holds(self, ref: PartitionRef) -> bool:
        """Must `ref` wait: until letters are written, of which it has brought some, because the
        lane remembers much, and of it no less than of the others, or until its letters are sent,
        because all that is read of it is parked?"""
        return (
            self._letters.holds(ref) or self._remembers_much_of(ref) or self._outruns_letters(ref)
        )

    def _outruns_letters(self, ref: PartitionRef) -> bool:
        """Is it so for every gateway there is? Others are not to wait for one."""
        pipelines = [self._pipelines.get(gateway_id) for gateway_id in self._holding.around.urls]
        return bool(pipelines) and all(p is not None and p.outruns_letters(ref) for p in pipelines)

    def reads(self, ref: PartitionRef) -> None:
        """More of `ref` is read, because nothing holds it."""
        self._letters.reads(ref)

    async def room(self) -> None:
        """Returns when more may be read, of partitions that nothing holds."""
        while self._remembers_enough() or self._is_ahead():
            self._ledger.progress.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._ledger.progress.wait()

    def _remembers_much_of(self, ref: PartitionRef) -> bool:
        """Has it a good part in what keeps the lane from reading soon?"""
        unsettled, partitions = self._holding.unsettled(), self._holding.partitions
        if unsettled < REMEMBERED * 3 / 4:
            return False
        return partitions[ref].unsettled * len(partitions) >= unsettled

    def _remembers_enough(self) -> bool:
        """Are too many unsettled? One that waits for a slow gateway keeps all that is behind it
        from being forgotten, so well before that nothing waits for long: it is parked."""
        unsettled = self._holding.unsettled()
        if self._hurries != (unsettled >= REMEMBERED / 2):
            self._hurries = not self._hurries
            for pipeline in self._pipelines.values():
                pipeline.hurry(self._hurries)
        return unsettled >= REMEMBERED

    def _is_ahead(self) -> bool:
        """Does much wait for a gateway that keeps pace?"""
        marks = self._rules.watermarks
        half = max(1, marks.queue_size // 2)  # a pipeline that has nothing isn't crowded
        half_bytes = max(1, marks.queue_bytes // 2)
        crowded = [
            p
            for p in self._pipelines.values()
            if p.waiting >= half or p.waiting_bytes >= half_bytes
        ]
        if not crowded:
            return False
        now_s = asyncio.get_running_loop().time()
        well = [p for p in self._pipelines.values() if not p.struggles]
        quickest_s = min((p.pace_s(now_s) for p in well), default=0.0)
        limit_s = max(AT_LEAST_S, STRAGGLES * quickest_s)
        return any(p in well and p.pace_s(now_s) <= limit_s for p in crowded)

    # --- what changes around it ------------------------------------------------------------------

    def heard(self, gateways: Iterable[Node]) -> None:
        """Who is there now. A gateway that moved or started anew is worth another try."""
        known, self._gateways = self._gateways, {node.id: node for node in gateways}
        for gateway_id, pipeline in self._pipelines.items():
            renewed = self._gateways.get(gateway_id) not in (None, known.get(gateway_id))
            pipeline.look_again(renewed=renewed)

    def hint(self, troubled: Iterable[str]) -> None:
        """Other lanes have given up on these gateways for now."""
        self._troubled = frozenset(troubled)
        for gateway_id, pipeline in self._pipelines.items():
            pipeline.be_wary(gateway_id in self._troubled)

    def look_for_letters(self) -> None:
        """An operator wants letters to be sent again."""
        self._retrying.look_now()

    # --- reports ---------------------------------------------------------------------------------

    def links(self) -> tuple[GatewayLink, ...]:
        return tuple(pipeline.link() for pipeline in self._pipelines.values())

    @property
    def error(self) -> str:
        """What is wrong with the store of letters, if anything is."""
        return self._letters.error or self._retrying.error or self._error

    def is_behind(self, ref: PartitionRef) -> bool:
        """Is something of `ref`, or of what comes before it, parked for some gateway? Also as long
        as the store hasn't said."""
        behind = any(pipeline.is_behind(ref) for pipeline in self._pipelines.values())
        return behind or not self._has_looked

    def is_behind_at(self, ref: PartitionRef, gateway_id: str) -> bool:
        """The same for one gateway, of which the store has said."""
        pipeline = self._pipelines.get(gateway_id)
        return pipeline is not None and pipeline.is_behind(ref)

    def halt_of(self, ref: PartitionRef) -> str:
        """Why nothing of `ref` reaches some gateway, if it stands still there."""
        for gateway_id, pipeline in self._pipelines.items():
            if why := pipeline.halt_of(ref):
                return f"{gateway_id}: {why}"
        return ""

    # --- parts -----------------------------------------------------------------------------------

    def _pipeline(self, gateway_id: str) -> GatewayPipeline:
        pipeline = self._pipelines.get(gateway_id)
        if pipeline is None:
            pipeline = self._pipelines[gateway_id] = GatewayPipeline(
                gateway_id,
                fence=self._fence,
                rules=self._rules,
                behind=self._behind.get(gateway_id, frozenset()),
                transport=self._transport,
                store=self._store,
                letters=self._letters,
                holding=self._holding,
                sink=self._ledger,
                evidence=self._evidence,
                crew=self._crew,
                machine=self._machine,
                timeout_s=self._settings.delivery_timeout_s,
            )
            pipeline.be_wary(gateway_id in self._troubled)
            pipeline.hurry(self._hurries)
        return pipeline

    def _failed(self, error: HeadgateError) -> None:
        self._error = error.message
        log.error(LogLine.LETTERS_FAILED, error=error.message)


def rules_of(settings: LaneSettings) -> DeliveryRules:
    return DeliveryRules(
        limits=BatchLimits(
            settings.batch_max_size,
            settings.batch_max_wait_s,
            settings.batch_flush_interval_s,
            settings.batch_max_bytes,
        ),
        backoff=Backoff(settings.retry_initial_s, settings.retry_max_s, settings.retry_multiplier),
        max_attempts=settings.retry_max_attempts,
        buffer_timeout_s=settings.buffer_timeout_s,
        redrive_every_s=settings.redrive_every_s,
        watermarks=Watermarks(
            settings.soft_watermark,
            settings.hard_watermark,
            settings.resume_watermark,
            settings.queue_size,
            settings.queue_bytes,
        ),
        breaker_threshold=settings.breaker_threshold,
        breaker_timeout_s=settings.breaker_timeout_s,
        keeps_dead=settings.dlq_enabled,
    )
