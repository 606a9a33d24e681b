"""What is said about a role that ended."""

from __future__ import annotations

import pytest

from headgate.decide.operations.supervision import last_words, restart_sentence

TRACEBACK = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
    ^^^
RuntimeError: a mistake
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param('{"event": "task_died"}\n', "", id="only log events"),
        pytest.param("headgate: first\nheadgate: etcd is away\n", "etcd is away", id="the last"),
        pytest.param('headgate: away\n{"event": "x"}\n\n', "away", id="before a log event"),
        pytest.param(TRACEBACK, "RuntimeError: a mistake", id="a traceback"),
        pytest.param("headgate: waiting\n" + TRACEBACK, "RuntimeError: a mistake", id="later"),
        pytest.param(TRACEBACK + "headgate: away\n", "away", id="earlier"),
        pytest.param(TRACEBACK + "\n" + TRACEBACK.replace("mis", "s"), "RuntimeError: a stake",
                     id="two tracebacks"),
    ],
)  # fmt: skip
def test_the_last_words_are_a_sentence_or_an_error(log: str, words: str) -> None:
    assert last_words(log) == words


@pytest.mark.parametrize(
    ("reason", "last_reason", "sentence"),
    [
        ("", "", "ended with code 1; starting it again in 0.4 s"),
        ("", "away", "ended with code 1; starting it again in 0.4 s"),
        ("away.", "", "ended with code 1: away. Starting it again in 0.4 s (more in x.log)"),
        ("away", "full", "ended with code 1: away. Starting it again in 0.4 s (more in x.log)"),
        ("away", "away", "ended with code 1 for the same reason; starting it again in 0.4 s"),
    ],
)
def test_a_reason_is_said_until_it_is_known(reason: str, last_reason: str, sentence: str) -> None:
    said = restart_sentence(
        ended="ended with code 1",
        reason=reason,
        last_reason=last_reason,
        delay_s=0.4,
        log_file="x.log",
    )
    assert said == sentence
