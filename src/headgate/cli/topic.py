"""`headgate topic`: create, list, describe, repartition and delete topics."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import click

from headgate.cli.command_line import Argument, Group, Option
from headgate.cli.output import (
    NO_URL,
    JsonOption,
    UrlOption,
    await_,
    calls_to,
    console,
    print_json,
    say,
)
from headgate.errors import InvalidRequest

if TYPE_CHECKING:
    from headgate.model.api import RepartitionPlan, TopicInfo, TopicList

CREATE_TIMEOUT_S = 20.0
"""Creating waits until ingest nodes serve the topic."""
REPARTITION_TIMEOUT = "10m"
"""Draining takes as long as what is unsettled takes to be delivered."""

app = Group(help="Create, list, describe, repartition and delete topics.")

NameArgument = Annotated[str, Argument(metavar="NAME", help="The topic.")]


class PlacementChoice(StrEnum):
    KEYED = "keyed"
    OPPORTUNISTIC = "opportunistic"


@app.command()
def create(
    name: NameArgument,
    partitions: Annotated[
        int | None,
        Option(min=1, help="How many partitions (default: routing.num_partitions)."),
    ] = None,
    placement: Annotated[
        PlacementChoice,
        Option(help="By key, in order; or whole requests to the emptiest partition."),
    ] = PlacementChoice.KEYED,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Create a topic."""
    topic = await_(_create(url, name, partitions, placement))
    if as_json:
        print_json(topic)
    else:
        print(f"created {topic.name}: {_count(topic.partitions)}, {topic.placement}")


@app.command("list")
def list_topics(url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """List all topics.

    docs/operations.md explains the columns, which are those of `headgate status`.
    """
    from headgate.cli.views.tables import topics_table

    found = await_(_list(url))
    if as_json:
        print_json(found)
    elif found.topics:
        console().print(topics_table(found.topics))
    else:
        say("there are no topics: create one with `headgate topic create NAME`")


@app.command()
def describe(name: NameArgument, url: UrlOption = NO_URL, as_json: JsonOption = False) -> None:
    """Show a topic and its partitions."""
    from headgate.cli.views.repartition import under_way_sentence
    from headgate.cli.views.tables import partitions_table

    topic = await_(_describe(url, name))
    if as_json:
        print_json(topic)
        return
    print(f"{topic.name}: {_count(topic.partitions)}, {topic.placement}, version {topic.version}")
    if sentence := under_way_sentence(topic):
        print(sentence)
    if topic.given_up:
        print(f"the last repartition was given up: {topic.given_up}")
    console().print(partitions_table((topic, one) for one in topic.details))


@app.command()
def repartition(
    name: NameArgument,
    partitions: Annotated[
        int, Option("--partitions", metavar="M", help="How many it shall have: 1 to 1024.")
    ],
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only say what moves, and what has to wait.")
    ] = False,
    wait: Annotated[bool, Option("--wait", help="Wait until it is finalized.")] = False,
    timeout: Annotated[
        str,
        Option("--timeout", metavar="TIME", help="How long to wait at most, such as 30s or 5m."),
    ] = REPARTITION_TIMEOUT,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Give a topic another number of partitions, while it is written and read.

    Every key stays in order for everybody who reads. It goes on by itself, also if nobody waits;
    exit code 1 when --wait finds that it was given up. docs/operations.md explains the phases.
    """
    from headgate.cli.following import seconds

    if dry_run and wait:
        raise InvalidRequest("there is nothing to wait for with --dry-run: leave out --wait")
    wait_s = seconds(timeout) if wait else None
    plan = await_(_repartition(url, name, partitions, dry_run, wait_s, quiet=as_json))
    if as_json:
        print_json(plan)


@app.command()
def delete(
    name: NameArgument,
    yes: Annotated[bool, Option("--yes", "-y", help="Don't ask.")] = False,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic and everything in it."""
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidRequest(
                f"deleting {name} deletes all its records, and nobody can be asked here: add --yes"
            )
        await_(_describe(url, name))  # A name that is mistyped is nothing to confirm.
        click.confirm(f"Delete {name} and all its records?", abort=True, err=True)
    await_(_delete(url, name))
    if as_json:
        print_json({"deleted": name})
    else:
        print(f"deleted {name}")


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


async def _create(
    url: str, name: str, partitions: int | None, placement: PlacementChoice
) -> TopicInfo:
    from headgate.model.api import CreateTopic, TopicInfo

    wanted = CreateTopic(name, partitions, placement.value)
    async with calls_to(url, timeout_s=CREATE_TIMEOUT_S) as client:
        return await client.post("/v1/topics", wanted, TopicInfo)


async def _list(url: str) -> TopicList:
    from headgate.model.api import TopicList

    async with calls_to(url) as client:
        return await client.get("/v1/topics", TopicList)


async def _describe(url: str, name: str) -> TopicInfo:
    from headgate.client.http import topic_path
    from headgate.model.api import TopicInfo

    async with calls_to(url) as client:
        return await client.get(topic_path(name), TopicInfo)


async def _repartition(
    url: str, name: str, to: int, dry_run: bool, wait_s: float | None, *, quiet: bool
) -> RepartitionPlan:
    from headgate.cli.repartitioning import finalized
    from headgate.client.http import topic_path
    from headgate.model.api import RepartitionPlan, RepartitionTopic

    async with calls_to(url) as client:
        wanted = RepartitionTopic(to, dry_run)
        plan = await client.post(f"{topic_path(name)}/repartition", wanted, RepartitionPlan)
        if not quiet:
            _show_plan(plan, begun=not dry_run, waits=wait_s is not None)
        if wait_s is not None:
            topic = await finalized(client, name, to, timeout_s=wait_s)
            if not quiet:
                print(f"{name} has {_count(topic.partitions)} now, version {topic.version}")
    return plan


def _show_plan(plan: RepartitionPlan, *, begun: bool, waits: bool) -> None:
    from headgate.cli.views.repartition import backlog_sentence, plan_sentence, waits_table

    print(plan_sentence(plan))
    if not begun and plan.waits:
        console().print(waits_table(plan))
    print(backlog_sentence(plan))
    if begun and not waits:
        say(f"it has begun: `headgate topic describe {plan.topic}` shows how far it is")


async def _delete(url: str, name: str) -> None:
    from headgate.client.http import topic_path

    async with calls_to(url) as client:
        await client.delete(topic_path(name))
