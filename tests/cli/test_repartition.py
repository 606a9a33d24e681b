"""`headgate topic repartition` against a server: what it says before, while and after."""

from __future__ import annotations

import asyncio
import io
import signal
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console

from headgate.cli.repartitioning import PhaseBars
from headgate.cli.views.repartition import backlog_sentence, plan_sentence, waits_table
from headgate.cli.views.tables import topics_table
from headgate.decide.coordination.views.status import repartition_plan
from headgate.errors import HeadgateError, InvalidRequest, NotNow, UnknownTopic
from headgate.model.api import RepartitionPlan, RepartitionStatus, Status, TopicInfo
from headgate.model.topology import RepartitionPhase
from tests.cli.command import ended, headgate, started
from tests.cli.operated import OperatedServer, partition, status, topic
from tests.decide.coordination.world import World

SEALED_LATE = "ingest node i-1 hasn't sealed flights:1 yet"


def planned(
    count: int, to: int, *, placement: str = "keyed", backlog: int = 0, rate: float = 0.0
) -> RepartitionPlan:
    """As the coordinator says it."""
    details = [partition(number) for number in range(count)]
    details[0] = msgspec.structs.replace(details[0], lag=backlog)
    info = msgspec.structs.replace(topic("flights", *details), placement=placement)
    plan = repartition_plan(World().cluster, info, to, now_ms=0)
    drain_s = backlog / rate if rate else plan.drain_s
    return msgspec.structs.replace(plan, settled_per_s=rate, drain_s=drain_s)


def under_way(
    phase: RepartitionPhase, waits_for: str = "", *, backlog: int = 0, to: int = 4, **fields: object
) -> TopicInfo:
    """flights on its way from two partitions."""
    is_fenced = phase not in ("announced", "sealing")
    count = max(to, 2)
    info = topic("flights", *map(partition, range(count)))
    now: dict[str, object] = {"partitions": to if is_fenced else 2, "version": 1 + is_fenced}
    repartition = RepartitionStatus(to, phase, waits_for, backlog, 3_200)
    return msgspec.structs.replace(info, repartition=repartition, **{**now, **fields})


def over(partitions: int, version: int, **fields: object) -> TopicInfo:
    info = topic("flights", *map(partition, range(partitions)))
    return msgspec.structs.replace(info, version=version, **fields)


@pytest.fixture
def flights(operated: OperatedServer) -> OperatedServer:
    """A server with flights, which has two partitions and can get four."""
    operated.now = status(over(2, 1))
    operated.repartition = planned(2, 4, backlog=30, rate=15.0)
    return operated


def goes(server: OperatedServer, *then: TopicInfo | Status | HeadgateError) -> None:
    """What looks at the server find, one after the other, once it has begun."""
    found = [status(one) if isinstance(one, TopicInfo) else one for one in then]

    def begin() -> None:
        first, *others = found
        assert isinstance(first, Status)
        server.now, server.then = first, others

    server.on_change = begin


def lines(renderable: object, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(renderable)
    return [line.rstrip() for line in cast("io.StringIO", console.file).getvalue().splitlines()]


# --- before ------------------------------------------------------------------------------------


async def test_it_says_what_has_begun_and_how_to_look(flights: OperatedServer) -> None:
    result = await headgate("topic", "repartition", "flights", "--partitions", "4", url=flights.url)
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        "flights: 2 -> 4 partitions; 50% of all keys change their partition",
        "30 records unsettled now; at the present 15/s that takes about 2.0 s",
    ]
    assert result.err == "it has begun: `headgate topic describe flights` shows how far it is\n"
    assert flights.calls == ["flights to 4"]


async def test_a_dry_run_changes_nothing_and_says_who_waits_for_whom(
    flights: OperatedServer,
) -> None:
    arguments = ("topic", "repartition", "flights", "--partitions", "4", "--dry-run")
    result = await headgate(*arguments, url=flights.url)
    assert (result.code, result.err) == (0, "")
    assert result.shows("new records of wait for those there are of")
    assert result.shows("flights:2 flights:0")
    assert result.shows("flights:3 flights:1")
    assert flights.calls == []
    in_json = await headgate(*arguments, "--json", url=flights.url)
    assert in_json.json == msgspec.to_builtins(flights.repartition)


@pytest.mark.parametrize(
    ("count", "to", "rows"),
    [
        (4, 6, ["flights:0,2,4  flights:0,2", "flights:1,3,5  flights:1,3"]),
        (8, 1, ["flights:0  flights:1-7"]),
        (1, 4, ["flights:1-3  flights:0"]),
        (3, 5, ["flights:0-4  flights:0-2"]),
    ],
)
def test_partitions_that_share_keys_are_one_row(count: int, to: int, rows: list[str]) -> None:
    _, *shown = lines(waits_table(planned(count, to)))
    assert [line.split() for line in shown] == [row.split() for row in rows]


