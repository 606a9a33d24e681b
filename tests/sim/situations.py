"""What a run can meet, by name: where two things come together that nobody plans together.

What lasts for a while meets what begins meanwhile ("… while …", faults.py says what lasts); the
rest is seen in the stores and by the clients as it happens (observed.py, oracle.py, clients.py).
`make sim` says how often each was met, and which never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OWNERS: Final = (
    "a source partition goes to another epoch",
    "a lane begins again in its window",
    "a lane begins from notes",
    "a claim comes too late",
    "a position is refused to a former owner",
    "a letter of a lane that was overtaken is refused",
    "an append is refused to a former owner",
    "the word of a leader that was deposed is refused",
    "a leader is lost in the middle of a handoff",
    "a leader is lost in the middle of a reset",
    "a gateway says stale_fence",
    "an ingest node is passed over",
    "a router is passed over",
    "a gateway is missed",
    "a node is replaced at once",
    "a former owner of a target hands out an event",
    "coordinators forget everything",
    "forgetful coordinator while repartition",
    "forgetful coordinator while subscribing",
    "for ever without one coordinator",
    "for ever without one ingest",
    "for ever without one router",
    "for ever without one gateway",
    "draining while reset",
    "cut link while draining",
    "appends away while draining",
    "draining while no coordinator",
    "deposed leader while no router",
    "frozen lane while reset",
    "killed lane while late news",
    "no gateway while zombie lanes",
    "killed lane while no coordinator",
    "killed lane while no coordinator at all",
    "clock while deposed leader",
    "election away while rolling restart",
)
PRODUCERS: Final = (
    "an append that was sent again is in the log already",
    "a producer is told that an outcome is unknown",
    "a producer is refused: unknown_topic",
    "a big document is sent",
    "an event without a key is acknowledged",
    "an event without a key has an unknown outcome",
    "an event without a key is written again elsewhere",
    "appends away while no ingest",
    "appends away while frozen ingest",
)
RECORDS: Final = (
    "a bit of a record is flipped",
    "an operator goes on behind a corrupt record",
    "retention drops records",
    "retention drops what isn't settled",
    "a position is put back",
    "a position is put forward",
    "deleted topic while no ingest",
    "deleted topic while no router",
    "deleted topic while letters away",
    "log away while reset",
)
LETTERS: Final = (
    "no dead letters are kept",
    "a letter is parked: unreachable",
    "a letter is parked: overloaded",
    "a letter is dead: shed",
    "a letter is dead: failed",
    "a parked letter is delivered",
    "a letter that was sent again arrives",
    "letters away while no gateway",
    "reset while slow return",
    "reset while retried letters",
    "deleted letters while retried letters",
)
SUBSCRIBERS: Final = (
    "a subscriber gets a redelivery",
    "a subscriber resumes from its positions",
    "a subscriber resumes with another filter",
    "changing filter while no coordinator",
    "a subscriber hears that its topic is gone",
    "a subscriber isn't let in: overloaded",
    "a subscriber is told to resync: slow",
    "a subscriber is told to resync: retention",
    "a gateway says no_subscriber",
    "a gateway says duplicate",
    "a gateway says retry",
    "no coordinator while subscribing",
    "log away while resuming",
    "no gateway while slow subscriber",
    "costly filters while no coordinator",
    "costly filters while no gateway",
)
GROUPS: Final = (
    "an event is handed out to a consumer again",
    "a consumer says that it failed",
    "a consumer is told to resync: retention",
    "dead consumer while positions away",
    "dead consumer while no coordinator",
    "frozen gateway while joining",
    "a target is somebody else's before its gateway knows",
)

IDENTITIES: Final = (
    "a JWT is issued",
    "a token is revoked",
    "a subscriber is shut out",
    "a consumer is shut out",
    "a connection outlives its token",
    "a subscriber resumes as somebody else",
    "a consumer isn't let in: invalid",
    "joining while revoked token",
    "revoked token while subscribing",
    "no coordinator while revoked token",
    "no gateway while revoked token",
    "cut link while revoked token",
    "repartition while revoked token",
)

REPARTITIONS: Final = (
    "a partition is sealed",
    "a partition takes records of another version",
    "a leader is lost while a topic is announced",
    "a leader is lost while a topic is sealing",
    "a leader is lost while a topic is fenced",
    "a leader is lost while a topic is draining",
    "no ingest while repartition",
    "no router while repartition",
    "no gateway while repartition",
    "repartition while slow subscriber",
    "letters away while repartition",
    "positions away while repartition",
    "repartition while reset",
    "absent subscriber while repartition",
    "late appends while repartition",
    "repartition while slow consumers",
    "repartition while uninformed gateway",
    "repartition while uninformed producer",
    "repartition while unreached gateway",
    "repartition while slow return",
    "half-reached gateways while repartition",
    "repartition while unread log",
    "a dead letter from the end of a version comes late",
    "a topic is cut over while somebody routes by its past",
    "repartition while unheard ingest",
    "deleted topic while repartition",
)

CONNECTORS: Final = (
    "a batch is refused to a connector's former reader",
    "a connector's batch that was handed in again is in the log already",
    "a connector goes on behind a repartition",
    "no ingest while origin away",
    "no ingest while paused connector",
    "origin away while repartition",
    "paused connector while repartition",
    "no coordinator while origin away",
)

SITUATIONS: Final = (
    *(*OWNERS, *PRODUCERS, *RECORDS, *LETTERS, *SUBSCRIBERS, *GROUPS),
    *(*IDENTITIES, *REPARTITIONS, *CONNECTORS),
)


def coverage(met: Mapping[str, int]) -> str:
    """How often each was met, and those that never were."""
    lines = [f"{met[name]:9,}  {name}" for name in SITUATIONS if met.get(name)]
    never = [name for name in SITUATIONS if not met.get(name)]
    share = f"met {len(SITUATIONS) - len(never)} of {len(SITUATIONS)} situations"
    return "\n".join([*lines, f"{share}; never: {', '.join(never) if never else 'none'}"])
