"""Says where a record is and why it did or did not reach subscribers: /v1/explain.

The record and the topology are known here; the coordinator says who is subscribed, and asks lanes
and gateways what they remember (model/account.py). Every answer passes `Sight`, the one place that
decides what of it the principal that asks may see. Invariants: nothing is consumed, moved or
delivered by asking; a request waits for ASK_TIMEOUT_S at most, and computes in turns; where a node
can't be asked, the answer says what that leaves unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from headgate import errors
from headgate.decide.browsing.showing import Masks
from headgate.decide.explaining.disclosure import Sight, sight_of
from headgate.decide.explaining.facts import Facts
from headgate.decide.explaining.given import Given, dry_run_of, found
from headgate.decide.explaining.groups import asked_targets
from headgate.decide.explaining.question import PARAMETERS, Question, about_dry_run, question_of
from headgate.decide.explaining.told import Chosen, explanation_of
from headgate.decide.filter.plan import compile_filter
from headgate.decide.produce.unknown_topic import check_heard, unknown_topic
from headgate.model.account import Account, AccountQuestion
from headgate.model.event import PartitionRef
from headgate.model.explain_api import DryRun, Explanation, RecordStatus
from headgate.model.http import Parameter, Request, Response, Route, json_response
from headgate.model.topology import Topic, Topology
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine
from headgate.services.gateway.public.asking import Asking
from headgate.services.gateway.public.finding import Finding, Place
from headgate.services.gateway.public.turns import Turns

MAX_BODY_BYTES = 2 * 1024 * 1024


class Explaining:
    """`topology` is what the gateway knows now; `masked` are the paths that `ui.mask` names."""

    def __init__(
        self,
        reader: LogReader,
        asking: Asking,
        *,
        topology: Callable[[], Topology],
        machine: Machine,
        masked: Sequence[str] = (),
    ) -> None:
        self._reader = reader
        self._asking = asking
        self._topology = topology
        self._machine = machine
        self._masks = Masks(masked)
        self._finding = Finding(reader, machine)
        self._turns = Turns(
            at_once=2,
            waiting_max=32,
            wait_s=10.0,
            refused="too many ask what became of records here at the moment; try again",
        )

    def table(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/explain",
                self._explain,
                "Say where a record is, what became of it, and why subscribers got it or not.",
                response=Explanation,
                parameters=tuple(Parameter(name, text) for name, text in PARAMETERS.items()),
            ),
            Route(
                "POST",
                "/v1/explain",
                self._dry_run,
                "Say which subscribers would get a document; nothing is produced or delivered.",
                DryRun,
                Explanation,
            ),
        ]

    # --- a record --------------------------------------------------------------------------------

    async def _explain(self, request: Request) -> Response:
        question = question_of(request.query)
        compile_filter(question.about.where)
        sight = sight_of(request.principal)
        check_heard(self._topology())
        async with self._turns.turn():
            given, elsewhere = await self._asked_for(question, sight)
            chosen = await self._asking.chosen(given, question.about, sight, request)
            facts = await self._facts(given, chosen, sight, request)
            return json_response(
                explanation_of(
                    given,
                    facts,
                    chosen,
                    question.about,
                    topology=self._topology(),
                    sight=sight,
                    elsewhere=elsewhere,
                )
            )

    async def _asked_for(self, question: Question, sight: Sight) -> tuple[Given, list[Place]]:
        """The record, and where else the same event is."""
        if question.place is not None:
            ref, seq = question.place
            topic = self._topology().topic(ref.topic)
            if topic is None or not sight.topic(ref.topic):
                return await self._as_an_id(question, sight)
            if ref not in topic.all_refs():
                last = len(topic.all_refs()) - 1
                raise errors.NotFound(
                    f"topic {ref.topic} has no partition {ref.partition}: it has 0 to {last}",
                    name=str(ref),
                )
            given = await self._given(ref, seq, sight)
            if given is None:
                raise errors.NotFound(f"there is no record {ref}:{seq} for you to see")
            return given, []
        return await self._by_id(question, sight)

    async def _as_an_id(self, question: Question, sight: Sight) -> tuple[Given, list[Place]]:
        """What reads like a place of a topic that isn't there, as ids may."""
        assert question.place is not None
        try:
            return await self._by_id(replace(question, topic=""), sight)
        except errors.NotFound:
            self._topic(question.place[0].topic, sight)  # says which there are
            raise

    async def _by_id(self, question: Question, sight: Sight) -> tuple[Given, list[Place]]:
        if question.topic:
            topics = [self._topic(question.topic, sight)]
        else:
            topics = [one for one in self._topology().topics if sight.topic(one.name)]
        refs = [ref for topic in topics for ref in topic.all_refs()]
        seen = await self._finding.found(
            question.event_id, refs, lambda place: self._given(*place, sight)
        )
        return seen[0][1], [place for place, _ in seen[1:]]

    def _topic(self, name: str, sight: Sight) -> Topic:
        topology = self._topology()
        topic = topology.topic(name)
        if topic is None or not sight.topic(name):
            known = [one.name for one in topology.topics if sight.topic(one.name)]
            raise unknown_topic(name, known, is_wanted=False)
        return topic

    async def _given(self, ref: PartitionRef, seq: int, sight: Sight) -> Given | None:
        """What the log has there; None where the principal may not see it."""
        extent = await self._reader.extent(ref)
        why: RecordStatus = "missing"
        if seq > extent.head:
            why = "to_come"
        elif seq < extent.earliest:
            why = "gone"
        else:
            try:
                records = await self._reader.read(ref, after_seq=seq - 1, limit=1)
            except errors.CorruptRecord:
                records, why = [], "corrupt"
            if records and records[0].seq == seq:
                record = sight.record(records[0])
                if record is None:
                    return None
                return found(record, head=extent.head, masks=self._masks)
        return Given(ref, seq, missing=why, earliest=extent.earliest, head=extent.head)

    async def _facts(self, given: Given, chosen: Chosen, sight: Sight, request: Request) -> Facts:
        is_gone = given.missing in ("gone", "corrupt")
        if not sight.system or (is_gone and not sight.unseen(given.ref.topic)):
            return Facts(given.ref, given.seq, None)
        by_gateway: dict[str, list[str]] = {}
        for one in chosen.subscriptions:
            by_gateway.setdefault(one.gateway_id, []).append(one.id)
        record = given.record
        asked = AccountQuestion(
            given.ref,
            given.seq,
            by_gateway,
            asked_targets(record, chosen.groups),
        )
        account: Account | None = None
        error = ""
        try:
            account = await self._asking.account(asked, request)
            if not sight.letters(given.ref.topic, given.record):
                account = msgspec.structs.replace(account, letters=[])
        except errors.NotNow as reason:
            error = reason.message
        time_ms = 0 if record is None else record.time_ms
        return Facts(given.ref, given.seq, account, error, time_ms)

    # --- a document that isn't produced ----------------------------------------------------------

    async def _dry_run(self, request: Request) -> Response:
        body = await request.decode(DryRun, MAX_BODY_BYTES)
        about = about_dry_run(body)
        compile_filter(about.where)
        sight = sight_of(request.principal)
        check_heard(self._topology())
        topic = self._topic(body.topic, sight)
        async with self._turns.turn():
            given = dry_run_of(body, topic, now_ms=self._machine.wall_ms(), masks=self._masks)
            chosen = await self._asking.chosen(given, about, sight, request)
            facts = Facts(given.ref, given.seq, None)
            return json_response(
                explanation_of(given, facts, chosen, about, topology=self._topology(), sight=sight)
            )
