"""`headgate produce`: JSON lines from a file or standard input into a topic.

Input that can be read twice is checked whole before anything is sent. Of other input, batches are
sent as they come; the batch with the first bad line isn't, and ends the command. Lines with the
same key reach the log in their order: the producer keeps the order of every key.
"""

from __future__ import annotations

import asyncio
import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.output import NO_URL, JsonOption, UrlOption, await_, print_json, say
from headgate.errors import HeadgateError, InvalidRequest

if TYPE_CHECKING:
    from headgate.cli.json_lines import EventReader, EventShape, LineSource, NumberedEvent
    from headgate.cli.produce_progress import Tally
    from headgate.client.producer import Producer

BATCHES_UNDER_WAY = 16
CHUNKS_AHEAD = 4


class OpChoice(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to send the events.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="JSON lines, also .gz (default: standard input)."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="FIELD", help="Field with the key; may be a.b.c.")
    ] = None,
    collection: Annotated[
        str, typer.Option("--collection", metavar="NAME", help="Collection of the events.")
    ] = "",
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=1_000, help="Most events per request.")
    ] = 500,
    op: Annotated[OpChoice, typer.Option("--op", help="What happened.")] = OpChoice.INSERT,
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Send JSON lines to a topic; ends when all of them are on disk."""
    from headgate.cli.json_lines import EventShape, LineSource
    from headgate.cli.produce_progress import Tally

    source = LineSource(None if file is None or str(file) == "-" else file)
    shape = EventShape(key, collection, op.value)
    if source.is_terminal:
        say("reading JSON lines from the terminal; end with Ctrl-D")
    lines = _check_whole(source, shape) if source.can_rewind else None
    tally = Tally(lines)
    try:
        await_(_produce(url, topic, source, shape, batch, tally))
    finally:
        tally.close()
        if as_json:
            print_json(
                {
                    "acknowledged": tally.acknowledged,
                    "failed": tally.failed,
                    "per_s": round(tally.per_s, 1),
                }
            )
        elif tally.acknowledged or tally.failed or lines == 0:
            say(tally.line())


def _check_whole(source: LineSource, shape: EventShape) -> int:
    """Read everything once; returns the number of lines, raises at the first bad one."""
    from headgate.cli.json_lines import EventReader

    reader = EventReader(shape)
    try:
        while chunk := source.read():
            for _ in reader.feed(chunk):
                pass
        for _ in reader.finish():
            pass
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}; nothing was written") from error
    source.rewind()
    return reader.lines


async def _produce(
    url: str, topic: str, source: LineSource, shape: EventShape, batch: int, tally: Tally
) -> None:
    from headgate.cli.json_lines import EventReader
    from headgate.client.producer import Producer, ProducerOptions

    await _check_topic(url, topic, shape)
    reader = EventReader(shape)
    async with Producer(url, ProducerOptions(batch_events=batch)) as producer:
        sender = _Sender(producer, topic, batch, tally)
        try:
            chunks = _chunks(source)
            while not tally.failures and (chunk := await chunks.get()):
                if isinstance(chunk, HeadgateError):
                    raise chunk
                await sender.send_all(reader, chunk)
            if not tally.failures:
                await sender.send_all(reader, None)
        except InvalidRequest as error:
            await sender.finish()
            tally.raise_failures(reader.lines)
            raise InvalidRequest(f"{error}; {tally.written_sentence()}") from error
        await sender.finish()
    tally.raise_failures(reader.lines)


async def _check_topic(url: str, topic: str, shape: EventShape) -> None:
    """Mistakes that would fail every line are better said before the first one is read."""
    from headgate.client.http import HttpClient, topic_path
    from headgate.errors import NotFound, NotNow, PeerUnreachable
    from headgate.model.api import TopicInfo

    async with HttpClient(url) as client:
        try:
            found = await client.get(topic_path(topic), TopicInfo)
        except PeerUnreachable as error:
            if error.details.get("url") == client.url:
                raise
            return
        except (NotNow, NotFound):
            return  # Without a coordinator topics can't be described, but still be written to.
    if found.placement == "opportunistic" and shape.key_field is not None:
        raise InvalidRequest(
            f"{topic} is opportunistic and takes no keys: leave out --key or use a keyed topic"
        )


def _chunks(source: LineSource) -> asyncio.Queue[bytes | HeadgateError]:
    """Chunks of the input as they come, b"" at the end, read by a thread that may be abandoned."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | HeadgateError] = asyncio.Queue(CHUNKS_AHEAD)

    def read() -> None:
        chunk: bytes | HeadgateError = b"-"
        while chunk and not isinstance(chunk, HeadgateError):
            try:
                chunk = source.read()
            except HeadgateError as error:
                chunk = error
            handing_over = queue.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(handing_over, loop).result()
            except (RuntimeError, asyncio.CancelledError):
                handing_over.close()
                return  # The loop has ended, and nobody wants the rest.

    threading.Thread(target=read, name="read input", daemon=True).start()
    return queue


class _Sender:
    """Hands batches to the producer, in order, a bounded number at a time."""

    def __init__(self, producer: Producer, topic: str, batch: int, tally: Tally) -> None:
        self._producer = producer
        self._topic = topic
        self._batch = batch
        self._tally = tally
        self._under_way: set[asyncio.Task[None]] = set()

    async def send_all(self, reader: EventReader, chunk: bytes | None) -> None:
        """Send the events of `chunk` (None: what is left), short of the batch with a bad line."""
        batch: list[NumberedEvent] = []
        for event in reader.finish() if chunk is None else reader.feed(chunk):
            batch.append(event)
            if len(batch) == self._batch:
                await self._send(batch)
                batch = []
        if batch:
            await self._send(batch)

    async def _send(self, batch: list[NumberedEvent]) -> None:
        if len(self._under_way) >= BATCHES_UNDER_WAY:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._deliver(batch))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _deliver(self, batch: list[NumberedEvent]) -> None:
        outcomes = await self._producer.send_many(self._topic, [one.event for one in batch])
        self._tally.count(batch, outcomes)

    async def finish(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)