def test_who_waits_for_whom_is_short_however_many_there_are() -> None:
    shown = lines(waits_table(planned(512, 1024)))
    assert len(shown) == 10
    assert shown[-1] == "and 504 more like these"
    assert len(lines(waits_table(planned(1023, 1024)))) == 2


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (planned(2, 4), "nothing is unsettled now, so nobody waits for long"),
        (
            planned(2, 4, backlog=1_200),
            (
                "1,200 records unsettled now; nothing was settled of late, so nobody can say how "
                "long that takes"
            ),
        ),
        (
            planned(2, 4, backlog=1, placement="opportunistic"),
            "1 record unsettled now, for which nobody waits",
        ),
    ],
    ids=["nothing", "no rate", "no order"],
)
def test_what_has_to_be_settled_first_is_said_as_far_as_it_is_known(
    plan: RepartitionPlan, sentence: str
) -> None:
    assert backlog_sentence(plan) == sentence


def test_a_topic_without_keys_has_nobody_who_waits() -> None:
    said = plan_sentence(planned(2, 4, placement="opportunistic"))
    assert said == "flights: 2 -> 4 partitions; it has no keys, so nobody waits for anybody"


# --- while it goes on --------------------------------------------------------------------------

WAITING = ("topic", "repartition", "flights", "--partitions", "4", "--wait")


async def test_waiting_shows_every_phase_and_outlives_a_coordinator(
    flights: OperatedServer,
) -> None:
    unsettled = "records from before the cutover are unsettled in partition 0"
    goes(
        flights,
        under_way("announced"),
        under_way("sealing", SEALED_LATE),
        NotNow("the coordinator is away"),
        status(learning=True),
        under_way("draining", unsettled, backlog=30),
        under_way("draining", unsettled, backlog=10),
        under_way("drained"),
        over(4, 2),
    )
    result = await headgate(*WAITING, url=flights.url)
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "flights has 4 partitions now, version 2"
    assert result.err.splitlines() == [
        "announced",
        f"sealing: {SEALED_LATE}",
        f"draining, 30 records left: {unsettled}",
        "drained",
    ]


async def test_one_that_is_given_up_ends_with_the_reason_and_code_1(
    flights: OperatedServer,
) -> None:
    goes(flights, under_way("sealing"), over(2, 1, given_up=SEALED_LATE))
    result = await headgate(*WAITING, "--json", url=flights.url)
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[-1] == (
        "headgate: the repartition of flights to 4 partitions was given up, and nothing has "
        f"changed: {SEALED_LATE}"
    )


async def test_one_that_was_given_up_by_a_coordinator_that_is_gone_is_not_taken_for_done(
    flights: OperatedServer,
) -> None:
    goes(flights, over(2, 1))
    result = await headgate(*WAITING, url=flights.url)
    assert result.code == 1
    assert "was given up, and nothing has changed: why is forgotten" in result.err


async def test_one_that_is_followed_by_another_is_done(flights: OperatedServer) -> None:
    goes(flights, under_way("draining"), under_way("announced", to=3, partitions=4, version=2))
    result = await headgate(*WAITING, url=flights.url)
    assert result.code == 0, result.err


async def test_a_topic_that_is_deleted_meanwhile_ends_the_waiting(flights: OperatedServer) -> None:
    goes(flights, under_way("draining"), status())
    result = await headgate(*WAITING, url=flights.url)
    assert result.code == 1
    assert result.err.splitlines()[-1] == (
        "headgate: flights was deleted while it was repartitioned"
    )


async def test_waiting_too_long_says_where_it_is_and_that_it_goes_on(
    flights: OperatedServer,
) -> None:
    goes(flights, under_way("draining", "reasons", backlog=7))
    result = await headgate(*WAITING, "--timeout", "10ms", url=flights.url)
    assert result.code == 1
    assert result.err.splitlines()[-1] == (
        "headgate: flights is not at 4 partitions after 0.01 s (draining, 7 records left: "
        "reasons); it goes on by itself: `headgate topic describe flights` shows how far it is"
    )


async def test_an_interrupt_ends_only_the_waiting(flights: OperatedServer) -> None:
    goes(flights, under_way("draining", "reasons"))
    process = await started(*WAITING, url=flights.url)
    assert process.stderr is not None
    first = await asyncio.wait_for(process.stderr.readline(), 60.0)
    assert first == b"draining: reasons\n"
    process.send_signal(signal.SIGINT)
    result = await ended(process)
    assert result.code == 130
    assert result.err == (
        "it goes on by itself: `headgate topic describe flights` shows how far it is\n"
    )


