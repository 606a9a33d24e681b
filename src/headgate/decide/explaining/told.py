"""The answer, put together: the record, who gets it and why, and what isn't known any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.decide.browsing.showing import described
from headgate.decide.delivery.gaps import is_marker
from headgate.decide.explaining.disclosure import Sight
from headgate.decide.explaining.facts import Facts, clock
from headgate.decide.explaining.given import Given
from headgate.decide.explaining.groups import explained_group
from headgate.decide.explaining.outcomes import outcome_of
from headgate.decide.explaining.predicates import Looked, conditions_of, verdict_on
from headgate.decide.explaining.question import About
from headgate.decide.explaining.verdicts import (
    Told,
    ended_told,
    evidence_told,
    told_of,
    unconcerned,
    unseen_told,
)
from headgate.errors import InvalidFilter, NotFound
from headgate.model.event import PartitionRef
from headgate.model.explain_api import (
    ExplainedEvidence,
    ExplainedPlace,
    ExplainedSubscription,
    Explanation,
    RecordOutcome,
)
from headgate.model.groups import Group
from headgate.model.subscription import Subscription
from headgate.model.topology import Topology

NOT_HEARD_OF = (
    "the coordinator has just begun to lead, and hasn't heard of all subscribers yet: ask again in "
    "a moment"
)
NOT_YOURS = "what became of it, and who is subscribed, is for those who are granted read:nodes"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The subscriptions to show, of so many that were asked about the record; `more`: there are
    others, or were not asked. `groups` are those of the topic. `error`: why nobody could be asked.
    `are_known`: the coordinator has heard of everybody who is subscribed; it hasn't right after it
    began to lead."""

    subscriptions: Sequence[Subscription] = ()
    examined: int = 0
    more: bool = False
    error: str = ""
    groups: Sequence[Group] = ()
    are_known: bool = True


def explanation_of(
    given: Given,
    facts: Facts,
    chosen: Chosen,
    about: About,
    *,
    topology: Topology,
    sight: Sight,
    elsewhere: Sequence[tuple[PartitionRef, int]] = (),
) -> Explanation:
    """Raises NotFound for a subscription that nobody knows."""
    subscriptions = _subscriptions(given, facts, chosen, about, topology, sight)
    wanted = sum(one.verdict == "match" or one.left for one in subscriptions)
    outcome: RecordOutcome = ""
    status, why = given.told
    if given.record is not None and not given.is_dry_run and not sight.system:
        status, why = "in_log", f"{given.ref}:{given.seq} is in the log; {NOT_YOURS}"
    elif given.record is not None and not given.is_dry_run:
        marker = is_marker(given.record)
        status, outcome, why = outcome_of(facts, is_marker=marker, wanted=wanted)
    shown = None if given.looked is None else given.looked.shown_record
    answer = Explanation(
        status,
        why,
        given.ref.topic,
        given.ref.partition,
        given.seq,
        outcome,
        None if shown is None else described(shown, list(given.masked)),
        head=given.head,
        subscriptions=subscriptions,
        matched=wanted,
        examined=chosen.examined,
        more=chosen.more,
        elsewhere=[ExplainedPlace(ref.topic, ref.partition, seq) for ref, seq in elsewhere],
    )
    return _with_system(answer, given, facts, chosen) if sight.system else answer


def _with_system(
    answer: Explanation,
    given: Given,
    facts: Facts,
    chosen: Chosen,
) -> Explanation:
    """The answer with what a principal only sees if it may see how nodes fare."""
    groups = [explained_group(group, given, facts) for group in chosen.groups]
    if given.is_dry_run:
        notes = [chosen.error] if chosen.error else []
        notes += [] if chosen.are_known else [NOT_HEARD_OF]
        return replace(answer, groups=groups, evidence=ExplainedEvidence(notes=notes))
    account = facts.account
    partition = None if account is None else account.partition
    answer = replace(
        answer,
        groups=groups,
        settled=facts.settled,
        letters=facts.letters,
        letters_error="" if account is None else account.letters_error,
        attempts=facts.attempts,
        evidence=ExplainedEvidence(
            facts.complete_since_ms, len(facts.testimonies), facts.silent, _notes(facts, chosen)
        ),
    )
    if partition is None:
        return answer
    return replace(
        answer,
        owner=partition.owner or "",
        router=partition.router or "",
        partition_state=partition.state,
        partition_reason=partition.reason,
    )


# --- subscriptions -------------------------------------------------------------------------------


def _subscriptions(
    given: Given, facts: Facts, chosen: Chosen, about: About, topology: Topology, sight: Sight
) -> list[ExplainedSubscription]:
    if about.where is not None:
        return [_nobodys(given, about.where)]
    if not sight.system:
        if about.subscription is not None:
            raise NotFound(f"subscriptions are not shown here: {NOT_YOURS}; ask with --where")
        return []
    found = [_explained(one, given, facts, topology) for one in chosen.subscriptions]
    if about.subscription is not None and not found and not chosen.are_known:
        found = [ExplainedSubscription(about.subscription, "unknown", NOT_HEARD_OF)]
    elif about.subscription is not None and not found and not chosen.error:
        found = [_former(about.subscription, facts)]
    return found


