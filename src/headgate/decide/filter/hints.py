"""What the author of a valid filter may have meant instead.

`customer == ada` compares two fields, which a filter may. Most who write it have lost the quotation
marks of a text, often to their shell, and wait for records that never come. This only looks and
says: it must never refuse, and is silent where two fields are plainly meant (`speed > limit`,
`customer == order.customer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headgate.decide.filter.paths import path_of
from headgate.decide.filter.syntax import (
    Call,
    Compare,
    Expression,
    Field,
    ListOf,
    Literal,
    children,
)
from headgate.decide.filter.unparse import unparse

TEXT_METHODS = ("contains", "startsWith", "endsWith")
"""Methods that are nearly always given a text."""


def forgotten_quotes(expression: Expression) -> str | None:
    """One sentence about the first bare word that looks like a text without its quotation marks."""
    for name, condition, meant in _suspects(expression):
        return (
            f"in {unparse(condition)} the word {unparse(name)} is a field of the document; "
            f"a text stands in quotation marks: {unparse(meant)}"
        )
    return None


def _suspects(node: Expression) -> Iterator[tuple[Field, Expression, Expression]]:
    """A bare word, the condition that it stands in, and that condition with the word as a text."""
    match node:
        case Compare(op="==" | "!=", right=Field() as word) if path_of(node.left) is not None:
            yield word, node, replace(node, right=_text(word))
        case Compare(op="in", left=Field() as word) if path_of(node.right) is not None:
            yield word, node, replace(node, left=_text(word))
        case Compare(op="in", right=ListOf(items=items)):
            meant = ListOf(tuple(_text(i) if isinstance(i, Field) else i for i in items))
            for item in items:
                if isinstance(item, Field):
                    yield item, node, replace(node, right=meant)
        case Call(arguments=(subject, Field() as word)) if node.name in TEXT_METHODS:
            yield word, node, replace(node, arguments=(subject, _text(word)))
    for child in children(node):
        yield from _suspects(child)


def _text(word: Field) -> Literal:
    return Literal("string", word.name)
