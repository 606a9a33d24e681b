"""The words of the filter language: the nodes of its syntax tree, its functions and its limits.

Invariant: nodes are immutable values. Two nodes are equal when they mean the same text, wherever in
the text they stood: `position` (0-based offset, for error messages) takes no part in equality.
This module must never evaluate anything; it only names things.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal as OneOf

from headgate.errors import InvalidFilter

MAX_TEXT_CHARS = 4_096
MAX_DEPTH = 32
MAX_LIST_ITEMS = 1_000

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
UINT_MAX = 2**64 - 1

Equality = OneOf["==", "!="]
Ordering = OneOf["<", "<=", ">", ">="]
CompareOp = OneOf["==", "!=", "<", "<=", ">", ">=", "in"]
ArithmeticOp = OneOf["+", "-", "*", "/", "%"]
LiteralKind = OneOf["null", "bool", "int", "uint", "double", "string"]
Scalar = None | bool | int | float | str

COMPARE_OPS: tuple[CompareOp, ...] = ("==", "!=", "<", "<=", ">", ">=", "in")
ARITHMETIC_OPS: tuple[ArithmeticOp, ...] = ("+", "-", "*", "/", "%")

FUNCTIONS = {"has": 1, "size": 1, "timestamp": 1, "int": 1, "double": 1, "string": 1}
"""Written `name(x)`, with how many arguments they take."""

METHODS = {"contains": 1, "startsWith": 1, "endsWith": 1, "matches": 1, "size": 0}
"""Written `x.name(…)`, with how many arguments they take besides `x`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    position: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """`kind` keeps 5, 5u, 5.0 and true apart, which Python's own equality wouldn't."""

    kind: LiteralKind
    value: Scalar


@dataclass(frozen=True, slots=True)
class ListOf(Node):
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Slot(Literal):
    """A literal whose value is given later, as number `number` of the constants (see shape.py).

    `instant` says that it is the text of a `timestamp("…")`, and the constant an Instant.
    """

    number: int
    instant: bool = False


@dataclass(frozen=True, slots=True)
class SlotList(ListOf):
    """A list of literals that is given later, as the set of their keys; `size` is how many."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class Field(Node):
    """A field of the document itself."""

    name: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    """`operand.name`"""

    operand: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Index(Node):
    """`operand[key]`"""

    operand: Expression
    key: Expression


@dataclass(frozen=True, slots=True)
class Has(Node):
    target: Field | Select | Index


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function or a method; a method's receiver is its first argument."""

    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Negate(Node):
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic(Node):
    op: ArithmeticOp
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Compare(Node):
    op: CompareOp
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Not(Node):
    operand: Expression


@dataclass(frozen=True, slots=True)
class And(Node):
    """Two or more conditions; a chain of && is one node, so that long chains stay shallow."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    """`condition ? then : otherwise`"""

    condition: Expression
    then: Expression
    otherwise: Expression


Expression = (
    Literal
    | ListOf
    | Field
    | Select
    | Index
    | Has
    | Call
    | Negate
    | Arithmetic
    | Compare
    | Not
    | And
    | Or
    | Conditional
)


def children(node: Expression) -> tuple[Expression, ...]:
    match node:
        case Literal() | Field():
            return ()
        case ListOf():
            return node.items
        case Select() | Negate() | Not():
            return (node.operand,)
        case Index():
            return (node.operand, node.key)
        case Has():
            return (node.target,)
        case Call():
            return node.arguments
        case Arithmetic() | Compare():
            return (node.left, node.right)
        case And() | Or():
            return node.operands
        case Conditional():
            return (node.condition, node.then, node.otherwise)


def conjuncts(node: Expression) -> Iterator[Expression]:
    """The conditions that must all hold for `node` to hold; `node` itself when it isn't an &&."""
    if isinstance(node, And):
        for operand in node.operands:
            yield from conjuncts(operand)
    else:
        yield node


def fault(position: int, problem: str, **details: object) -> InvalidFilter:
    """The one sentence for everything that is wrong with a filter's text."""
    return InvalidFilter(
        f"The filter is wrong at column {position + 1}: {problem}.", position=position, **details
    )
