"""Whether one subscription has, gets or never gets a record, and why: a status and a sentence.

What decides is asked in the order in which it decided: does the record concern it, did it begin
before it, was something left out for it, does it have the record, is it on its way, was it given
up. Invariant: nothing is claimed that no node has said; where it isn't known any more, that is
said.
"""

from __future__ import annotations

from headgate.decide.explaining.facts import Facts, clock
from headgate.decide.explaining.predicates import Verdicts
from headgate.model.evidence import Attempt, Ended, LeftOut, Skip, Whereabouts
from headgate.model.explain_api import ExplainedCondition, Status
from headgate.model.letters_api import LetterInfo
from headgate.model.subscription import Subscription

Told = tuple[Status, str]

WHY_LEFT_OUT = {
    "slow": "it was too slow, and this was left out to make room (gateway.when_slow: drop_oldest)",
    "retention": "retention had taken the record before it could be read for it",
    "gap": "no router could read the record, or an operator had it passed over",
    "origin": "the database that feeds the topic had lost changes there",
    "lost_history": "the log had lost its history there",
    "corrupt": "what is stored isn't what was appended",
    "reset": "an operator had its group go back",
}


def told_of(
    subscription: Subscription,
    verdicts: Verdicts,
    conditions: list[ExplainedCondition],
    facts: Facts,
) -> Told:
    if not verdicts.concerns:
        return unconcerned(verdicts, conditions)
    standing = facts.standings.get(subscription.id)
    letters = [one for one in facts.letters if subscription.id in one.subscriptions]
    if standing is None:
        return _without_standing(subscription, letters, facts)
    if facts.seq <= standing.start:
        if (again := _taken(subscription, facts)) is not None:
            return "delivered", (
                f"it was subscribed behind the record, which was sent again: {again.gateway} took "
                f"it for this subscriber, too, at {clock(again.at_ms)}"
            )
        return "before", (
            f"it was subscribed behind the record: it began after seq {standing.start} of "
            f"{facts.ref}; --from earliest, or a position, brings what was before"
        )
    said, taken = standing.left_out, _taken(subscription, facts)
    # It may have come again since, by a reset or out of the log.
    had_ms = max(standing.read_at_ms, 0 if taken is None else taken.at_ms)
    if said is not None and had_ms <= said.at_ms:
        return left_out_told(said)
    if (dead := _last(letters, "dead")) is not None and had_ms <= dead.at_ms:
        return _dead(dead)
    return _standing(subscription, standing, letters, facts)


def unseen_told(subscription: Subscription, otherwise: str, facts: Facts) -> Told:
    """Of what the log hasn't any more, or can't show: what is remembered of it."""
    standing, taken = facts.standings.get(subscription.id), _taken(subscription, facts)
    if standing is not None and taken is not None and standing.stand == "passed":
        return "delivered", (
            f"{taken.gateway} took it for this subscriber at {clock(taken.at_ms)} and sent it: "
            "that is remembered, though the record can't be read any more"
        )
    return "unknown", otherwise


def left_out_told(said: LeftOut) -> Told:
    if said.reason == "repeat":
        place = (
            "elsewhere" if said.first is None else f"{said.topic}:{said.first[0]}:{said.first[1]}"
        )
        return "repeat", f"it had the same event before, from {place}, so the repeat was dropped"
    why = WHY_LEFT_OUT.get(said.reason, said.reason)
    return "skipped", (
        f"{why}; it was told to resync ({said.reason}) at {clock(said.at_ms)}: nothing between "
        f"seq {said.after_seq} and {said.from_seq}"
    )


def unconcerned(verdicts: Verdicts, conditions: list[ExplainedCondition]) -> Told:
    if not verdicts.mine:
        return "other_target", "the record's key belongs to another target of its group"
    if verdicts.verdict == "failed":
        return "filter_failed", f"its filter fails on this document{_which(conditions, 'failed')}"
    return "not_matched", f"its filter is false{_which(conditions, 'no match')}"


