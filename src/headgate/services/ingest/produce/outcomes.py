"""What became of the events of one request, and how that is told."""

from __future__ import annotations

from collections.abc import Sequence

from headgate import errors
from headgate.model.api import ErrorBody, ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended

Outcome = ProduceResult | errors.HeadgateError
"""Of one event: the result that says where it is on disk, or why it isn't."""


def unknown_outcome(partition: int) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        f"the write to partition {partition} did not end in time and may still succeed: "
        f"{errors.SAME_IDS_AGAIN}",
        partition=partition,
    )


def placed(
    ref: PartitionRef, events: Sequence[Event], appended: Sequence[Appended]
) -> list[ProduceResult]:
    """Where each of `events` is on disk."""
    partition = ref.partition
    return [
        ProduceResult(event.event_id, partition, one.seq)
        for event, one in zip(events, appended, strict=True)
    ]


def results(events: Sequence[Event], outcomes: Sequence[Outcome]) -> list[ProduceResult]:
    """One result per event; raises where one error says it all.

    "May have been written" wins over "nothing was written". Errors that ask for different things
    are told event by event.
    """
    written = [outcome for outcome in outcomes if isinstance(outcome, ProduceResult)]
    if len(written) == len(events):
        return written
    failures = [outcome for outcome in outcomes if not isinstance(outcome, ProduceResult)]
    if len(failures) == len(events):
        unknown = next((f for f in failures if isinstance(f, errors.OutcomeUnknown)), None)
        if unknown is not None:
            raise unknown
        if len({failure.code for failure in failures}) == 1:
            raise failures[0]
    return [_result(event, outcome) for event, outcome in zip(events, outcomes, strict=True)]


def _result(event: Event, outcome: Outcome) -> ProduceResult:
    if isinstance(outcome, ProduceResult):
        return outcome
    body = ErrorBody(outcome.code, outcome.message, dict(outcome.details))
    return ProduceResult(event.event_id, error=body)