def _explained(
    one: Subscription, given: Given, facts: Facts, topology: Topology
) -> ExplainedSubscription:
    group = number = None
    if one.shard is not None:
        standing = facts.standings.get(one.id)
        group, number = ("" if standing is None else standing.group), one.shard[1]
    told = ExplainedSubscription(
        one.id,
        "unknown",
        given.told[1],
        gateway=one.gateway_id,
        where=one.where,
        priority=one.priority,
        route=route_told(one, facts, topology),
        group=group or "",
        target=-1 if number is None else number,
        attempts=facts.attempts_for(one.id),
    )
    if given.looked is None:
        status, why = unseen_told(one, given.told[1], facts)
        return replace(told, status=status, why=why)
    try:
        verdicts = verdict_on(given.looked, one.where, one.shard)
    except InvalidFilter as error:
        why = f"its filter is another version's, and can't be asked here: {error.message}"
        return replace(told, why=why)
    conditions = conditions_of(given.looked, one.where) if verdicts.mine else []
    if given.is_dry_run:
        gets_it: Told = ("matches", f"it would get it, by {one.gateway_id}")
        status, why = gets_it if verdicts.concerns else unconcerned(verdicts, conditions)
    else:
        status, why = told_of(one, verdicts, conditions, facts)
    if verdicts.left and status not in ("not_matched", "filter_failed"):
        why = f"{why}; it is told `left`: the record matched before this change, and doesn't now"
    return replace(
        told,
        status=status,
        why=why,
        verdict=verdicts.verdict,
        conditions=conditions,
        left=verdicts.left,
    )


def _nobodys(given: Given, where: str) -> ExplainedSubscription:
    """A filter that nobody need be subscribed with, asked of the record as it may be shown: it must
    not find out what is masked."""
    if given.looked is None:
        return ExplainedSubscription("", "unknown", given.told[1], where=where)
    looked: Looked = given.looked.as_shown()
    verdicts, conditions = verdict_on(looked, where), conditions_of(looked, where)
    told: Told = ("matches", "the filter is true of this record")
    if verdicts.left:
        told = "matches", "it was true before this change: a subscriber is told `left`"
    elif not verdicts.concerns:
        told = unconcerned(verdicts, conditions)
    status, why = told
    return ExplainedSubscription(
        "",
        status,
        why,
        verdicts.verdict,
        where=where,
        conditions=conditions,
        left=verdicts.left,
    )


def _former(subscription_id: str, facts: Facts) -> ExplainedSubscription:
    """A subscription that isn't registered: it has ended, or there never was one."""
    gateway, ended = facts.ended(subscription_id)
    tried = facts.attempts_for(subscription_id)
    if ended is None and not tried:
        raise NotFound(
            f"no subscription {subscription_id[:100]!r} is live, and nobody remembers one; "
            f"{evidence_told(facts)}",
            name=subscription_id[:100],
        )
    if ended is None:
        last = tried[-1]
        why = f"it has ended; {last.gateway} was sent the record for it at {clock(last.at_ms)}"
        return ExplainedSubscription(subscription_id, "ended", why, attempts=tried)
    why = ended_told(ended, facts)
    return ExplainedSubscription(subscription_id, "ended", why, gateway=gateway, attempts=tried)


def route_told(one: Subscription, facts: Facts, topology: Topology) -> str:
    """By which gateway it gets records, and why that one."""
    there = {node.id for node in topology.of_role("gateway")}
    mode = facts.lane.mode if facts.lane is not None else "direct"
    what = "consumer" if one.shard is not None else "subscriber"
    if one.gateway_id in there:
        also = "; the others get a copy (routing.mode is broadcast)" if mode == "broadcast" else ""
        return f"{one.gateway_id}: its {what} is connected there{also}"
    if topology.ring is not None and mode == "consistent_hash":
        return f"{one.gateway_id} is gone: where the ring places its {what} is asked"
    return f"{one.gateway_id} is gone: the others are asked, up to routing.max_fanout of them"


def _notes(facts: Facts, chosen: Chosen) -> list[str]:
    """What isn't known, and why."""
    notes: list[str] = []
    if chosen.error:
        notes.append(f"who is subscribed isn't known: {chosen.error}")
    if not chosen.are_known:
        notes.append(NOT_HEARD_OF)
    if facts.account is None:
        notes.append(f"what lanes and gateways remember isn't known: {facts.account_error}")
        return notes
    if facts.account.letters_error:
        notes.append(f"whether there are letters isn't known: {facts.account.letters_error}")
    since_ms = facts.complete_since_ms
    if since_ms and facts.time_ms and since_ms > facts.time_ms:
        notes.append(
            f"lanes and gateways remember everything since {clock(since_ms)} (evidence.size, "
            "evidence.age, or their last start): attempts before that aren't known any more"
        )
    if facts.silent:
        notes.append("some said nothing, so what they did isn't here")
    return notes
