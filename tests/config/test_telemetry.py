from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from headgate.config.keys import KEYS
from headgate.errors import DataFolderError
from headgate.telemetry import LEVELS, LogLine, configure_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_levels_are_those_of_the_config() -> None:
    assert tuple(LEVELS) == KEYS["log_level"].choices


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_lets_through_itself_and_what_is_more_important(level: str) -> None:
    stream = io.StringIO()
    log = configure_logging(level, stream=stream)
    for name in LEVELS:
        getattr(log, name)("something")
    names = list(LEVELS)
    assert [line["level"] for line in lines(stream)] == names[: names.index(level) + 1]


def test_a_line_says_when_who_and_what() -> None:
    stream = io.StringIO()
    log = configure_logging("info", stream=stream, role="gateway", node_id="g1")
    log.bind(topic="flights").info(LogLine.SUBSCRIBED, path=Path("a"))
    (line,) = lines(stream)
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "level": "info",
        "role": "gateway",
        "node": "g1",
        "topic": "flights",
        "event": "subscribed",
        "path": "a",
    }


def test_the_global_logger_is_the_same_one() -> None:
    stream = io.StringIO()
    configure_logging("info", stream=stream, role="router", node_id="r1")
    structlog.get_logger().warning("from elsewhere")
    assert [(line["role"], line["level"]) for line in lines(stream)] == [("router", "warn")]


def test_what_libraries_log_comes_out_alike() -> None:
    stream = io.StringIO()
    configure_logging("info", stream=stream, role="ingest")
    logging.getLogger("some.library").warning("slow: %d", 3)
    logging.getLogger("some.library").info("chatter")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"], line["role"]) == (
        "slow: 3",
        "warn",
        "some.library",
        "ingest",
    )


def test_an_exception_carries_its_traceback() -> None:
    stream = io.StringIO()
    log = configure_logging("info", stream=stream)
    try:
        int("broken")
    except ValueError:
        log.exception(LogLine.UNEXPECTED)
    assert "ValueError: invalid literal" in str(lines(stream)[0]["exception"])


def test_people_at_a_terminal_get_no_json() -> None:
    stream = Terminal()
    configure_logging("info", stream=stream).info(LogLine.READY, url="http://x")
    assert not stream.getvalue().startswith("{")
    assert "ready" in stream.getvalue()


def test_a_log_file_is_created_and_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "ingest.log"
    former = configure_logging("info", file=file)
    former.info("one")
    configure_logging("info", file=file).info("two")
    former.info("its file is closed: lost, and no error")
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events == ["one", "two"]


def test_a_log_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    with pytest.raises(DataFolderError, match="can't write the log"):
        configure_logging("info", file=tmp_path / "logs" / "ingest.log")


def test_a_stream_that_is_gone_does_not_stop_the_work() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    configure_logging("info", stream=Gone()).info(LogLine.READY)
