"""The record that a request asks about: what the log has in its place, or a document that isn't
produced."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.decide.browsing.showing import Masks
from headgate.decide.explaining.predicates import Looked
from headgate.decide.produce.placement import partition_of
from headgate.model.event import PartitionRef, Record
from headgate.model.explain_api import DryRun, RecordStatus
from headgate.model.topology import Topic

DRY_RUN_ID = "dry-run"


@dataclass(frozen=True, slots=True)
class Given:
    """`record` None: there is none, and `missing` says why; `earliest` and `head` are what the log
    has of the partition. `looked` has it as it may be shown, without the paths in `masked`."""

    ref: PartitionRef
    seq: int
    record: Record | None = None
    looked: Looked | None = None
    masked: tuple[str, ...] = ()
    missing: RecordStatus | None = None
    earliest: int = 0
    head: int = 0

    @property
    def is_dry_run(self) -> bool:
        return self.seq == 0

    @property
    def told(self) -> tuple[RecordStatus, str]:
        """Of what isn't a record in the log."""
        where = f"{self.ref}:{self.seq}"
        match self.missing:
            case "to_come":
                return "to_come", f"{self.ref} ends at seq {self.head}: nothing has that place yet"
            case "gone":
                return "gone", (
                    f"{self.ref} begins at seq {self.earliest} by now: retention took {where}, so "
                    "what it was, and whom it concerned, isn't known any more"
                )
            case "corrupt":
                return "corrupt", (
                    f"what is stored at {where} isn't what was appended: it goes to nobody any "
                    "more, and a router that comes to it stands still there; headgate log verify "
                    f"{self.ref.topic} says more"
                )
            case "missing":
                return "missing", (
                    f"there is no record at {where}, though {self.ref} has older and newer ones: "
                    "it was lost, or the log was moved on behind it"
                )
            case _:
                return "dry_run", (
                    f"it would be in {self.ref}; nothing was produced, and nothing is delivered"
                )


def found(record: Record, *, head: int, masks: Masks) -> Given:
    shown, masked = masks.masked(record)
    ref = PartitionRef(record.topic, record.partition)
    looked = Looked.at(record, shown)
    return Given(ref, record.seq, record, looked, tuple(masked), head=head)


def dry_run_of(body: DryRun, topic: Topic, *, now_ms: int, masks: Masks) -> Given:
    """As if it had been produced now. On opportunistic topics any partition would do."""
    partition = 0
    if topic.placement == "keyed" and body.key is not None:
        partition = partition_of(body.key, collection=body.collection, count=topic.partitions)
    record = Record(
        topic.name,
        partition,
        0,
        topic.version,
        DRY_RUN_ID,
        body.key,
        body.collection,
        body.op,
        bytes(body.document),
        None if body.earlier is None else bytes(body.earlier),
        None,
        now_ms,
    )
    return found(record, head=0, masks=masks)
