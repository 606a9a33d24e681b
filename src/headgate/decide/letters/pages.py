"""Pages of parked letters: which are sent together, and what came of each partition's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headgate.decide.delivery.steps import Redrive
from headgate.decide.letters.parked_partitions import Page
from headgate.model.delivery import SETTLING_VERDICTS, DeliveryAnswer, Verdict
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter


def in_pages(letters: Sequence[Letter], each: int) -> list[list[Letter]]:
    """Pages of up to `each` letters of every partition, in their order."""
    pages: list[list[Letter]] = []
    so_far: Counter[PartitionRef] = Counter()
    for letter in letters:
        number = so_far[letter.ref] // each
        so_far[letter.ref] += 1
        while len(pages) <= number:
            pages.append([])
        pages[number].append(letter)
    return pages


def from_seqs(letters: Sequence[Letter], step: Redrive) -> dict[PartitionRef, int]:
    """Where the pages begin, of the partitions of which a subscriber may not have room for all."""
    paged = {one.ref for one in letters if one.delivery.redelivery} | step.after_seqs.keys()
    return {ref: step.after_seqs.get(ref, 0) + 1 for ref in paged}


def answered(
    letters: Sequence[Letter], by_verdict: Mapping[Verdict, list[Letter]], answer: DeliveryAnswer
) -> dict[PartitionRef, Page | None]:
    """What came of the letters of each partition; None where it may not go on behind them."""
    wanted_seqs = {PartitionRef(one.topic, one.partition): one.wanted_seq for one in answer.go_on}
    settled = {one.ref for verdict in SETTLING_VERDICTS for one in by_verdict.get(verdict, ())}
    stuck = {one.ref for one in by_verdict.get("retry", ())}
    last_seqs = {letter.ref: letter.delivery.seq for letter in letters}
    return {
        ref: Page(last_seq, wanted_seqs[ref], through=ref in settled, whole=ref not in stuck)
        if ref in wanted_seqs
        else None
        for ref, last_seq in last_seqs.items()
    }
