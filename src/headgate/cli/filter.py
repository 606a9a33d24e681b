"""`headgate filter test`: what a filter makes of documents, condition by condition, without a
Headgate.

A filter that is wrong is shown with a mark at the place; one that is right and looks as if another
was meant is run, and the hint said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from headgate.cli.command_line import Argument, Group, Option
from headgate.cli.explain import read_bytes
from headgate.cli.output import JsonOption, console, print_json, say
from headgate.errors import InvalidFilter, InvalidRequest

if TYPE_CHECKING:
    from headgate.model.explain_api import ExplainedCondition, Verdict

app = Group(help="Try a filter on documents.")
BYTES_MAX = 64 * 1024 * 1024
SHOWN_MAX = 20
"""Documents that are shown condition by condition; all are counted."""
NOBODY_MATCHES = 1


@app.command("test")
def try_on_documents(
    where: Annotated[str, Option("--where", metavar="CEL", help="The filter.")],
    file: Annotated[
        str, Argument(metavar="[FILE]", help="JSON documents, one per line, or one in all.")
    ] = "-",
    key: Annotated[
        str | None, Option("--key", help="What _key is, where the filter asks for it.")
    ] = None,
    collection: Annotated[str, Option("--collection", help="What _collection is.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a filter of each document, and say which of its conditions hold.

    Reads JSON documents from FILE or standard input. Ends with 1 when none of them matches, and
    with 2 when the filter is wrong.
    """
    _check(where)
    counts: dict[str, int] = {"match": 0, "no match": 0, "failed": 0}
    for at, document in enumerate(_documents(read_bytes(file, BYTES_MAX)), 1):
        verdict, conditions = _asked(where, document, key, collection)
        counts[verdict] += 1
        if as_json:
            print_json({"document": at, "verdict": verdict, "conditions": conditions})
        elif at <= SHOWN_MAX:
            _show(at, verdict, conditions)
    total = sum(counts.values())
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    say(f"{counts['match']} of {total} documents match{failed}")
    if total and not counts["match"]:
        raise click.exceptions.Exit(NOBODY_MATCHES)


def _check(where: str) -> None:
    from headgate.decide.filter.hints import forgotten_quotes
    from headgate.decide.filter.plan import compile_filter

    try:
        found = compile_filter(where)
    except InvalidFilter as error:
        position = error.details.get("position")
        if isinstance(position, int) and where.isprintable():
            say(f"  {where}")
            say(f"  {' ' * min(position, len(where))}^")
        raise
    assert found.expression is not None, "an empty text is no filter"
    if hint := forgotten_quotes(found.expression):
        say(f"headgate: hint: {hint}")


def _documents(raw: bytes) -> Iterator[Any]:
    """One document in all, however many lines it has, or one per line."""
    decode = msgspec.json.decode
    try:
        yield decode(raw)
        return
    except msgspec.DecodeError as error:
        whole = error
    lines = [line for line in raw.splitlines() if line.strip()]
    for number, line in enumerate(lines, 1):
        try:
            yield decode(line)
        except msgspec.DecodeError as error:
            if len(lines) == 1 or number == 1:
                raise InvalidRequest(f"this is not a JSON document: {whole}") from None
            raise InvalidRequest(f"line {number} is not a JSON document: {error}") from None


def _asked(
    where: str, document: Any, key: str | None, collection: str
) -> tuple[Verdict, list[ExplainedCondition]]:
    from headgate.decide.explaining.predicates import Looked, conditions_of, verdict_on
    from headgate.model.event import Record

    raw = msgspec.json.encode(document)
    record = Record("", 0, 1, 1, "", key, collection, "insert", raw, None, None, 0)
    looked = Looked.at(record, record)
    return verdict_on(looked, where).verdict, conditions_of(looked, where)


def _show(at: int, verdict: str, conditions: list[ExplainedCondition]) -> None:
    from headgate.cli.views.explain import conditions_view

    console().print(f"document {at}: {verdict}", highlight=False)
    console().print(conditions_view(conditions))