def _which(conditions: list[ExplainedCondition], verdict: str) -> str:
    """The conditions that decided, with what the record has there."""
    found = [one for one in conditions if one.verdict == verdict]
    if not found:
        return ""
    return ": " + "; ".join(map(_condition, found[:3]))


def _condition(one: ExplainedCondition) -> str:
    has = ", ".join(
        f"{value.field} is {'masked' if value.masked else value.value}"
        for value in one.values
        if not value.missing
    )
    because = "; ".join(part for part in (one.why, has) if part)
    return f"{one.condition} ({because})" if because else one.condition


def _without_standing(subscription: Subscription, letters: list[LetterInfo], facts: Facts) -> Told:
    """Its gateway isn't there, didn't answer, or hasn't it any more."""
    gateway = subscription.gateway_id
    if (dead := _last(letters, "dead")) is not None:
        return _dead(dead)
    _, ended = facts.ended(subscription.id)
    if ended is not None:
        return "ended", ended_told(ended, facts)
    if (parked := _last(letters, "parked")) is not None:
        return _parked(parked)
    if gateway in facts.gateways:
        return "ended", "it has just ended at its gateway, which the coordinator is about to hear"
    tried = facts.attempts_for(subscription.id)
    if tried and tried[-1].outcome in ("accepted", "duplicate"):
        return "unknown", (
            f"{gateway} took it at {clock(tried[-1].at_ms)}, and gives no answer now: whether its "
            "subscriber has it isn't known"
        )
    if facts.lane is not None and facts.lane.read_seq < facts.seq:
        return _unread(facts)
    if facts.lane is not None and facts.lane.awaits:
        return _on_the_way(gateway, facts)
    return "unknown", f"its gateway {gateway} gave no answer, and nobody else knows"


def ended_told(ended: Ended, facts: Facts) -> str:
    why = f"it ended at {clock(ended.at_ms)}" + (f" ({ended.reason})" if ended.reason else "")
    ending = facts.ending_for(ended.subscription)
    if facts.seq <= ended.start:
        return f"{why}, and had begun behind the record, after seq {ended.start}"
    if ended.left_out is not None:
        return f"{why}; before that {left_out_told(ended.left_out)[1]}"
    if ending is not None and ending.outcome in ("dead", "rejected"):
        return f"{why}; {dead_before_told(ending)}"
    if facts.seq <= ended.position:
        return f"{why}; its connection was handed all it wanted up to seq {ended.position}"
    return f"{why}, before it came to the record: it was at seq {ended.position}"


def _standing(
    subscription: Subscription, standing: Whereabouts, letters: list[LetterInfo], facts: Facts
) -> Told:
    gateway, seq = subscription.gateway_id, facts.seq
    match standing.stand:
        case "passed":
            return _passed(subscription, standing, facts)
        case "waiting":
            return "waiting", (
                f"it is in the subscriber's queue at {gateway}, where {standing.queued} wait: "
                "it takes them more slowly than they come"
            )
        case "held":
            return "held", (
                f"{gateway} gives it nothing for now: the coordinator had forgotten the gateway, "
                "and not every lane knows its subscribers yet; then it is read from the log"
            )
        case "behind":
            return "catching_up", (
                f"{gateway} reads the log for it, and is at seq {standing.position} of "
                f"{facts.ref}: it replays, or its queue was full (gateway.when_slow: park); "
                f"{seq} comes in its turn"
            )
        case _:
            return _expected(subscription, standing, letters, facts)