def test_on_a_terminal_every_phase_has_a_bar() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    with PhaseBars(console) as bars:
        for info in (
            under_way("sealing", SEALED_LATE),
            under_way("draining", "three are unsettled", backlog=30),
            under_way("draining", "one is unsettled", backlog=12),
        ):
            assert info.repartition is not None
            bars.at(info.repartition)
    text = cast("io.StringIO", console.file).getvalue()
    last = text[text.rindex("announced") :].splitlines()
    assert [line.split()[0] for line in last[:5]] == [
        "announced", "sealing", "fenced", "draining", "one",
    ]  # fmt: skip
    assert "12 records left" in last[3]
    assert last[4].startswith("one is unsettled")
    assert SEALED_LATE in text


# --- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (UnknownTopic("there is no topic flights"), 2),
        (InvalidRequest("flights has 4 partitions already"), 2),
        (InvalidRequest("a topic has 1 to 1024 partitions, not 4"), 2),
        (NotNow("flights is on its way to 8 partitions (sealing); wait until that is over"), 1),
        (NotNow("the coordinator is learning who owns what; try again in a minute"), 1),
    ],
    ids=["unknown", "present count", "out of range", "under way", "learning"],
)
async def test_a_refusal_is_one_sentence(
    flights: OperatedServer, refusal: HeadgateError, code: int
) -> None:
    flights.repartition = refusal
    result = await headgate(*WAITING, url=flights.url)
    assert (result.code, result.out) == (code, "")
    assert result.err == f"headgate: {refusal.message}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a/b", "--partitions", "4"], "'a/b' can't be a topic: "),
        (["flights"], "Missing option '--partitions'"),
        (["flights", "--partitions", "four"], "Invalid value for '--partitions'"),
        (["flights", "--partitions", "4", "--dry-run", "--wait"], "there is nothing to wait for"),
        (["flights", "--partitions", "4", "--wait", "--timeout", "9"], "'9' is not a duration"),
    ],
    ids=["name", "no count", "no number", "dry run and wait", "timeout"],
)
async def test_a_callers_mistake_is_one_sentence_and_code_2(
    flights: OperatedServer, arguments: list[str], sentence: str
) -> None:
    result = await headgate("topic", "repartition", *arguments, url=flights.url)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"headgate: {sentence}")
    assert result.err.count("\n") == 1
    assert flights.calls == []


# --- what others show of it --------------------------------------------------------------------


async def test_describing_says_where_it_is_and_why_it_waits(operated: OperatedServer) -> None:
    operated.now = status(under_way("sealing", SEALED_LATE))
    result = await headgate("topic", "describe", "flights", url=operated.url)
    assert result.out.splitlines()[:2] == [
        "flights: 2 partitions, keyed, version 1",
        f"flights is being repartitioned to 4: sealing for 3.2 s: {SEALED_LATE}",
    ]
    assert result.shows("flights:1 i-1 (1) r-1 (2) 0 - 10 - 10")
    assert result.shows("flights:2 (to come) i-1 (1) r-1 (2) 0 - 10 - 10")
    in_json = await headgate("topic", "describe", "flights", "--json", url=operated.url)
    found = cast("dict[str, Any]", in_json.json)["repartition"]
    assert (found["to"], found["phase"], found["waits_for"]) == (4, "sealing", SEALED_LATE)


async def test_describing_names_what_takes_no_more_records_and_what_was_given_up(
    operated: OperatedServer,
) -> None:
    info = topic("flights", partition(0), partition(1, lag=4), partition(2))
    given_up = msgspec.structs.replace(info, partitions=1, version=2, given_up=SEALED_LATE)
    operated.now = status(given_up)
    result = await headgate("topic", "describe", "flights", url=operated.url)
    assert result.out.splitlines()[1] == f"the last repartition was given up: {SEALED_LATE}"
    assert result.shows("flights:1 (retiring) i-1 (1) r-1 (2) 4 0 ms 10 - 10")
    assert result.shows("flights:2 (read-only) i-1 (1) r-1 (2) 0 - 10 - 10")


def test_lists_of_topics_have_it_in_few_words_also_on_a_narrow_screen() -> None:
    shown = lines(topics_table([under_way("draining"), over(4, 2)]), width=80)
    assert shown[0].split()[:4] == ["topic", "partitions", "repartition", "lag"]
    assert shown[1].split()[:6] == ["flights", "4", "to", "4:", "draining", "0"]
    assert shown[2].split()[:4] == ["flights", "4", "-", "0"]
    assert len(shown) == 3
    assert "repartition" not in lines(topics_table([over(4, 2)]))[0]


async def test_the_status_says_what_it_waits_for(operated: OperatedServer) -> None:
    operated.now = status(under_way("sealing", SEALED_LATE))
    result = await headgate("status", url=operated.url)
    said = f"flights is being repartitioned to 4: sealing for 3.2 s: {SEALED_LATE}"
    assert said in result.out.splitlines()
