"""Whether a consumer group has, gets or waits for a record.

Each record is one target's of the group, by its key; a record about a whole collection is of all
targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headgate.decide.explaining.facts import Facts
from headgate.decide.explaining.given import Given
from headgate.decide.explaining.predicates import conditions_of, verdict_on
from headgate.decide.explaining.verdicts import (
    Told,
    attempt_told,
    dead_before_told,
    evidence_told,
    left_out_told,
    letter_told,
    unconcerned,
    unread_why,
)
from headgate.decide.groups.targets import target_of
from headgate.model.event import WHOLE_COLLECTION, PartitionRef, Record
from headgate.model.evidence import ASKED_MAX, LeftOut, Whereabouts
from headgate.model.explain_api import ExplainedGroup, Status
from headgate.model.groups import Group
from headgate.model.letters_api import LetterInfo
from headgate.model.topology import Owner

EVERY_TARGET = -1


def target_for(record: Record, group: Group) -> int:
    return EVERY_TARGET if record.op in WHOLE_COLLECTION else target_of(record, group.targets)


def asked_targets(record: Record | None, groups: Sequence[Group]) -> list[PartitionRef]:
    """Those of the record's topic that have it."""
    if record is None:
        return []
    found = [(group, target_for(record, group)) for group in groups]
    refs = [
        PartitionRef(group.id, one)
        for group, number in found
        for one in (range(group.targets) if number == EVERY_TARGET else (number,))
    ]
    return refs[:ASKED_MAX]


def explained_group(group: Group, given: Given, facts: Facts) -> ExplainedGroup:
    looked = given.looked
    if looked is None:
        return ExplainedGroup(group.name, "unknown", given.told[1], where=group.where)
    number = target_for(looked.record, group)
    gateway, standing, owner = _where(group, number, facts)
    verdicts, conditions = verdict_on(looked, group.where), conditions_of(looked, group.where)
    if not verdicts.concerns:
        status, why = unconcerned(verdicts, conditions)
    elif given.is_dry_run:
        status, why = "matches", f"{_named(number)} of the group would get it"
    elif number == EVERY_TARGET:
        status, why = _told_of_all(group, facts)
    else:
        status, why = _told(group, number, standing, owner, facts)
    return ExplainedGroup(
        group.name,
        status,
        why,
        number,
        "" if owner is None else owner.node_id,
        gateway,
        verdict=verdicts.verdict,
        where=group.where,
        conditions=conditions,
        position=-1 if standing is None else standing.acknowledged,
    )


def _named(number: int) -> str:
    return "every target" if number == EVERY_TARGET else f"target {number}"


def _standing(group: Group, number: int, facts: Facts) -> tuple[str, Whereabouts | None]:
    """Of its owner at present; a former one may still have it open, stopped."""
    found = [
        (gateway, one)
        for gateway, account in facts.gateways.items()
        for one in account.targets
        if one.group == group.id and one.target == number
    ]
    found.sort(key=lambda one: one[1].stopped)
    return found[0] if found else ("", None)


def _where(group: Group, number: int, facts: Facts) -> tuple[str, Whereabouts | None, Owner | None]:
    return *_standing(group, number, facts), facts.owner_of(PartitionRef(group.id, number))


def _told_of_all(group: Group, facts: Facts) -> Told:
    """Of a record that every target has: as the one that is least far with it."""
    found = Counter[Status]()
    for number in range(group.targets):
        _, standing, owner = _where(group, number, facts)
        found[_told(group, number, standing, owner, facts)[0]] += 1
    status = max(found, key=lambda one: (one != "processed", found[one]))
    counted = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in sorted(found.items())
    )
    return status, (
        "it is about a whole collection, so it is for each of the group's "
        f"{group.targets} targets: {counted}"
    )


def _told(
    group: Group, number: int, standing: Whereabouts | None, owner: Owner | None, facts: Facts
) -> Told:
    letters = [one for one in facts.letters if one.group == group.name and one.topic == group.topic]
    if letters:
        return "dead" if letters[-1].state == "dead" else "parked", letter_told(letters[-1])
    ending = facts.ending_for(group.target_name(number))
    if ending is not None and ending.outcome == "dead":
        return "dead", dead_before_told(ending)
    if standing is None:
        if owner is not None:
            return "unknown", (
                f"target {number} of the group has this key, and no gateway says that "
                f"{owner.node_id}, which owns it, has it open"
            )
        return "no_consumer", (
            f"no consumer has target {number} of the group, which has this key: the consumer that "
            "takes it over goes on in the log behind what is processed, or where a reset wants it; "
            f"headgate group describe {group.topic} {group.name} says how far that is"
        )
    if facts.seq <= standing.start and facts.seq > standing.acknowledged:
        return "before", f"the group, or its owner, began after seq {standing.start}"
    began = group.begins_after(facts.ref.partition)
    if facts.seq <= min(began, standing.start) and standing.left_out is None:
        return "before", (
            f"the group began after seq {began} of {facts.ref}: it has had it only if it was put "
            "back that far since"
        )
    if standing.left_out is not None:  # whose place the consumer may have in hand, too
        return _left_out(standing.left_out)
    if standing.unacknowledged:
        return "in_hand", f"target {number}'s consumer has it, and hasn't acknowledged it"
    if facts.seq <= standing.acknowledged:
        return "processed", (
            f"target {number} has processed everything of {facts.ref} up to seq "
            f"{standing.acknowledged}"
        )
    if standing.stopped:
        return "held", f"target {number} is on its way to another consumer, who gets it"
    match standing.stand:
        case "passed":
            return "delivered", f"target {number}'s consumer was handed it"
        case "waiting":
            return "waiting", f"it waits at the gateway for target {number}'s consumer"
        case "behind":
            return "catching_up", (
                f"target {number} reads the log, and is at seq {standing.position} of {facts.ref}"
            )
        case "held":
            return "held", "its gateway hands out nothing for now"
        case _:
            return _expected(standing, facts)


def _left_out(said: LeftOut) -> Told:
    if said.reason == "repeat":
        return left_out_told(said)
    return "skipped", f"its consumer was told to resync ({said.reason})"


def _expected(standing: Whereabouts, facts: Facts) -> Told:
    """No lane has brought it to its gateway, nor anything newer of the partition."""
    lane = facts.lane
    if lane is None or lane.read_seq < facts.seq:
        return "unread", unread_why(facts)
    if (letter := _letter_for(standing.subscription, facts)) is not None:
        return "dead" if letter.state == "dead" else "parked", letter_told(letter)
    if lane.awaits:
        return "on_the_way", "a lane has read it, and its gateway hasn't answered yet"
    tried = facts.attempts_for(standing.subscription)
    if tried:
        return "unknown", f"the last that is known is: {attempt_told(tried[-1])}"
    return "unknown", (
        "the record is settled, and its gateway hasn't had it: nobody remembers why; "
        f"{evidence_told(facts)}"
    )


def _letter_for(subscription_id: str, facts: Facts) -> LetterInfo | None:
    """The last one that a lane has made for it, as for any other subscriber."""
    found = [one for one in facts.letters if subscription_id in one.subscriptions]
    return found[-1] if found else None