def _passed(subscription: Subscription, standing: Whereabouts, facts: Facts) -> Told:
    gateway = subscription.gateway_id
    if (missed := _missed(subscription, standing, facts)) is not None:
        return missed
    if subscription.shard is not None:
        if standing.unacknowledged:
            return "in_hand", "the group's consumer has it, and hasn't acknowledged it"
        if facts.seq <= standing.acknowledged:
            return "processed", "the group's consumer has acknowledged it"
    handed = (
        f"the subscriber's connection was handed all it wants of {facts.ref} up to seq "
        f"{standing.position}"
    )
    has_it: Status = "delivered"
    if facts.seq <= standing.acknowledged and subscription.shard is None:
        has_it = "processed"
        handed = (
            f"the subscriber has acknowledged everything that {gateway} sent it of {facts.ref} up "
            f"to seq {standing.acknowledged}"
        )
    if (taken := _taken(subscription, facts)) is not None:
        return has_it, f"{gateway} took it at {clock(taken.at_ms)} and sent it: {handed}"
    if standing.read_at_ms:
        return has_it, f"{gateway} read it from the log for it: {handed}"
    return has_it, (
        f"{handed}; that it was among that, and not left out as a letter that is gone or by a "
        "reset, nobody remembers"
    )


def _missed(subscription: Subscription, standing: Whereabouts, facts: Facts) -> Told | None:
    """Whether the subscription never had the record, though its position is beyond it: a dead
    letter, or a record that an operator went past, holds nothing up."""
    if subscription.shard is not None:
        return None
    ending = facts.ending_for(subscription.id)
    if ending is not None and ending.outcome in ("dead", "rejected"):
        return "dead", dead_before_told(ending)
    if facts.skip is not None and ending is None and not standing.read_at_ms:
        return "skipped", skip_told(facts.skip)
    return None


def dead_before_told(ending: Attempt) -> str:
    error = f" ({ending.error})" if ending.error else ""
    return (
        f"it became a dead letter at {clock(ending.at_ms)}{error}, and hasn't been delivered since"
    )


def skip_told(skip: Skip) -> str:
    return (
        f"an operator moved the position of {skip.ref} on at {clock(skip.at_ms)}, past seq "
        f"{skip.after_seq + 1} to {skip.settled}, without telling subscribers (headgate partition "
        "reset without --resync)"
    )


def _taken(subscription: Subscription, facts: Facts) -> Attempt | None:
    """When its gateway took it for the subscriber the last time."""
    return facts.taken_for(subscription.id, subscription.gateway_id)


def _expected(
    subscription: Subscription, standing: Whereabouts, letters: list[LetterInfo], facts: Facts
) -> Told:
    """No lane has brought it to its gateway, nor anything newer of the partition."""
    if (parked := _last(letters, "parked")) is not None:
        return _parked(parked)
    lane = facts.lane
    if lane is None:
        if facts.is_settled:
            return _settled_without(subscription, standing, facts)
        return _unread(facts)
    if lane.read_seq < facts.seq:
        return _unread(facts)
    if lane.awaits:
        return _on_the_way(subscription.gateway_id, facts)
    return _settled_without(subscription, standing, facts)


def _settled_without(subscription: Subscription, standing: Whereabouts, facts: Facts) -> Told:
    tried = facts.attempts_for(subscription.id)
    if tried and tried[-1].outcome == "accepted" and _taken(subscription, facts) is not None:
        return "delivered", (
            f"{tried[-1].gateway} took it for this subscriber at {clock(tried[-1].at_ms)}: it was "
            "sent again, outside the order"
        )
    if (missed := _missed(subscription, standing, facts)) is not None:
        return missed
    if tried and tried[-1].outcome in ("released", "no_subscriber"):
        return "released", (
            f"it was settled without it at {clock(tried[-1].at_ms)}, since {tried[-1].gateway} "
            "had no such subscriber then"
        )
    if tried:
        return "unknown", f"the last that is known is: {attempt_told(tried[-1])}"
    return "unknown", (
        "the record is settled, and its gateway hasn't had it: nobody remembers why; "
        f"{evidence_told(facts)}"
    )


def _unread(facts: Facts) -> Told:
    return "unread", unread_why(facts)


