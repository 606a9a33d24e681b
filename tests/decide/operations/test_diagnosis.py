"""What the doctor says about a running system."""

from __future__ import annotations

import msgspec
import pytest

from headgate.decide.operations.diagnosis import ROLES, Finding, judge_status
from headgate.model import api
from headgate.model.control.reports import GatewayLink
from headgate.model.letters import GatewayLetters

DETAIL = api.TopicPartition(0, 10, 10, 0, 0, "ingest-1", "router-1", 1)
LANE = api.LaneStatus("router-1", 0, 1, 0, 4242, ["flights:0"], 1, 1, 1, 0, 1)
NODES = ("coordinator-1", "ingest-1", "ingest-2", "router-1", "router-2", "gateway-1")
HEALTHY = api.Status(
    version="0",
    generation=1,
    revision=1,
    nodes=[api.NodeStatus(name, name.split("-")[0], "ready") for name in NODES],
    topics=[api.TopicInfo("flights", 1, "keyed", 1, [DETAIL])],
    lanes=[LANE],
    gateways=[],
    windows=[],
    subscriptions=0,
)


def but(**fields: object) -> api.Status:
    """A healthy system, but for this."""
    return msgspec.structs.replace(HEALTHY, **fields)


def with_nodes(*nodes: api.NodeStatus) -> api.Status:
    replaced = {node.id: node for node in (*HEALTHY.nodes, *nodes)}
    return but(nodes=list(replaced.values()))


def without_nodes(*ids: str) -> api.Status:
    return but(nodes=[node for node in HEALTHY.nodes if node.id not in ids])


def with_topic(partitions: int, *lanes: api.LaneStatus, **first: object) -> api.Status:
    """A topic whose first partition is as `first` says; each partition has a lane, unless given."""
    details = [msgspec.structs.replace(DETAIL, partition=number) for number in range(partitions)]
    details[0] = msgspec.structs.replace(details[0], **first)
    alone = [lane_of(f"flights:{number}") for number in range(partitions)]
    topic = api.TopicInfo("flights", partitions, "keyed", 1, details)
    return but(topics=[topic], lanes=list(lanes) or alone)


def lane_of(*refs: str, cpu: float = 0.0) -> api.LaneStatus:
    return msgspec.structs.replace(LANE, partitions=list(refs), cpu=cpu)


def with_link(**fields: object) -> api.Status:
    """Two lanes of which one has trouble with a gateway."""
    link = msgspec.structs.replace(GatewayLink("g-1"), **fields)
    lanes = [LANE, msgspec.structs.replace(LANE, lane=1, links=[GatewayLink("g-2"), link])]
    return but(lanes=lanes)


def move(age_ms: int) -> api.MoveStatus:
    return api.MoveStatus("flights", 0, "router-1", "router-2", "starting", age_ms)


def of(status: api.Status, subject: str) -> Finding:
    [finding] = [f for f in judge_status(status) if f.subject == subject]
    return finding


def test_a_healthy_system_gets_no_advice() -> None:
    assert all(f.verdict == "ok" and not f.advice for f in judge_status(HEALTHY))


@pytest.mark.parametrize("role", ["coordinator", "ingest", "router", "gateway"])
def test_a_missing_role_is_bad_and_named(role: str) -> None:
    finding = of(without_nodes(f"{role}-1", f"{role}-2"), role)
    assert finding.verdict == "bad"
    assert f"headgate {role}" in finding.advice


