"""`headgate produce`: JSON lines from files or standard input into a topic.

Inputs that can be read twice are all checked whole before anything is sent. Of other inputs,
batches are sent as they come; the batch with the first bad line isn't, and ends the command. Lines
with the same key reach the log in their order, from input to input: the producer keeps it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import zlib
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headgate.cli.command_line import Argument, Option
from headgate.cli.output import (
    NO_URL,
    JsonOption,
    UrlOption,
    await_,
    calls_to,
    print_json,
    say,
    token_source,
)
from headgate.errors import HeadgateError, InvalidRequest
from headgate.tasks import Crew, Helpers, start_thread

if TYPE_CHECKING:
    from headgate.cli.reading.json_lines import EventReader, EventShape, Input, NumberedEvent
    from headgate.cli.reading.line_source import LineSource
    from headgate.cli.views.produce import Tally
    from headgate.client.producer import Producer
    from headgate.client.producing.outgoing import OutgoingEvent

DEFAULT_TIMEOUT = "2m"
"""Above the worst failover: a node that nobody can replace has half a minute to come back."""
RUN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
BATCHES_UNDER_WAY = 16
CHUNKS_AHEAD = 4


class OpChoice(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


def produce(
    topic: Annotated[str, Argument(metavar="TOPIC", help="Where to send the events.")],
    files: Annotated[
        list[Path] | None,
        Argument(
            metavar="[FILE]...",
            help="JSON lines, plain or gzipped (default, and -: standard input).",
        ),
    ] = None,
    key: Annotated[
        str | None, Option("--key", metavar="FIELD", help="Field with the key; may be a.b.c.")
    ] = None,
    collection: Annotated[
        str, Option("--collection", metavar="NAME", help="Collection of the events.")
    ] = "",
    batch: Annotated[
        int, Option("--batch", min=1, max=1_000, help="Most events per request.")
    ] = 500,
    op: Annotated[OpChoice, Option("--op", help="What happened.")] = OpChoice.INSERT,
    header: Annotated[
        list[str] | None,
        Option(
            "--header",
            metavar="NAME=TEXT",
            help="A header of every event; may be given several times.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        str,
        Option(
            "--timeout",
            metavar="TIME",
            help="How long to try with a line before giving up, such as 30s or 5m.",
        ),
    ] = DEFAULT_TIMEOUT,
    from_line: Annotated[
        int,
        Option("--from-line", metavar="N", min=1, help="Line of the first input to begin with."),
    ] = 1,
    run: Annotated[
        str,
        Option(
            "--run",
            metavar="ID",
            help="The run to go on with: what it has written isn't written again.",
            show_default=False,
        ),
    ] = "",
    url: UrlOption = NO_URL,
    as_json: JsonOption = False,
) -> None:
    """Send JSON lines to a topic; ends when all of them are on disk.

    Nodes that die or restart meanwhile are waited for. When it gives up, it says how to go on.
    """
    from headgate.cli.following import seconds
    from headgate.cli.reading.json_lines import EventShape
    from headgate.cli.views.produce import Tally

    if run and not RUN_ID.fullmatch(run):
        raise InvalidRequest(f"{run!r} is not a run: `headgate produce` says how to go on with one")
    sending = _Sending(batch, seconds(timeout), run or new_run(), goes_on=bool(run))
    shape = EventShape(key, collection, op.value, _headers(header or []) or None)
    inputs = _inputs(files or [], from_line)
    is_typed = any(one.source.is_terminal for one in inputs)
    if is_typed:
        say("reading JSON lines from the terminal; end with Ctrl-D")
    _check_whole(inputs, shape)
    counts = [one.events for one in inputs if one.events is not None]
    events = sum(counts) if len(counts) == len(inputs) else None
    tally = Tally(events, is_typed=is_typed)
    complete = False
    try:
        await_(_produce(url, topic, inputs, shape, sending, tally))
        complete = True
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
        elif complete or tally.acknowledged or tally.failed:
            say(tally.line())


def _headers(given: Sequence[str]) -> dict[str, str]:
    from headgate.decide.produce.headers import encoded

    headers: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"--header {text!r} is not NAME=TEXT, such as trace=7f3a")
        if name in headers:
            raise InvalidRequest(f"--header {name} is given twice: give each name once")
        headers[name] = value
    encoded(headers, "every event")
    return headers


@dataclass(frozen=True, slots=True)
class _Sending:
    """How lines are sent: in requests of at most `batch`, for `timeout_s` each, as those of `run`,
    whose ids tell them from all others; `goes_on`: some of that may have been written by then."""

    batch: int
    timeout_s: float
    run: str
    goes_on: bool

    def event(self, numbered: NumberedEvent) -> OutgoingEvent:
        event_id = f"{self.run}-{numbered.origin.mark:x}-{numbered.line}"
        return replace(numbered.event, event_id=event_id)


@dataclass(slots=True)
class _Input:
    """An input with the lines read so far and, where it could be looked at before, how many lines
    and events there are in it, from `from_line` on."""

    source: LineSource
    origin: Input
    from_line: int = 1
    lines: int | None = None
    events: int | None = None
    lines_read: int = 0
    ended: bool = False


def new_run() -> str:
    return f"run-{secrets.token_hex(8)}"


def _inputs(paths: Sequence[Path], from_line: int) -> list[_Input]:
    from headgate.cli.reading.json_lines import Input
    from headgate.cli.reading.line_source import open_sources

    sources = open_sources(paths)
    several = len(sources) > 1
    return [
        _Input(
            source,
            Input(number, source.name if several else "", zlib.crc32(source.name.encode())),
            1 if number else from_line,
        )
        for number, source in enumerate(sources)
    ]


def _check_whole(inputs: Sequence[_Input], shape: EventShape) -> None:
    """Read once what can be read again, and count it; raises at the first bad line."""
    from headgate.cli.reading.json_lines import EventReader
    from headgate.cli.views.produce import Checking

    checked = [one for one in inputs if one.source.can_rewind]
    with Checking([one.source for one in checked]) as checking:
        for one in checked:
            reader = EventReader(shape, one.origin)
            one.events = 0
            try:
                while chunk := one.source.read():
                    one.events += sum(e.line >= one.from_line for e in reader.feed(chunk))
                    checking.at(one.source)
                one.events += sum(e.line >= one.from_line for e in reader.finish())
            except InvalidRequest as error:
                raise InvalidRequest(f"{error}; nothing was written") from error
            one.lines = reader.lines
            if one.from_line > max(1, reader.lines):
                raise InvalidRequest(
                    f"{one.source.name} has {reader.lines} lines, so none is left from line "
                    f"{one.from_line} on; nothing was written"
                )
            checking.done(one.source)
            one.source.rewind()


async def _produce(
    url: str,
    topic: str,
    inputs: Sequence[_Input],
    shape: EventShape,
    sending: _Sending,
    tally: Tally,
) -> None:
    from headgate.client.producer import Producer, ProducerOptions

    await _check_topic(url, topic, shape)
    bad: InvalidRequest | None = None
    options = ProducerOptions(
        batch_events=sending.batch, deadline_s=sending.timeout_s, again=sending.goes_on
    )
    producer = Producer(url, options, token=token_source())
    async with Helpers() as helpers, producer:
        helpers.start(tally.tell_waits(sending.timeout_s))
        sender = _Sender(producer, topic, sending, tally)
        for one in inputs:
            try:
                await _send_input(one, shape, sender, tally)
            except InvalidRequest as error:
                bad = error
            if bad is not None or tally.failures:
                break
        await sender.finish()
    tally.name_failures(topic)
    tally.say_how_to_go_on(sending.run)
    for one in inputs:
        _say_what_was_left(one)
    tally.raise_failures()
    if bad is not None:
        raise InvalidRequest(f"{bad}; {tally.written_sentence()}") from bad


async def _send_input(one: _Input, shape: EventShape, sender: _Sender, tally: Tally) -> None:
    """Hand the lines of one input to `sender`, until the first failure."""
    from headgate.cli.reading.json_lines import EventReader

    reader = EventReader(shape, one.origin)
    try:
        chunks = _chunks(one.source)
        while not tally.failures and (chunk := await chunks.get()):
            if isinstance(chunk, HeadgateError):
                raise chunk
            await sender.send_all(reader, chunk, from_line=one.from_line)
        if not tally.failures:
            await sender.send_all(reader, None, from_line=one.from_line)
            one.ended = True
    except InvalidRequest:
        one.ended = True  # Its own sentence says where.
        raise
    finally:
        one.lines_read = reader.lines


def _say_what_was_left(one: _Input) -> None:
    if one.ended or one.lines_read == one.lines:
        return
    if one.lines is not None:
        lines = one.origin.of(f"lines {one.lines_read + 1}-{one.lines}")
        say(f"headgate: {lines} were not sent")
    elif one.origin.name:
        rest = "the rest of " if one.lines_read else ""
        say(f"headgate: {rest}{one.origin.name} was not sent")


async def _check_topic(url: str, topic: str, shape: EventShape) -> None:
    """Mistakes that would fail every line are better said before the first one is read."""
    from headgate.client.http import topic_path
    from headgate.errors import Forbidden, NotFound, NotNow, PeerUnreachable
    from headgate.model.api import TopicInfo

    async with calls_to(url) as client:
        try:
            found = await client.get(topic_path(topic), TopicInfo)
        except PeerUnreachable as error:
            if error.details.get("url") == client.url:
                raise
            return
        except Forbidden:
            return  # A principal that may write to a topic may not be allowed to look at it.
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
            except Exception as error:  # noqa: BLE001 - the reader of the queue must hear of it
                chunk = HeadgateError(f"the input can't be read: {error!r}")
            handing_over = queue.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(handing_over, loop).result()
            except (RuntimeError, CancelledError):
                handing_over.close()
                return  # The loop has ended, and nobody wants the rest.

    start_thread("input", read)
    return queue


class _Sender:
    """Hands batches to the producer, in order, a bounded number at a time."""

    def __init__(self, producer: Producer, topic: str, sending: _Sending, tally: Tally) -> None:
        self._producer = producer
        self._topic = topic
        self._sending = sending
        self._tally = tally
        self._crew = Crew("produce")
        self._under_way: set[asyncio.Task[None]] = set()

    async def send_all(
        self, reader: EventReader, chunk: bytes | None, *, from_line: int = 1
    ) -> None:
        """Send the events of `chunk` (None: what is left) from that line on, short of the batch
        with a bad line."""
        batch: list[NumberedEvent] = []
        for event in reader.finish() if chunk is None else reader.feed(chunk):
            if event.line < from_line:
                continue
            batch.append(event)
            if len(batch) == self._sending.batch:
                await self._send(batch)
                batch = []
        if batch:
            await self._send(batch)

    async def _send(self, batch: list[NumberedEvent]) -> None:
        if len(self._under_way) >= BATCHES_UNDER_WAY:
            await self._look(asyncio.FIRST_COMPLETED)
        self._under_way.add(self._crew.start("batch", self._deliver(batch), awaited=True))

    async def _look(self, return_when: str) -> None:
        """A batch that failed as a whole is in no tally: its error ends the command."""
        ended, self._under_way = await asyncio.wait(self._under_way, return_when=return_when)
        for task in ended:
            task.result()

    async def _deliver(self, batch: list[NumberedEvent]) -> None:
        self._tally.sending(batch)
        events = [self._sending.event(one) for one in batch]
        outcomes = await self._producer.send_many(self._topic, events)
        self._tally.count(batch, outcomes)

    async def finish(self) -> None:
        if self._under_way:
            await self._look(asyncio.ALL_COMPLETED)
