"""What is known of a record in the cluster, gathered for the gateway that explains it.

For gateways, not for the public: the gateway decides what the principal that asks may see.
Invariant: nothing is changed by asking; no node is waited for longer than `ASK_TIMEOUT_S`, and
nodes that didn't answer are named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from headgate.decide.access.showing import Sight
from headgate.decide.coordination.views.status import describe_topic
from headgate.decide.operations.letter_queries import described
from headgate.decide.pacing import Pace
from headgate.errors import HeadgateError, InvalidRequest
from headgate.model.account import (
    ACCOUNT_PATH,
    LETTERS_MAX,
    LISTED_MAX,
    SUBSCRIPTIONS_PATH,
    Account,
    AccountQuestion,
    SubscriptionsListed,
    Testimony,
)
from headgate.model.api import TopicPartition
from headgate.model.control.from_coordinator import AskEvidence
from headgate.model.event import PartitionRef
from headgate.model.http import Request, Response, Route, json_response
from headgate.model.letters import Letter, LetterQuery
from headgate.model.letters_api import LetterInfo
from headgate.model.subscription import Subscription
from headgate.ports.letters import LetterStore
from headgate.ports.machine import Machine
from headgate.services.coordinator.term import Term

ASK_TIMEOUT_S = 2.0
LETTERS_TIMEOUT_S = 2.0
MAX_BODY_BYTES = 1024 * 1024


class EvidenceRoutes:
    """`term` is the present leadership; it raises NotNow where another coordinator leads."""

    def __init__(self, term: Callable[[], Term], letters: LetterStore, machine: Machine) -> None:
        self._term = term
        self._letters = letters
        self._machine = machine

    def table(self) -> list[Route]:
        return [
            Route("POST", ACCOUNT_PATH, self._account, public=False, callers=("gateway",)),
            Route("GET", SUBSCRIPTIONS_PATH, self._list, public=False, callers=("gateway",)),
        ]

    # --- who is subscribed -----------------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        cluster, query = self._term().cluster, request.query
        registry = cluster.registry
        if (name := query.get("id")) is not None:
            one = registry.subscriptions.get(name)
            found = [] if one is None else [one]
            return json_response(
                SubscriptionsListed(found, -1, len(registry.subscriptions), registry.complete)
            )
        topic, after = query.get("topic", ""), query.get("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) < 20):
            raise InvalidRequest("after is a number that an answer gave", parameter="after")
        groups = [one for one in cluster.groups.all() if one.topic == topic and after == "0"]
        # As lanes are given it: a value, so others may subscribe meanwhile.
        parts = registry.snapshot()
        page, next_ = await self._page([part.subscriptions for part in parts], topic, int(after))
        return json_response(
            SubscriptionsListed(page, next_, len(registry.subscriptions), registry.complete, groups)
        )

    async def _page(
        self, parts: list[tuple[Subscription, ...]], topic: str, after: int
    ) -> tuple[list[Subscription], int]:
        """Up to LISTED_MAX of the topic, and behind which of all to go on."""
        found: list[Subscription] = []
        pace, at = Pace(self._machine.monotonic_s), 0
        pace.begin()
        for part in parts:
            if at + len(part) > after:
                for number, one in enumerate(part, at):
                    if number < after or one.topic != topic:
                        continue
                    if len(found) == LISTED_MAX:
                        return found, number
                    found.append(one)
                if pace.is_over():
                    await asyncio.sleep(0)
                    pace.begin()
            at += len(part)
        return found, -1

    # --- what became of a record -----------------------------------------------------------------

    async def _account(self, request: Request) -> Response:
        term = self._term()
        asked = msgspec.json.decode(await request.body(MAX_BODY_BYTES), type=AccountQuestion)
        (testimonies, silent), (letters, error) = await asyncio.gather(
            self._heard(term, asked), self._letters_of(asked, Sight(request.principal, "read"))
        )
        partition = await self._partition(term, asked.ref)
        targets = set(asked.targets)
        owners = [one for one in term.cluster.groups.targets.owned() if one.ref in targets]
        skip = term.skip_of(asked.ref, asked.seq)
        return json_response(Account(partition, testimonies, silent, letters, error, owners, skip))

    async def _partition(self, term: Term, ref: PartitionRef) -> TopicPartition | None:
        topic = term.cluster.topics.get(ref.topic)
        if topic is None:
            return None
        info = describe_topic(
            term.cluster,
            topic,
            stored=await term.stored(),
            now_ms=term.now_ms(),
            wall_ms=self._machine.wall_ms(),
        )
        return next((one for one in info.details if one.partition == ref.partition), None)

    async def _heard(self, term: Term, asked: AccountQuestion) -> tuple[list[Testimony], list[str]]:
        """The testimonies of lanes and gateways, and the names of those that gave none."""
        cluster = term.cluster
        witnesses: dict[int, Testimony] = {}
        silent: list[str] = []
        for session, lane in cluster.lanes.by_session.items():
            hello = lane.hello
            name = f"lane {hello.lane} of {hello.node_id}"
            if hello.tells:
                witnesses[session] = Testimony(hello.node_id, "lane", hello.pid, hello.window)
            else:
                silent.append(f"{name}, which is of a version that keeps no evidence")
        for member in cluster.of_role("gateway"):
            hello = member.hello
            if member.session is None:
                silent.append(f"{hello.node_id}, which is cut off")
            elif hello.tells:
                witnesses[member.session] = Testimony(hello.node_id, "gateway", hello.pid)
            else:
                silent.append(f"{hello.node_id}, which is of a version that keeps no evidence")

        def ask(session: int, number: int) -> AskEvidence:
            node = witnesses[session]
            names = asked.subscriptions.get(node.node, []) if node.role == "gateway" else []
            return AskEvidence(number, asked.ref, asked.seq, tuple(names), tuple(asked.targets))

        answers = await term.inquiries.ask(witnesses.keys(), ask, timeout_s=ASK_TIMEOUT_S)
        testimonies: list[Testimony] = []
        for session, witness in witnesses.items():
            said = answers.get(session)
            if said is None or (said.lane is None and said.gateway is None):
                what = "a lane of " if witness.role == "lane" else ""
                silent.append(f"{what}{witness.node}, which gave no answer")
            else:
                testimonies.append(
                    msgspec.structs.replace(witness, lane=said.lane, gateway=said.gateway)
                )
        return testimonies, silent

    async def _letters_of(
        self, asked: AccountQuestion, eyes: Sight
    ) -> tuple[list[LetterInfo], str]:
        """Those that the principal that asks may see."""
        try:
            async with asyncio.timeout(LETTERS_TIMEOUT_S):
                found = await self._found(asked.ref, asked.seq)
        except TimeoutError:
            return [], f"the store of letters gave no answer within {LETTERS_TIMEOUT_S:g} s"
        except HeadgateError as error:
            return [], error.message
        return [described(one, documents=False) for one in found if eyes.sees(one)], ""

    async def _found(self, ref: PartitionRef, seq: int) -> list[Letter]:
        """Asked for by gateway and state, which is what letters are found by without looking at
        all of them."""
        kinds = {
            (count.state, count.gateway_id)
            for count in await self._letters.counts()
            if count.topic == ref.topic
        }
        found: list[Letter] = []
        for state, gateway_id in sorted(kinds):
            query = LetterQuery(
                state=state,
                gateway_id=gateway_id,
                topic=ref.topic,
                partition=ref.partition,
                seq=seq,
            )
            found += await self._letters.find(query, limit=LETTERS_MAX)
        return sorted(found, key=lambda one: one.id)[:LETTERS_MAX]