@pytest.mark.parametrize(
    ("status", "subject", "verdict", "what"),
    [
        pytest.param(
            with_nodes(api.NodeStatus("router-2", "router", "lost")),
            "router", "bad", "router-2", id="a node that is lost",
        ),
        pytest.param(
            with_nodes(api.NodeStatus("router-2", "router", "starting")),
            "router", "warn", "router-2", id="a node that starts",
        ),
        pytest.param(
            with_nodes(api.NodeStatus("router-2", "router", "draining", partitions=3)),
            "router", "warn", "router-2 (3 left)", id="a draining node with partitions",
        ),
        pytest.param(
            with_nodes(api.NodeStatus("router-2", "router", "draining")),
            "router", "advice", "drained: router-2", id="a drained node",
        ),
        pytest.param(
            without_nodes("ingest-2"), "ingest", "advice", "the only one", id="a single ingest node"
        ),
        pytest.param(
            without_nodes("router-2"), "router", "advice", "the only one", id="a single router"
        ),
        pytest.param(but(moves=[move(61_000)]), "moves", "bad", "flights:0", id="a slow move"),
        pytest.param(
            with_topic(1, owner=None), "topic flights", "bad", "flights:0", id="no log owner"
        ),
        pytest.param(
            with_topic(1, router=None), "topic flights", "bad", "flights:0", id="no router"
        ),
        pytest.param(
            with_topic(1, lag=5, lag_ms=31_000), "topic flights", "bad", "30 s behind", id="late"
        ),
        pytest.param(
            with_topic(1, lag=5, lag_ms=0, lag_known=False), "topic flights", "warn",
            "for how long records wait in flights:0", id="late by nobody knows how much",
        ),
        pytest.param(but(lanes=[]), "topic flights", "warn", "no lane reads", id="nobody reads it"),
        pytest.param(
            with_topic(1, state="stale", reason="seq 4 to 9 are gone"),
            "topic flights", "bad", "flights:0: seq 4 to 9 are gone", id="lost records",
        ),
        pytest.param(
            with_topic(1, state="failed", reason="the letters are full"),
            "topic flights", "bad", "flights:0: the letters are full", id="stopped",
        ),
        pytest.param(
            with_link(breaker="open", error="refused"),
            "gateway g-1", "bad", "stopped sending to it (refused)", id="an open breaker",
        ),
        pytest.param(
            with_link(breaker="half_open", pressure="hard"),
            "gateway g-1", "bad", "stopped sending to it", id="a breaker that probes",
        ),
        pytest.param(
            with_link(pressure="hard", waiting=900),
            "gateway g-1", "bad", "900 deliveries wait", id="hard pressure",
        ),
        pytest.param(
            with_link(pressure="soft"), "gateway g-1", "warn", "falls behind", id="soft pressure"
        ),
        pytest.param(
            but(gateways=[api.GatewayStatus("g-1", 4, 0, 9, held=3)]),
            "gateway g-1", "warn", "3 of its 4 subscribers get nothing", id="held subscribers",
        ),
        pytest.param(
            but(lanes=[msgspec.structs.replace(LANE, letters="the disk is full")]),
            "letters", "bad", "the disk is full", id="letters can't be kept",
        ),
        pytest.param(
            but(lanes=[LANE, msgspec.structs.replace(LANE, lane=1, attempt=2)]),
            "lanes", "bad", "started again within their window: 1 of router-1", id="a lane failed",
        ),
        pytest.param(
            with_topic(2, lane_of("flights:0", "flights:1", cpu=0.9)),
            "lanes", "advice", "90% of a core for 2 partitions", id="a full lane of several",
        ),
    ],
)  # fmt: skip
def test_whatever_is_not_well_is_named_with_what_to_do(
    status: api.Status, subject: str, verdict: str, what: str
) -> None:
    finding = of(status, subject)
    assert finding.verdict == verdict
    assert what in finding.what
    assert finding.advice


@pytest.mark.parametrize(
    ("host", "verdict"), [("127.0.0.1", "ok"), ("[::1]", "ok"), ("10.0.0.7", "advice")]
)
def test_nobody_is_told_to_start_another_beside_a_system_on_one_machine(
    host: str, verdict: str
) -> None:
    alone = [api.NodeStatus(f"{role}-1", role, "ready", "http://127.0.0.1:1") for role in ROLES]
    alone[2] = msgspec.structs.replace(alone[2], url=f"http://{host}:8001")
    for role in ("ingest", "router"):
        finding = of(but(nodes=alone), role)
        assert finding.verdict == verdict
        assert bool(finding.advice) == (verdict == "advice")


@pytest.mark.parametrize("role", ["ingest", "router", "gateway"])
@pytest.mark.parametrize("state", ["lost", "gone"])
def test_what_a_supervisor_starts_again_is_waited_for(role: str, state: str) -> None:
    alone = [api.NodeStatus(f"{one}-1", one, "ready", "http://127.0.0.1:1") for one in ROLES]
    at = ROLES.index(role)
    alone[at : at + 1] = (
        [msgspec.structs.replace(alone[at], state="lost")] if state == "lost" else []
    )
    finding = of(but(nodes=alone), role)
    assert finding.verdict == "bad"
    assert finding.advice.startswith("wait a little if `headgate up` runs")


