"""One produce request and what its answer means for each of its events.

Invariant: an answer is taken only when it speaks of the events that were sent, in their order;
while a request is under way its events are marked as `asked`, until the caller has dealt with the
answer; nothing is sent that its call was told isn't written, while a token was waited for. Never
sends twice: the caller decides that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headgate import errors
from headgate.client.http import HttpClient, topic_path
from headgate.client.producing.outgoing import Outcome, Receipt
from headgate.client.producing.pending import Pending
from headgate.client.producing.route import Route
from headgate.model.api import ProduceAnswer, ProduceRequest, ProduceResult
from headgate.model.refusals import rebuild

ANSWER_MARGIN_S = 2.0
"""How much longer than the server's own deadline to wait for its answer."""


@dataclass(frozen=True, slots=True)
class Answers:
    """`are_of_each`: they say something about each event, and not only about the request."""

    outcomes: list[Outcome]
    are_of_each: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """`version` goes along with a keyed produce to an owner, and only there."""

    topic: str
    url: str
    version: int | None
    timeout_s: float

    async def run(self, route: Route, batch: Sequence[Pending]) -> Answers:
        """An outcome for each event; an error that no other attempt would mend is raised."""
        for pending in batch:
            pending.asked = True
        try:
            async with route.connections.to(self.url) as client:
                answer = await self._post(client, batch)
        except errors.HeadgateError as error:
            if "no_answer" in error.details:
                route.unreachable(self.url)
            if not may_retry(error) and not isinstance(error, errors.StaleVersion):
                for pending in batch:
                    pending.asked = False
                    pending.unknown = pending.unknown or _may_be_written(error)
                raise
            outcomes: list[Outcome] = [error] * len(batch)
            are_of_each = isinstance(error, errors.StaleVersion)  # it names the owners of all
        else:
            are_of_each = True
            outcomes = [_outcome(result) for result in answer.events]
        for pending, outcome in zip(batch, outcomes, strict=True):
            pending.unknown = pending.unknown or _may_be_written(outcome)
        refusals = [one for one in outcomes if isinstance(one, errors.StaleVersion)]
        if refusals:
            await route.redirected(self.topic, self.url, refusals[0])
        return Answers(outcomes, are_of_each)

    async def _post(self, client: HttpClient, batch: Sequence[Pending]) -> ProduceAnswer:
        events = [pending.event for pending in batch]
        again = any(pending.again for pending in batch)
        body = ProduceRequest(events, f"{int(self.timeout_s * 1_000)}ms", self.version, again)
        answer = await client.post(
            f"{topic_path(self.topic)}/produce",
            body,
            ProduceAnswer,
            timeout_s=self.timeout_s + ANSWER_MARGIN_S,
            send_within_s=self.timeout_s,
            held=partial(_held, batch),
        )
        if [result.event_id for result in answer.events] != [event.event_id for event in events]:
            for pending in batch:
                pending.unknown = True
            raise errors.HeadgateError(f"{client.url} answered for other events than were sent")
        return answer


def _held(batch: Sequence[Pending], is_held: bool) -> None:
    """Raises NotNow where one of them has its outcome meanwhile, and must not be written."""
    if not is_held and any(pending.is_settled and not pending.unknown for pending in batch):
        raise errors.NotNow("the token came after the end of a call; try again")
    for pending in batch:
        pending.asked = not is_held


def may_retry(outcome: Outcome) -> bool:
    return isinstance(outcome, errors.NotNow | errors.StorageFailed)


def about_the_call(error: errors.HeadgateError, batch: Sequence[Pending]) -> errors.HeadgateError:
    """The same error, naming an event by its place in its call instead of that in the request."""
    index = error.details.get("index")
    if not isinstance(index, int) or not 0 <= index < len(batch):
        return error
    own = batch[index].index
    message = error.message.replace(f"event {index}", f"event {own}")
    return type(error)(message, **{**error.details, "index": own})


def _may_be_written(outcome: Outcome) -> bool:
    if isinstance(outcome, Receipt):
        return False
    return (
        isinstance(outcome, errors.OutcomeUnknown) or outcome.details.get("no_answer") == "unknown"
    )


def _outcome(result: ProduceResult) -> Outcome:
    if result.error is not None:
        return rebuild(result.error)
    if result.partition is None or result.seq is None:
        return errors.HeadgateError("the answer says neither where the event is nor what failed")
    return Receipt(result.partition, result.seq, result.event_id)
