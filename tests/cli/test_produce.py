"""`headgate produce` from files and pipes: all of it, in order, or a sentence with line numbers."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
from pathlib import Path
from typing import cast

import msgspec
import pytest

from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.cli.produce import BATCHES_UNDER_WAY, _chunks, _Sender, _Sending
from headgate.cli.reading.json_lines import EventReader, EventShape
from headgate.cli.reading.line_source import LineSource
from headgate.cli.views.produce import Tally, reason_of
from headgate.client.producer import Producer
from headgate.errors import HeadgateError, InvalidRequest, NotNow, OutcomeUnknown
from headgate.model.api import ProduceAnswer, ProduceEvent
from headgate.services.ingest.produce.outcomes import unknown_outcome
from headgate.tasks import deaths
from tests.cli.command import ended, headgate, started
from tests.client.producing.produce_server import ProduceServer
from tests.waiting import until


def lines(count: int, keys: int = 50) -> bytes:
    return b"".join(b'{"n":%d,"id":{"icao":"k%d"}}\n' % (n, n % keys) for n in range(count))


def numbers(server: ProduceServer) -> list[int]:
    return [document["n"] for document in server.documents("flights")]


async def test_ten_thousand_lines_of_a_pipe_arrive_each_key_in_order(server: ProduceServer) -> None:
    result = await headgate(
        "produce", "flights", "--key", "id.icao", "--collection", "c", url=server.url,
        given=lines(10_000),
    )  # fmt: skip
    assert (result.code, result.out) == (0, "")
    assert re.fullmatch(r"acknowledged 10000, failed 0 \([\d,]+/s\)\n", result.err)
    written = server.written("flights")
    assert {(event.collection, event.op) for event in written} == {("c", "insert")}
    by_key: dict[str | None, list[int]] = {}
    for event, number in zip(written, numbers(server), strict=True):
        by_key.setdefault(event.key, []).append(number)
    assert by_key == {f"k{key}": list(range(key, 10_000, 50)) for key in range(50)}


async def test_headers_go_with_every_event(server: ProduceServer) -> None:
    given = ("--header", "trace=7f", "--header", "note=a=b")
    result = await headgate("produce", "flights", *given, url=server.url, given=lines(3))
    assert result.code == 0, result.err
    assert [one.headers for one in server.written("flights")] == [
        {"trace": "7f", "note": "a=b"}
    ] * 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["x"], "--header 'x' is not NAME=TEXT, such as trace=7f3a"),
        (["a=1", "a=2"], "--header a is given twice"),
        (["a=" + "x" * 5_000], "the headers of every event have names and values of 5,001 bytes"),
    ],
    ids=["nameless", "twice", "long"],
)
async def test_bad_headers_are_refused_before_anything_is_read(
    server: ProduceServer, given: list[str], sentence: str
) -> None:
    options = [part for one in given for part in ("--header", one)]
    result = await headgate("produce", "flights", *options, url=server.url, given=lines(1))
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


@pytest.mark.parametrize("name", ["events.jsonl", "events.jsonl.gz"])
async def test_a_file_is_sent_also_a_gzipped_one(
    server: ProduceServer, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(lines(1_234)) if name.endswith("gz") else lines(1_234))
    result = await headgate("produce", "flights", str(file), "--json", url=server.url)
    assert result.code == 0
    summary = result.json
    assert isinstance(summary, dict)
    assert summary.pop("per_s") > 0
    assert summary == {"acknowledged": 1_234, "failed": 0}
    assert sorted(numbers(server)) == list(range(1_234))


async def test_several_files_are_sent_one_after_the_other_each_key_in_order(
    server: ProduceServer, tmp_path: Path
) -> None:
    every = lines(3_000).splitlines(keepends=True)
    plain, gzipped, last = (tmp_path / name for name in ("a.jsonl", "b", "c.log"))
    plain.write_bytes(b"".join(every[:1_000]))
    gzipped.write_bytes(gzip.compress(b"".join(every[1_000:2_000])))
    given = gzip.compress(b"".join(every[2_000:2_500]))
    last.write_bytes(b"".join(every[2_500:]))
    result = await headgate(
        "produce", "flights", str(plain), str(gzipped), "-", str(last), "--key", "id.icao",
        url=server.url, given=given,
    )  # fmt: skip
    assert result.code == 0, result.err
    assert result.err.startswith("acknowledged 3000, failed 0 (")
    by_key: dict[str | None, list[int]] = {}
    for event, number in zip(server.written("flights"), numbers(server), strict=True):
        by_key.setdefault(event.key, []).append(number)
    assert by_key == {f"k{key}": list(range(key, 3_000, 50)) for key in range(50)}


async def test_an_empty_input_is_no_mistake(server: ProduceServer) -> None:
    result = await headgate("produce", "flights", url=server.url, given=b"")
    assert (result.code, result.err) == (0, "acknowledged 0, failed 0\n")


async def test_requests_are_no_larger_than_asked_for(server: ProduceServer) -> None:
    await headgate("produce", "flights", "--batch", "7", url=server.url, given=lines(100))
    assert max(len(request) for request in server.requests) == 7


async def test_the_op_is_passed_on(server: ProduceServer) -> None:
    await headgate("produce", "flights", "--op", "delete", url=server.url, given=b'{"n":1}')
    assert [event.op for event in server.written("flights")] == ["delete"]


@pytest.mark.parametrize("op", ["read", "truncate", "drop", "rename", "lost"])
async def test_what_only_connectors_say_is_refused(server: ProduceServer, op: str) -> None:
    result = await headgate("produce", "flights", "--op", op, url=server.url, given=b'{"n":1}')
    assert result.code == 2
    assert f"'{op}' is not one of 'insert', 'update', 'delete'" in result.err
    assert server.requests == []


async def test_what_comes_slowly_is_sent_as_it_comes(server: ProduceServer) -> None:
    process = await started("produce", "flights", url=server.url)
    assert process.stdin is not None
    arrived = asyncio.Event()
    server.script = lambda _events: arrived.set()
    for _ in range(3):
        arrived.clear()
        process.stdin.write(b'{"n":1}\n')
        await asyncio.wait_for(arrived.wait(), 30)
    assert (await ended(process, b"")).err.startswith("acknowledged 3, failed 0 (")


# --- bad input -----------------------------------------------------------------------------------


async def test_a_file_with_a_bad_line_writes_nothing(server: ProduceServer, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(5_000) + b'{"n" 1}\n' + lines(10))
    result = await headgate("produce", "flights", str(file), url=server.url)
    assert result.code == 2
    assert result.err.startswith("headgate: line 5001 is not valid JSON: expected ':'")
    assert "; nothing was written\n" in result.err
    assert result.err.count("\n") == 1
    assert server.requests == []


async def test_a_bad_line_is_named_with_its_file_and_no_file_is_written(
    server: ProduceServer, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl.gz"
    good.write_bytes(lines(100))
    bad.write_bytes(gzip.compress(lines(7) + b"nonsense\n"))
    result = await headgate("produce", "flights", str(good), str(bad), url=server.url)
    assert result.code == 2
    assert result.err.startswith(f"headgate: line 8 of {bad} is not valid JSON: ")
    assert result.err.endswith("; nothing was written\n")
    assert server.requests == []


async def test_a_gzipped_pipe_that_is_cut_off_says_what_was_written(server: ProduceServer) -> None:
    given = gzip.compress(lines(20_000))[:-100]
    result = await headgate("produce", "flights", url=server.url, given=given)
    assert result.code == 2
    assert "headgate: standard input is not a whole gzip file: " in result.err
    assert re.search(r"; \d+ earlier lines were written\n", result.err)


async def test_standard_input_from_a_file_is_checked_whole_too(
    server: ProduceServer, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(5_000) + b"nonsense\n")
    shell = await asyncio.create_subprocess_shell(
        f'"$PYTHON" -m headgate produce flights --url {server.url} < {file}',
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
    )
    _, err = await asyncio.wait_for(shell.communicate(), 60)
    assert (shell.returncode, server.requests) == (2, [])
    assert b"line 5001 is not valid JSON" in err


async def test_a_pipe_ends_at_its_first_bad_line_and_says_what_was_written(
    server: ProduceServer,
) -> None:
    given = lines(25) + b"nonsense\n" + lines(25)
    result = await headgate("produce", "flights", "--batch", "10", url=server.url, given=given)
    assert result.code == 2
    assert "headgate: line 26 is not valid JSON" in result.err
    assert "; 20 earlier lines were written\n" in result.err
    assert sorted(numbers(server)) == list(range(20))
    assert "acknowledged 20, failed 0 (" in result.err


async def test_a_line_without_the_key_field_is_a_bad_line(server: ProduceServer) -> None:
    given = b'{"id":"a"}\n{"ident":"b"}\n'
    result = await headgate("produce", "flights", "--key", "id", url=server.url, given=given)
    assert result.code == 2
    assert "headgate: line 2 has no field id; nothing was written\n" in result.err
    assert server.requests == []


async def test_an_unknown_topic_is_said_before_anything_is_read(server: ProduceServer) -> None:
    process = await started("produce", "flughts", url=server.url)
    result = await ended(process)
    assert (result.code, result.out) == (2, "")
    assert "headgate: there is no topic flughts\n" in result.err


async def test_a_key_for_an_opportunistic_topic_is_said_before_anything_is_sent(
    server: ProduceServer,
) -> None:
    topic = server.topics["flights"]
    server.topics["flights"] = msgspec.structs.replace(topic, placement="opportunistic")
    result = await headgate("produce", "flights", "--key", "id", url=server.url, given=lines(1))
    assert result.code == 2
    assert "flights is opportunistic and takes no keys" in result.err


class Endless:
    """An input that has more than anybody wants."""

    def read(self) -> bytes:
        return b"{}\n"


def test_a_reader_whose_lines_nobody_waits_for_ends_in_silence() -> None:
    """A traceback of its own used to tear the sentence that says why the command ends."""
    unhandled: list[threading.ExceptHookArgs] = []

    async def abandon() -> None:
        chunks = _chunks(cast("LineSource", Endless()))
        await until(lambda: chunks.full() and len(asyncio.all_tasks()) > 1)

    before = set(threading.enumerate())
    previous, threading.excepthook = threading.excepthook, unhandled.append
    try:
        asyncio.run(abandon())
        for thread in set(threading.enumerate()) - before:
            thread.join(30)
    finally:
        threading.excepthook = previous
    assert unhandled == []
    assert deaths.counts() == {}


class Broken:
    def read(self) -> bytes:
        raise RuntimeError("a mistake")


async def test_a_reader_that_makes_a_mistake_ends_the_input_with_an_error() -> None:
    chunk = await asyncio.wait_for(_chunks(cast("LineSource", Broken())).get(), 30)
    assert isinstance(chunk, HeadgateError)
    assert "a mistake" in chunk.message


@pytest.mark.parametrize("batches", [1, BATCHES_UNDER_WAY + 1])
async def test_a_batch_that_dies_ends_the_command(batches: int) -> None:
    """It is in no tally, so nothing else would say that its events are missing."""

    class BrokenProducer:
        async def send_many(self, _topic: str, _events: object) -> None:
            raise RuntimeError("a mistake")

    reader = EventReader(EventShape())
    sending = _Sending(1, 30.0, "run-1", goes_on=False)
    sender = _Sender(cast("Producer", BrokenProducer()), "t", sending, Tally(None))

    async def send() -> None:
        await sender.send_all(reader, b"{}\n" * batches)
        await sender.finish()

    with pytest.raises(RuntimeError, match="a mistake"):
        await send()


def test_a_run_in_which_nothing_happens_says_what_it_waits_for() -> None:
    now_s = 0.0
    tally = Tally(None, now_s=lambda: now_s)
    batch = list(EventReader(EventShape()).feed(b"{}\n{}\n"))
    assert tally.pace(0.0) == "0/s"
    now_s = 1.0
    assert tally.pace(0.0) == "waiting for input"
    tally.sending(batch)
    assert tally.pace(1_234.5) == "1,234/s"
    now_s = 2.5
    assert tally.pace(1_234.5) == "waiting for answers"
    tally.count(batch, [NotNow("try again")] * 2)
    assert tally.pace(2.0) == "2/s"
    now_s = 4.0
    assert tally.pace(2.0) == "waiting for input"


# --- failures ------------------------------------------------------------------------------------


SHOWS = "; it may have been written: `headgate subscribe flights --from earliest` shows"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(
            unknown_outcome(0),
            f"the write to partition 0 did not end in time and may still succeed{SHOWS}",
            id="with advice for programs",
        ),
        pytest.param(OutcomeUnknown("who knows"), f"who knows{SHOWS}", id="without advice"),
        pytest.param(NotNow("later"), "later", id="another error"),
    ],
)
def test_nobody_is_told_to_send_ids_that_only_the_command_knows(
    error: HeadgateError, reason: str
) -> None:
    assert reason_of(error, "flights") == reason


async def test_what_may_pass_is_tried_again(server: ProduceServer) -> None:
    failures = [NotNow("later")] * 3

    def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
        if failures:
            raise failures.pop()
        return None

    server.script = script
    result = await headgate("produce", "flights", url=server.url, given=lines(100))
    assert result.code == 0
    assert result.err.startswith("acknowledged 100, failed 0 (")


async def test_lines_that_were_not_acknowledged_are_named(
    server: ProduceServer, tmp_path: Path
) -> None:
    def script(events: list[ProduceEvent]) -> ProduceAnswer | None:
        for index, event in enumerate(events):
            if json.loads(bytes(event.document))["n"] == 24:
                raise InvalidRequest(f"the document of event {index} is too odd", index=index)
        return None

    server.script = script
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(30))
    result = await headgate("produce", "flights", str(file), "--batch", "10", url=server.url)
    assert result.code == 2
    assert "headgate: lines 21-30: the document of line 25 is too odd\n" in result.err
    assert "acknowledged 20, failed 10 (" in result.err
    assert sorted(numbers(server)) == list(range(20))


async def test_a_line_that_is_named_isnt_named_twice(server: ProduceServer, tmp_path: Path) -> None:
    def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
        raise InvalidRequest("the document of event 0 is too odd", index=0)

    server.script = script
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(1))
    result = await headgate("produce", "flights", str(file), url=server.url)
    assert "headgate: the document of line 1 is too odd\n" in result.err


async def test_what_was_not_acknowledged_or_sent_of_several_files_is_named(
    server: ProduceServer, tmp_path: Path
) -> None:
    def script(events: list[ProduceEvent]) -> ProduceAnswer | None:
        for index, event in enumerate(events):
            if json.loads(bytes(event.document))["n"] == 24:
                raise InvalidRequest(f"the document of event {index} is too odd", index=index)
        return None

    server.script = script
    every = lines(200_000).splitlines(keepends=True)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    first.write_bytes(b"".join(every[:20]))
    # Longer than what is read ahead, so that the answer stops the reading.
    second.write_bytes(b"".join(every[20:]))
    third.write_bytes(b"".join(every[:3]))
    files = [str(first), str(second), str(third)]
    result = await headgate("produce", "flights", *files, "--batch", "10", url=server.url)
    assert result.code == 2
    assert f"headgate: lines 1-10 of {second}: the document of line 5 of {second}" in result.err
    assert re.search(rf"headgate: lines \d+-199980 of {second} were not sent\n", result.err)
    assert f"headgate: lines 1-3 of {third} were not sent\n" in result.err
    assert f"of {first}" not in result.err


def _environment() -> dict[str, str]:
    import os
    import sys

    return {**os.environ, "PYTHON": sys.executable}


# --- when nodes are away -------------------------------------------------------------------------


async def test_what_it_gives_up_can_be_gone_on_with_and_nothing_is_written_twice(
    server: ProduceServer, tmp_path: Path
) -> None:
    file, written = tmp_path / "events.jsonl", 0
    file.write_bytes(lines(100))

    def away_after_some(events: list[ProduceEvent]) -> ProduceAnswer | None:
        nonlocal written
        if written >= 40:
            raise NotNow("no ingest node is known at the moment; try again")
        written += len(events)
        return None

    server.script = away_after_some
    command = ("produce", "flights", str(file), "--key", "id.icao", "--batch", "10")
    given_up = await headgate(*command, "--timeout", "1s", url=server.url)
    assert given_up.code == 1
    how = re.search(r"`(--from-line (\d+) --run \S+)`", given_up.err)
    assert how is not None, given_up.err
    assert int(how[2]) <= written + 1
    server.script = lambda _events: None
    assert not any(server.again)
    before = len(server.again)
    gone_on = await headgate(*command, *how[1].split(), url=server.url)
    assert gone_on.code == 0, gone_on.err
    by_id = {event.event_id: event for event in server.written("flights")}
    documents = [msgspec.json.decode(event.document)["n"] for event in by_id.values()]
    assert sorted(documents) == list(range(100)), "each line has one id, in both runs"
    assert all(server.again[before:]), "it may be in other requests than before"


async def test_it_says_that_it_waits_and_goes_on_by_itself(server: ProduceServer) -> None:
    loop = asyncio.get_running_loop()
    back_s = loop.time() + 5.0

    def away(_events: list[ProduceEvent]) -> ProduceAnswer | None:
        if loop.time() < back_s:
            raise NotNow("partition 0 of flights has no owner here yet; try again")
        return None

    server.script = away
    result = await headgate("produce", "flights", url=server.url, given=lines(10))
    assert result.code == 0, result.err
    assert re.search(r"no answer for \d s; waiting for up to 120 s", result.err)
    assert len(numbers(server)) == 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from-line", "4"), "has 3 lines, so none is left from line 4 on"),
        (("--run", "what is this?"), "'what is this?' is not a run"),
        (("--timeout", "soon"), "soon"),
    ],
    ids=["behind the end", "no run", "no duration"],
)
async def test_what_can_not_be_gone_on_with_is_said(
    server: ProduceServer, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(3))
    result = await headgate("produce", "flights", str(file), *arguments, url=server.url)
    assert (result.code, server.requests) == (2, [])
    assert sentence in result.err


async def test_a_command_waits_for_an_address_that_is_just_restarting(
    unused_tcp_port: int,
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    asking = asyncio.create_task(headgate("topic", "list", "--json", url=url))
    await asyncio.sleep(1.0)
    server, http = ProduceServer(), HttpServer()
    server.add_topic("flights")
    await http.start(HttpApp(server.routes()), "127.0.0.1", unused_tcp_port)
    try:
        result = await asking
    finally:
        await http.stop(1.0)
    assert result.code == 0, result.err