def test_a_log_that_is_away_is_named_and_nothing_is_said_to_keep_up() -> None:
    error = (
        "reading letters failed: PostgreSQL can't be reached (connection refused); check log.dsn "
        "and the server"
    )
    found = judge_status(but(letters_error=error))
    [log] = [f for f in found if f.verdict != "ok"]
    assert (log.subject, log.verdict) == ("log", "bad")
    assert log.what == "PostgreSQL can't be reached (connection refused)"
    assert log.advice.startswith("check log.dsn and the server")
    assert not [f for f in found if f.subject in ("topic flights", "letters")]


@pytest.mark.parametrize("role", ["ingest", "router", "gateway"])
def test_who_isnt_there_yet_is_waited_for(role: str) -> None:
    status = without_nodes(f"{role}-1", f"{role}-2")
    assert of(msgspec.structs.replace(status, leads_ms=59_999), role).verdict == "warn"
    assert of(msgspec.structs.replace(status, leads_ms=60_000), role).verdict == "bad"
    was_there = msgspec.structs.replace(status, leads_ms=2_000, seen=[role])
    assert of(was_there, role).verdict == "bad", "it was there, and is gone"


@pytest.mark.parametrize(
    "first", [{"owner": None}, {"router": None}, {"lag": 9, "lag_ms": 99_000, "state": "lagging"}]
)
def test_a_topic_whose_reader_starts_is_waited_for(first: dict[str, object]) -> None:
    status = with_topic(1, lane_of("flights:1"), **first)
    assert of(status, "topic flights").verdict == "bad"
    starting = with_nodes(api.NodeStatus("router-1", "router", "starting")).nodes
    for fields in ({"leads_ms": 2_000}, {"leads_ms": 90_000, "nodes": starting}):
        finding = of(msgspec.structs.replace(status, **fields), "topic flights")
        assert (finding.verdict, finding.what) == (
            "warn",
            "the router that reads it starts: flights:0",
        )


def test_what_is_lost_is_bad_also_while_something_starts() -> None:
    status = with_topic(1, state="stale", reason="seq 4 to 9 are gone", lag_ms=99_000)
    assert of(msgspec.structs.replace(status, leads_ms=2_000), "topic flights").verdict == "bad"


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(with_topic(1, lag=5, lag_ms=29_000), id="a little behind"),
        pytest.param(but(moves=[move(59_000)]), id="a move that has just begun"),
        pytest.param(with_topic(1, rate=5_000.0), id="as many events as a partition takes"),
        pytest.param(with_topic(1, lane_of("flights:0", cpu=0.8)), id="a lane with room left"),
        pytest.param(with_topic(8, rate=9_000.0), id="as many partitions as are advised"),
        pytest.param(with_link(waiting=9), id="a gateway that takes what it gets"),
    ],
)
def test_what_is_within_its_bounds_is_well(status: api.Status) -> None:
    assert {finding.verdict for finding in judge_status(status)} == {"ok"}


def test_learning_is_a_warning_beside_the_coordinator_itself() -> None:
    found = [f for f in judge_status(but(learning=True)) if f.subject == "coordinator"]
    assert [f.verdict for f in found] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("status", "wanted", "load"),
    [
        pytest.param(with_topic(1, rate=5_001.0), 4, "5,001 events/s", id="one, by rate"),
        pytest.param(
            with_topic(1, lane_of("flights:0", cpu=0.81)), 4, "81% of a core", id="one, by its core"
        ),
        pytest.param(with_topic(3, rate=6_000.0), 4, "6,000 events/s", id="three"),
        pytest.param(with_topic(4, rate=6_000.0), 8, "6,000 events/s", id="four"),
    ],
)
def test_a_partition_that_is_too_busy_asks_for_more_of_them(
    status: api.Status, wanted: int, load: str
) -> None:
    finding = of(status, "topic flights")
    assert finding.verdict == "advice"
    assert load in finding.what
    assert f"`headgate topic repartition flights --partitions {wanted}`" in finding.advice


def repartitioned(phase: str, since_ms: int, **fields: object) -> api.Status:
    """A busy topic on its way to four partitions."""
    (topic,) = with_topic(1, rate=9_000.0).topics
    waits = api.RepartitionStatus(4, phase, "gateway g-1 doesn't know it yet", 12, since_ms)  # type: ignore[arg-type]
    return but(topics=[msgspec.structs.replace(topic, repartition=waits, **fields)])


