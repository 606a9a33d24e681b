"""`headgate topic`: create, list, describe and delete topics."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.output import NO_URL, JsonOption, UrlOption, await_, console, print_json, say
from headgate.errors import InvalidRequest

if TYPE_CHECKING:
    from headgate.model.api import TopicInfo, TopicList

CREATE_TIMEOUT_S = 20.0
"""Creating waits until ingest nodes serve the topic."""

app = typer.Typer(
    help="Create, list, describe and delete topics.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]


class PlacementChoice(StrEnum):
    KEYED = "keyed"
    OPPORTUNISTIC = "opportunistic"


@app.command()
def create(
    name: NameArgument,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="How many partitions (default: routing.num_partitions)."),
    ] = None,
    placement: Annotated[
        PlacementChoice,
        typer.Option(help="By key, in order; or whole requests to the emptiest partition."),
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
    from headgate.cli.tables import topics_table

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
    from headgate.cli.tables import partitions_table

    topic = await_(_describe(url, name))
    if as_json:
        print_json(topic)
        return
    print(f"{topic.name}: {_count(topic.partitions)}, {topic.placement}, version {topic.version}")
    console().print(partitions_table((topic.name, one) for one in topic.details))


@app.command()
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
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
        typer.confirm(f"Delete {name} and all its records?", abort=True, err=True)
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
    from headgate.client.http import HttpClient
    from headgate.model.api import CreateTopic, TopicInfo

    wanted = CreateTopic(name, partitions, placement.value)
    async with HttpClient(url, timeout_s=CREATE_TIMEOUT_S) as client:
        return await client.post("/v1/topics", wanted, TopicInfo)


async def _list(url: str) -> TopicList:
    from headgate.client.http import HttpClient
    from headgate.model.api import TopicList

    async with HttpClient(url) as client:
        return await client.get("/v1/topics", TopicList)


async def _describe(url: str, name: str) -> TopicInfo:
    from headgate.client.http import HttpClient, topic_path
    from headgate.model.api import TopicInfo

    async with HttpClient(url) as client:
        return await client.get(topic_path(name), TopicInfo)


async def _delete(url: str, name: str) -> None:
    from headgate.client.http import HttpClient, topic_path

    async with HttpClient(url) as client:
        await client.delete(topic_path(name))
