"""Inputs of `headgate produce`: plain or gzipped, whole or refused, read as they come."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.reading import line_source
from headgate.cli.reading.line_source import LineSource, open_sources
from headgate.errors import InvalidRequest

TEXT = b'{"a": 1}\n' * 10


def everything(source: LineSource) -> bytes:
    return b"".join(iter(source.read, b""))


def write_pieces(path: Path, pieces: list[bytes]) -> None:
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(TEXT, id="plain"),
        pytest.param(gzip.compress(TEXT), id="gzip"),
        pytest.param(gzip.compress(TEXT[:45]) + gzip.compress(TEXT[45:]), id="two-members"),
        pytest.param(gzip.compress(TEXT) + b"\0" * 512, id="padded"),
    ],
)
@pytest.mark.parametrize("name", ["events", "events.jsonl", "events.gz"])
def test_what_is_gzipped_shows_in_the_content_and_not_in_the_name(
    tmp_path: Path, name: str, content: bytes
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with closing(LineSource(file)) as source:
        assert (source.can_rewind, source.size_bytes) == (True, len(content))
        for _ in range(2):
            assert everything(source) == TEXT
            assert source.bytes_read == len(content)
            source.rewind()
            assert source.bytes_read == 0


@pytest.mark.parametrize("content", [b"", b"\x1f", b"{", b"\x1f{"], ids=repr)
def test_the_shortest_inputs_are_read_whole(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "short"
    file.write_bytes(content)
    with closing(LineSource(file)) as source:
        assert everything(source) == content


@given(cuts=st.lists(st.integers(0, 120), max_size=9))
def test_how_a_pipe_delivers_makes_no_difference(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    content = gzip.compress(TEXT[:27]) + gzip.compress(TEXT[27:])
    ends = sorted(min(cut, len(content)) for cut in cuts)
    pieces = [content[a:b] for a, b in zip([0, *ends], [*ends, len(content)], strict=True)]
    path = tmp_path_factory.mktemp("pipes") / "pipe"
    os.mkfifo(path)
    with closing(LineSource(path)) as source:
        assert (source.can_rewind, source.size_bytes) == (False, None)
        writer = threading.Thread(target=write_pieces, args=(path, pieces))
        writer.start()
        assert everything(source) == TEXT
        writer.join(30)


def test_the_first_line_of_a_pipe_is_there_before_the_second(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = threading.Event()

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            file.write(b"{")
            assert read.wait(30)

    writer = threading.Thread(target=write)
    with closing(LineSource(path)) as source:
        writer.start()
        assert source.read() == b"{"
        read.set()
        writer.join(30)


def test_a_small_file_that_unpacks_to_much_is_read_in_chunks(tmp_path: Path) -> None:
    file = tmp_path / "zeros"
    file.write_bytes(gzip.compress(b" " * 10_000_000))
    with closing(LineSource(file)) as source:
        sizes = [len(chunk) for chunk in iter(source.read, b"")]
    assert (sum(sizes), max(sizes) <= line_source.CHUNK_BYTES) == (10_000_000, True)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(lambda _: None, r"can't read .*: No such file", id="missing"),
        pytest.param(Path.mkdir, r"can't read .*: Is a directory", id="folder"),
        pytest.param(
            lambda path: path.write_bytes(gzip.compress(TEXT)[:-9]),
            "is not a whole gzip file",
            id="cut-off",
        ),
        pytest.param(
            lambda path: path.write_bytes(gzip.compress(TEXT)[:20] + b"?" * 30),
            "is not a whole gzip file",
            id="damaged",
        ),
        pytest.param(
            lambda path: path.write_bytes(gzip.compress(TEXT) + b"more"),
            "is not a whole gzip file",
            id="something-behind-it",
        ),
    ],
)
def test_what_cant_be_read_is_said_in_a_sentence(
    tmp_path: Path, make: Callable[[Path], object], sentence: str
) -> None:
    make(tmp_path / "events")
    with pytest.raises(InvalidRequest, match=sentence):
        everything(LineSource(tmp_path / "events"))


def test_standard_input_is_read_once() -> None:
    with pytest.raises(InvalidRequest, match="can be read only once"):
        open_sources([Path("-"), Path("-")])
