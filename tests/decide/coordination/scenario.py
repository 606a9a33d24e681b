"""The language of the scenario files: one event or expectation per line, in the order of time.

Empty lines and `#` comments are for the reader; expectations are indented by habit. Names are those
of the nodes (`router-1` is a router), partitions are `topic:number`, lists are separated by commas.

Events
    join ID [as ROLE] [weight W]  a new process connects, and replaces what had its id
    topic NAME COUNT              an operator creates a topic; `delete NAME` ends it
    connector NAME to TOPIC       an operator creates a connector; the node that reads it fences
                                  whoever read it before in the logs
    connector NAME is deleted|paused|resumed, is reset to X, skips [POSITION]
    changes INGEST                something is stored of all that it reads
    INGEST stops NAME at POSITION its reader can't take the change there
    logs have NAME at epoch N     somebody has read it under that epoch
    window ROUTER [lanes N]       Spark runs the newest assignment as one lane, or as N
    lets go ROUTER                its lanes hand over what they were asked for
    saves ROUTER                  its lanes save positions, and notice what isn't theirs any more
    cut off X / back X / back all the stream of X breaks / is there again, the process is the same
    kill X / leave X              the process dies / ends on purpose
    restart X                     the process ends, and says that it will be back
    freeze X / thaw X             the process stands still, and its stream stays
    late X / catch up X           X applies what it is pushed only when it catches up
    time 31s                      everybody who can checks in every second
    rebalance, drain ID, undrain ID
    reset X to N                  an operator wants the position of X there
    coordinator restarts [with nothing]
    coordinator dies at the next persist
    coordinator fails after N lines   of what it decides from now on, half-way through a decision
    client ID routes TOPICS       a producer connects
    subscribe GATEWAY NAME [for 10s]   with a time-to-live, if one is given
    GATEWAY stops renewing        it only checks in, until it `renews` its subscriptions again
    store has X at epoch N        the checkpoint of X is held under that epoch
    log has X at epoch N          so is its log
    produces INGEST               a record to every log that it has open
    everything settles            nobody fails, everybody obeys, until nothing changes any more
  X is a node, or `lanes of ROUTER`, or `older lanes of ROUTER`: those of windows before the last.

Expectations
    owner X ID|nobody [epoch N], log X ID|nobody [epoch N]
    shares of TOPIC ID N, …       how many of its log partitions each node has
    intake NAME ID|nobody [epoch N]   which node reads a connector
    connectors LIST|none
    beginning of NAME N at X [stored]   in which epoch it began, where, and whether it has stored
                                  positions since
    skipped of NAME LIST|nothing, state of NAME STATE
    assigned ROUTER LIST|nothing  what it was told that it owns
    reads X ROUTER|nobody         whose lane settles records of X so that it counts
    moves none | X FROM -> TO releasing|starting
    put X to N | not yet          its position was put there, and nowhere else since it exists
    asked ROUTER to let go of LIST, told ROUTER to drop LIST
    window of ROUTER ends | goes on
    members LIST, topics LIST|none, deleted LIST|none
    records LIST|none             the logs that have any
    refused [TEXT]                the last event was refused, in words that contain TEXT
    learning, not learning
    pushed LIST, not pushed LIST  who got a topology since the last event
    routed NAME by all|some|nobody   whether everybody routes NAME by the newest generation
    subscribed NAME, not subscribed NAME
    cut ID                        the coordinator has ended its stream
    resumed ID, not resumed ID    what its last welcome said
    matches ROUTER LIST|none      the subscriptions that its lanes match with
    calm                          every partition is owned, served and read, and all is even
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headgate.errors import HeadgateError
from tests.decide.coordination.scenario_events import event
from tests.decide.coordination.scenario_expectations import expectation
from tests.decide.coordination.stage import Handler, Stage


@dataclass(frozen=True)
class Line:
    """One line of a scenario, bound to what it means."""

    where: str
    text: str
    is_event: bool
    handler: Handler
    arguments: tuple[str | None, ...]


def read(path: Path) -> list[Line]:
    return [
        understood(f"{path.name}:{number}", text)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (text := line.partition("#")[0].strip())
    ]


def understood(where: str, text: str) -> Line:
    for vocabulary in (event, expectation):
        if meaning := vocabulary.understood(text):
            return Line(where, text, vocabulary is event, *meaning)
    raise AssertionError(f"{where}: nobody knows what {text!r} means; see scenario.py")


def play(stage: Stage, lines: list[Line], *, expecting: bool = True) -> None:
    for line in lines:
        if line.is_event:
            stage.refusal = ""
            stage.pushes = {name: peer.pushes for name, peer in stage.everybody()}
        elif not expecting:
            continue
        try:
            line.handler(stage, *line.arguments)
        except HeadgateError as refusal:
            stage.refusal = refusal.message
        except AssertionError as failure:
            raise AssertionError(f"{line.where}: {line.text}: {failure}") from failure
