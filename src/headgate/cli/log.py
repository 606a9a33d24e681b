"""`headgate log`: what is stored of a topic, looked at where it is stored.

Reads the data folder or the database of the configuration itself, so it needs no Headgate that
runs, and disturbs none that does. Invariant: nothing is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from headgate.cli.command_line import Argument, Group
from headgate.cli.output import JsonOption, await_, counting_bar, print_json, say
from headgate.cli.roles import ConfigOption, DataOption
from headgate.errors import StorageFailed, UnknownTopic

if TYPE_CHECKING:
    from headgate.model.event import PartitionRef
    from headgate.ports.log import LogReader

app = Group(help="Look at what is stored of a topic.")

AT_ONCE = 200
"""Records that are compared in one go: a store may hold that many of a mebibyte each."""
NAMED = 20
"""Corrupt records that are named in a sentence; `--json` has all of them."""


class PartitionFound(msgspec.Struct):
    """What was found in one partition. `unreadable`: why nothing behind the last record that counts
    here could be looked at, if so."""

    partition: int
    records: int = 0
    verified: int = 0
    unverified: int = 0
    corrupt: list[int] = []
    unreadable: str = ""

    @property
    def is_well(self) -> bool:
        return not self.corrupt and not self.unreadable


class Found(msgspec.Struct):
    topic: str
    records: int
    verified: int
    unverified: int
    corrupt: int
    partitions: list[PartitionFound]


@app.command()
def verify(
    topic: Annotated[str, Argument(help="The topic.")],
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every record of TOPIC with its checksum, and name those that differ.

    Reads the log itself, in the data folder or the database of the settings, whether a Headgate
    runs or not. Exit code 1 when a record is corrupt, or a part of the log can't be read. Records
    from before there were checksums are counted as unverified.
    """
    partitions = await_(_verified(topic, config, data))
    found = Found(
        topic,
        sum(one.records for one in partitions),
        sum(one.verified for one in partitions),
        sum(one.unverified for one in partitions),
        sum(len(one.corrupt) for one in partitions),
        partitions,
    )
    if as_json:
        print_json(found)
    else:
        _show(found)
    if not all(one.is_well for one in partitions):
        raise click.exceptions.Exit(1)


async def _verified(
    topic: str, config_file: ConfigOption, data: DataOption
) -> list[PartitionFound]:
    from headgate.config import load_config
    from headgate.wiring.stores import existing_folder, log_store, open_log_reader, stored_topics

    config = load_config(command_line={"data": data}, config_file=config_file).config
    store, folder = log_store(config), existing_folder(config)
    stored = stored_topics(store, folder)
    if topic not in stored:
        there = f"it has {', '.join(sorted(stored)[:10])}" if stored else "it has none"
        raise UnknownTopic(f"the log has no topic {topic}: {there}; name one of them", topic=topic)
    reader = open_log_reader(store, folder)
    try:
        return await _look_through(reader, stored[topic])
    finally:
        await reader.close()


async def _look_through(reader: LogReader, refs: list[PartitionRef]) -> list[PartitionFound]:
    with counting_bar("verifying", remaining=True) as bar:
        task = bar.add_task("", total=0)
        for ref in refs:
            with contextlib.suppress(StorageFailed):  # that is said where it is read
                there = await reader.extent(ref)
                bar.update(task, total=(bar.tasks[0].total or 0) + there.head - there.earliest + 1)
        return [
            await _partition(reader, ref, lambda count: bar.advance(task, count)) for ref in refs
        ]


async def _partition(
    reader: LogReader, ref: PartitionRef, passed: Callable[[int], None]
) -> PartitionFound:
    """What is there now: producers go on meanwhile."""
    found, after_seq = PartitionFound(ref.partition), 0
    try:
        head = (await reader.extent(ref)).head
        while after_seq < head:
            some = await reader.verify(ref, after_seq=after_seq, limit=AT_ONCE)
            if some is None:
                break
            count = some.verified + some.unverified + len(some.corrupt)
            found.records += count
            found.verified += some.verified
            found.unverified += some.unverified
            found.corrupt.extend(some.corrupt)
            after_seq = some.last_seq
            passed(count)
    except StorageFailed as error:
        found.unreadable = error.message
    return found


def _show(found: Found) -> None:
    for one in found.partitions:
        place = f"{found.topic}:{one.partition}"
        for seq in one.corrupt[:NAMED]:
            say(
                f"record {seq} of {place} is corrupt; routers go on behind it with "
                f"`headgate partition reset {place} --to {seq + 1} --resync`"
            )
        if len(one.corrupt) > NAMED:
            say(f"{len(one.corrupt) - NAMED:,} more of {place} are corrupt; --json names them all")
        if one.unreadable:
            say(f"{place} can't be read further: {one.unreadable}")
    unverified = f", {found.unverified:,} from before checksums" if found.unverified else ""
    print(
        f"{found.topic}: {found.records:,} records, {found.verified:,} verified{unverified}, "
        f"{found.corrupt:,} corrupt"
    )
