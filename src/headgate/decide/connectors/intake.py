"""What a partition makes of a connector's batch: which events are new, and which readers are
refused.

Every store asks this in the transaction that writes. Invariants: a position never goes back within
one beginning, nothing is written at or before it, and it never passes a change that wasn't handed
in; once a higher epoch of the connector was here, nothing of a lower one is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.errors import ConnectorFenced, IntakeGap, InvalidRequest
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark, IntakePosition


@dataclass(frozen=True, slots=True)
class Admitted:
    """The events to be written, and what is stored of the connector with them."""

    events: Sequence[Event]
    position: IntakePosition


def admit(
    ref: PartitionRef,
    stored: Sequence[IntakePosition],
    mark: IntakeMark,
    events: Sequence[Event],
    *,
    version: int,
) -> Admitted:
    """What to do with `events` where `stored` is known of the connector, under any version.

    Raises ConnectorFenced, IntakeGap or InvalidRequest, as ports.log.LogWriter.take_in says.
    """
    _check_newest(ref, stored, mark)
    former = next((one for one in stored if one.version == version), None)
    if former is not None and former.beginning < mark.beginning and not mark.upto:
        # Where another beginning ended says what this one leaves out, until it has begun itself.
        return Admitted((), replace(former, epoch=mark.epoch))
    had = next((one for one in stored if _is_of(one, mark, version)), None)
    reached, has_ended = (had.position, had.ended) if had is not None else ("", False)
    if mark.upto and mark.after > reached:
        raise _gap(ref, mark, f"it stands at {reached or 'nothing'}", reached)
    if mark.upto and has_ended and not mark.ends:
        raise _gap(ref, mark, "its origin had lost its history there", reached)
    is_new = mark.upto > reached
    ends_now = mark.ends and not has_ended
    new: Sequence[Event] = ()
    if is_new or ends_now:
        new = [one for one in events if (one.source or "") > reached or ends_now]
    if any((one.source or "") > mark.upto for one in events):
        raise InvalidRequest(
            f"a batch of connector {mark.connector} has a change behind its own end; nothing was "
            "written"
        )
    return Admitted(
        new,
        IntakePosition(
            version,
            mark.partitions,
            mark.epoch,
            mark.beginning,
            max(reached, mark.upto),
            has_ended or mark.ends,
            mark.snapshot if is_new else _snapshot_of(had),
        ),
    )


def _snapshot_of(had: IntakePosition | None) -> str:
    """What is stored of snapshots stands as long as its position does."""
    return "" if had is None else had.snapshot


def _is_of(stored: IntakePosition, mark: IntakeMark, version: int) -> bool:
    return stored.version == version and stored.beginning == mark.beginning


def _check_newest(ref: PartitionRef, stored: Sequence[IntakePosition], mark: IntakeMark) -> None:
    epoch = max((one.epoch for one in stored), default=0)
    beginning = max((one.beginning for one in stored), default=0)
    if mark.epoch < epoch or mark.beginning < beginning:
        # There is no newer reader to leave it to: the coordinator that gave out this epoch has
        # forgotten a reset.
        is_forgotten = mark.epoch > max(epoch, beginning)
        came = (
            f"began anew in epoch {beginning}, which its coordinator has forgotten, so partition "
            f"{ref.partition} of {ref.topic} takes nothing of it; say where to go on with "
            f"`headgate connector reset {mark.connector} --to …`"
            if is_forgotten
            else f"was here in epoch {epoch}, and epoch {mark.epoch} came to partition "
            f"{ref.partition} of {ref.topic}; stop reading for it"
        )
        raise ConnectorFenced(
            f"connector {mark.connector} {came}",
            topic=ref.topic,
            partition=ref.partition,
            connector=mark.connector,
            epoch=max(epoch, beginning),
        )


def _gap(ref: PartitionRef, mark: IntakeMark, why: str, reached: str) -> IntakeGap:
    return IntakeGap(
        f"a batch of connector {mark.connector} begins behind {mark.after or 'nothing'}, which "
        f"doesn't join partition {ref.partition} of {ref.topic}: {why}; nothing was written",
        topic=ref.topic,
        partition=ref.partition,
        position=reached,
    )