def unread_why(facts: Facts) -> str:
    """Why no lane has read the record, as far as the nodes say."""
    lane = facts.lane
    partition = None if facts.account is None else facts.account.partition
    if lane is not None:
        at = f"its lane has read {facts.ref} up to seq {lane.read_seq}"
        if lane.held_for:
            return (
                f"{at}, and waits until what comes before version {lane.held_for} is settled (the "
                "topic was repartitioned)"
            )
        return f"{at}, and stands still: {lane.reason}" if lane.reason else f"{at}"
    if partition is not None and partition.router:
        return f"no lane of {partition.router}, which has {facts.ref}, says that it reads it"
    if partition is not None:
        return f"no router has {facts.ref}"
    return f"nobody says how far {facts.ref} is read"


def _on_the_way(gateway: str, facts: Facts) -> Told:
    lane = facts.lane
    assert lane is not None, "a lane has read it"
    ways = [way for way in lane.ways if way.gateway == gateway]
    why = f"a lane has read it, and {gateway} hasn't answered for it yet"
    if not ways:
        return "on_the_way", why
    way = ways[0]
    said = [f"{way.waiting} wait for that gateway"]
    if way.breaker != "closed":
        said.append(f"its circuit breaker is {way.breaker.replace('_', ' ')}")
    if way.pressure != "normal":
        said.append(f"its pressure is {way.pressure}")
    if way.behind:
        said.append("older records of the partition are parked for it")
    if way.error:
        said.append(f"the last that went wrong: {way.error}")
    return "on_the_way", f"{why}; {', '.join(said)}"


# --- letters -------------------------------------------------------------------------------------

WHY_DEAD = {
    "rejected": "its gateway refused it for good",
    "shed": "its subscription is of low priority, and the gateway was behind",
    "left": "it came again after a reset, to a subscriber that left before it had it",
    "failed": "the group's consumers were handed it too often in vain",
}
WHY_PARKED = {
    "unreachable": "the gateway doesn't answer, or its circuit breaker is open",
    "overloaded": "the gateway is too far behind",
    "too_old": "the gateway had let it wait for too long",
    "halted": "it stands behind one that is refused",
    "rejected": "the gateway refuses it, and no dead letters are kept",
}


def _last(letters: list[LetterInfo], state: str) -> LetterInfo | None:
    found = [one for one in letters if one.state == state]
    return found[-1] if found else None


def _dead(letter: LetterInfo) -> Told:
    return "dead", letter_told(letter)


def _parked(letter: LetterInfo) -> Told:
    return "parked", letter_told(letter)


def letter_told(letter: LetterInfo) -> str:
    whose = letter.gateway or f"group {letter.group}"
    error = f" ({letter.error})" if letter.error else ""
    if letter.state == "dead":
        why = WHY_DEAD.get(letter.reason, letter.reason)
        if letter.damaged:
            return f"dead letter {letter.id} for {whose} since {clock(letter.at_ms)}: {why}{error}"
        return (
            f"dead letter {letter.id} for {whose} since {clock(letter.at_ms)}: {why}{error}; "
            f"headgate dlq retry {letter.id} sends it again"
        )
    why = WHY_PARKED.get(letter.reason, letter.reason)
    if letter.damaged:
        return f"letter {letter.id}, parked for {whose} since {clock(letter.at_ms)}: {why}{error}"
    if letter.redelivery:
        return f"letter {letter.id} is being sent again to {whose}, as an operator wanted"
    return (
        f"parked for {whose} since {clock(letter.at_ms)}: {why}{error}; it is sent by itself, in "
        "order, as soon as it is taken"
    )


def attempt_told(one: Attempt) -> str:
    error = f" ({one.error})" if one.error else ""
    return f"{one.gateway}: {one.outcome}{error} at {clock(one.at_ms)}"


def evidence_told(facts: Facts) -> str:
    """How far the memory of the nodes goes, for an answer that says that something isn't known."""
    if not (since_ms := facts.complete_since_ms):
        return "nobody who could remember it was heard"
    if since_ms > facts.time_ms > 0:
        return f"what is remembered begins at {clock(since_ms)}, after the record was appended"
    return f"what is remembered begins at {clock(since_ms)}"