def test_more_partitions_are_not_asked_for_while_they_come() -> None:
    assert of(repartitioned("draining", 60_000), "topic flights").verdict == "ok"


@pytest.mark.parametrize(
    ("phase", "verdict", "advice"),
    [("fenced", "bad", "stop it"), ("draining", "warn", "`headgate status`")],
)
def test_a_repartition_that_waits_for_long_says_for_whom(
    phase: str, verdict: str, advice: str
) -> None:
    finding = of(repartitioned(phase, 120_000), "topic flights")
    assert finding.verdict == verdict
    assert finding.what == (
        f"{phase} for 2 min on its way to 4 partitions, 12 records left: gateway g-1 doesn't know "
        "it yet"
    )
    assert advice in finding.advice


def test_what_takes_no_more_records_needs_nobody_to_produce_to() -> None:
    (topic,) = with_topic(2).topics
    details = [topic.details[0], msgspec.structs.replace(topic.details[1], owner=None)]
    closed = msgspec.structs.replace(topic, partitions=1, details=details)
    lanes = with_topic(2).lanes
    assert of(but(topics=[closed], lanes=lanes), "topic flights").verdict == "ok"


def test_a_busy_lane_of_several_partitions_does_not_blame_one_of_them() -> None:
    status = with_topic(2, lane_of("flights:0", "flights:1", cpu=0.9))
    assert of(status, "topic flights").verdict == "ok"


def test_a_busy_topic_in_trouble_gets_both_sentences() -> None:
    found = judge_status(with_topic(1, rate=9_000.0, lag=5, lag_ms=31_000))
    assert [f.verdict for f in found if f.subject == "topic flights"] == ["bad", "advice"]


def test_dead_letters_come_with_the_commands_for_them() -> None:
    letters = [GatewayLetters("g-1", dead=2, dead_ms=60_000), GatewayLetters("g-2", dead=1_500)]
    finding = of(but(letters=letters), "dead letters")
    assert finding.verdict == "warn"
    assert finding.what == "1,502 for g-1, g-2, the oldest from 1 min ago"
    for command in ("list", "retry", "delete"):
        assert f"`headgate dlq {command} --gateway g-1`" in finding.advice


@pytest.mark.parametrize(
    ("age_ms", "said"),
    [
        (0, "less than a minute ago"),
        (59_999, "less than a minute ago"),
        (90_000, "1 min ago"),
        (119 * 60_000, "119 min ago"),
        (120 * 60_000, "2 h ago"),
        (47 * 3_600_000, "47 h ago"),
        (6 * 86_400_000, "6 days ago"),
    ],
)
def test_an_age_is_said_as_people_say_it(age_ms: int, said: str) -> None:
    found = of(but(letters=[GatewayLetters("g-1", dead=1, dead_ms=age_ms)]), "dead letters")
    assert found.what == f"1 for g-1, the oldest from {said}"


def test_dead_letters_of_a_group_are_chosen_by_its_name() -> None:
    finding = of(but(letters=[GatewayLetters("", dead=2, group="flights/radar")]), "dead letters")
    assert finding.what.startswith("2 for group flights/radar, ")
    assert "`headgate dlq retry --topic flights --group radar`" in finding.advice


@pytest.mark.parametrize(("age_ms", "said"), [(300_000, False), (300_001, True)])
def test_only_letters_that_are_parked_for_long_are_worth_a_word(age_ms: int, said: bool) -> None:
    letters = [GatewayLetters("g-1", parked=7, parked_ms=age_ms)]
    found = [f for f in judge_status(but(letters=letters)) if f.subject == "parked letters"]
    assert bool(found) == said
    assert all("headgate dlq list --parked --gateway g-1" in f.advice for f in found)


def test_letters_that_cant_be_counted_are_a_warning() -> None:
    finding = of(but(letters_error="the disk is full"), "letters")
    assert finding.verdict == "warn"
    assert "the disk is full" in finding.what


def test_of_many_partitions_only_a_few_are_named() -> None:
    details = [msgspec.structs.replace(DETAIL, partition=n, owner=None) for n in range(1_000)]
    topic = api.TopicInfo("flights", 1_000, "keyed", 1, details)
    finding = of(but(topics=[topic]), "topic flights")
    assert finding.what.endswith("flights:4 and 995 more")
