"""How letters look in a terminal: a line each, or one of them whole.

Only shapes what it's given. What others wrote (keys, errors) can't move the cursor.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from headgate.cli.views.tables import Grid, number
from headgate.model.letters import GatewayLetters
from headgate.model.letters_api import LetterInfo

TEXT_MAX = 60
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def letters_table(letters: Sequence[LetterInfo], *, now_ms: int | None = None) -> Grid:
    """One row per letter; errors are cut to their beginning."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    columns = ("id>", "reason", "for", "partition", "seq>", "age>", "?attempts>", "?key")
    rows = [
        (
            str(one.id),
            one.reason,
            _whose(one.gateway, one.group),
            f"{one.topic}:{one.partition}",
            number(one.seq),
            age(now_ms - one.at_ms),
            number(one.attempts),
            "-" if one.key is None else _short(one.key),
            _short(one.error) or "-",
        )
        for one in letters
    ]
    return Grid((*columns, "?last error"), rows)


def letter_view(letter: LetterInfo) -> RenderableType:
    """Everything about one letter, the document below it."""
    title = Text(f"Letter {letter.id}: {letter.state}, {letter.reason}", style="bold")
    facts = Grid(("", ""), list(_facts(letter)))
    return Group(title, facts, Text(), Text("Document", style="bold"), Text(_document(letter)))


def _facts(letter: LetterInfo) -> Iterator[tuple[str, str]]:
    yield ("group", letter.group) if letter.group else ("gateway", letter.gateway)
    yield "written", moment(letter.at_ms)
    yield "attempts", number(letter.attempts)
    yield "last error", _plain(letter.error) or "-"
    yield "topic", f"{letter.topic}, partition {letter.partition}, seq {letter.seq:,}"
    yield "event", f"{letter.op} {_plain(letter.event_id)}"
    yield "event of", moment(letter.time_ms) if letter.time_ms else "-"
    yield "key", "-" if letter.key is None else _plain(letter.key)
    yield "collection", _plain(letter.collection) or "-"
    if letter.headers:
        headers = letter.headers.items()
        yield "headers", ", ".join(f"{_plain(name)}={_plain(text)}" for name, text in headers)
    if not letter.group:
        yield "subscriptions", ", ".join(letter.subscriptions) or "-"
    if letter.redelivery:
        yield "redelivery", "yes: sent again by an operator, outside the order"


def _document(letter: LetterInfo) -> str:
    if isinstance(letter.document, msgspec.UnsetType):
        return "-"
    return msgspec.json.format(bytes(letter.document), indent=2).decode()


def gateway_letters_table(letters: Iterable[GatewayLetters]) -> Grid:
    """For `headgate status`: what waits for which gateway, and since when."""
    rows = [
        (
            _whose(one.gateway, one.group),
            number(one.parked),
            age(one.parked_ms) if one.parked else "-",
            Text(number(one.dead), style="red" if one.dead else ""),
            age(one.dead_ms) if one.dead else "-",
        )
        for one in letters
    ]
    return Grid(("gateway or group", "parked>", "for up to>", "dead>", "for up to>"), rows)


def _whose(gateway: str, group: str) -> str:
    return f"group {group}" if group else gateway


def age(ms: int) -> str:
    """In the largest unit that fits: 90 s is 1.5 min."""
    for unit, unit_ms in _UNITS_MS:
        if ms >= unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{max(ms, 0)} ms"


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds")


def _short(text: str) -> str:
    line = " ".join(_plain(text).split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"


def _plain(text: str) -> str:
    return "".join(one if one.isprintable() or one == "\n" else "�" for one in text)
