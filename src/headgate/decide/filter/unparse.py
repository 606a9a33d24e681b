"""A syntax tree back to text, with no more parentheses than it needs to parse to the same tree.

For messages, explanations and for filters that were built rather than written. Every name and value
is quoted here, in one place: text from a tree is always safe to parse again.
"""

from __future__ import annotations

import re

from headgate.decide.filter.lexer import KEYWORDS
from headgate.decide.filter.parser import BINDING_POWER
from headgate.decide.filter.syntax import (
    METHODS,
    And,
    Arithmetic,
    Call,
    Compare,
    Conditional,
    Expression,
    Field,
    Has,
    Index,
    ListOf,
    Literal,
    Negate,
    Not,
    Or,
    Select,
)

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNARY = 7
_MEMBER = 8
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def unparse(node: Expression) -> str:  # one case per kind of node
    match node:
        case Literal():
            return _literal(node)
        case ListOf():
            return f"[{', '.join(unparse(item) for item in node.items)}]"
        case Field():
            return _name(node.name)
        case Select():
            return f"{_within(node.operand, _MEMBER)}.{_name(node.name)}"
        case Index():
            return f"{_within(node.operand, _MEMBER)}[{unparse(node.key)}]"
        case Has():
            return f"has({unparse(node.target)})"
        case Call():
            return _call(node)
        case Not():
            return f"!{_within(node.operand, _UNARY)}"
        case Negate():
            return f"-{_negated(node.operand)}"
        case Arithmetic() | Compare():
            return _binary(node)
        case And():
            return " && ".join(_within(operand, 4) for operand in node.operands)
        case Or():
            return " || ".join(_within(operand, 3) for operand in node.operands)
        case Conditional():
            condition, then = _within(node.condition, 2), _within(node.then, 2)
            return f"{condition} ? {then} : {unparse(node.otherwise)}"


def _binary(node: Arithmetic | Compare) -> str:
    power = BINDING_POWER[node.op]
    # Arithmetic groups to the left; comparisons don't chain at all.
    left = power if isinstance(node, Arithmetic) else power + 1
    return f"{_within(node.left, left)} {node.op} {_within(node.right, power + 1)}"


def _within(node: Expression, power: int) -> str:
    text = unparse(node)
    return text if _power(node) >= power else f"({text})"


def _power(node: Expression) -> int:
    match node:
        case Conditional():
            return BINDING_POWER["?"]
        case Or():
            return BINDING_POWER["||"]
        case And():
            return BINDING_POWER["&&"]
        case Arithmetic() | Compare():
            return BINDING_POWER[node.op]
        case Not() | Negate():
            return _UNARY
        case Literal(kind="int" | "uint" | "double"):
            return _UNARY
        case _:
            return _MEMBER


def _negated(operand: Expression) -> str:
    # -5 is one literal; the negation of the literal 5 needs parentheses to stay one.
    if isinstance(operand, Literal):
        return f"({unparse(operand)})"
    return _within(operand, _UNARY)


def _call(node: Call) -> str:
    if node.name == "size" or node.name not in METHODS:
        return f"{node.name}({', '.join(unparse(argument) for argument in node.arguments)})"
    receiver, *rest = node.arguments
    return f"{_within(receiver, _MEMBER)}.{node.name}({', '.join(unparse(item) for item in rest)})"


def _name(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) and name not in KEYWORDS:
        return name
    return f"`{name}`"


def _literal(node: Literal) -> str:
    if node.value is None:
        return "null"
    if isinstance(node.value, bool):
        return "true" if node.value else "false"
    if isinstance(node.value, str):
        return f'"{"".join(_escaped(char) for char in node.value)}"'
    return repr(node.value) + ("u" if node.kind == "uint" else "")


def _escaped(char: str) -> str:
    if char in _ESCAPED:
        return _ESCAPED[char]
    return char if char.isprintable() else f"\\U{ord(char):08x}"
