"""Tokens to a syntax tree: a Pratt parser for the subset of CEL that docs/filters.md publishes.

Invariant: parse(unparse(tree)) == tree, and no tree is deeper than a small multiple of MAX_DEPTH,
so whatever walks one may recurse. The parser knows what is well formed; whether it makes sense
(`5 && "a"`) is for check.py. Must never accept what it doesn't understand.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import cast

from headgate.decide.filter.lexer import KEYWORDS, Token, tokenize
from headgate.decide.filter.syntax import (
    ARITHMETIC_OPS,
    COMPARE_OPS,
    FUNCTIONS,
    INT_MAX,
    INT_MIN,
    MAX_DEPTH,
    MAX_LIST_ITEMS,
    METHODS,
    UINT_MAX,
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Compare,
    CompareOp,
    Conditional,
    Expression,
    Field,
    Has,
    Index,
    ListOf,
    Literal,
    LiteralKind,
    Negate,
    Not,
    Or,
    Select,
    fault,
)

# How tightly an operator binds; an operand is parsed with the power of the operator before it and
# takes only what binds tighter.
_LOOSEST = 0
_CONDITIONAL = 1
_COMPARISON = 4
BINDING_POWER: dict[str, int] = {"?": _CONDITIONAL, "||": 2, "&&": 3}
BINDING_POWER |= dict.fromkeys(COMPARE_OPS, _COMPARISON)
BINDING_POWER |= {"+": 5, "-": 5, "*": 6, "/": 6, "%": 6}

_OPERAND = "a field, a literal, a function, ( or ["
_WORD_OPERATORS = {"and": "&&", "or": "||", "not": "!", "AND": "&&", "OR": "||", "NOT": "!"}
_CONSTANTS = {"true": True, "false": False, "null": None}


def parse(text: str) -> Expression:
    """Raises InvalidFilter, which says where `text` is wrong and what was expected there."""
    parser = _Parser(tokenize(text))
    if parser.at_end():
        raise fault(0, "it is empty, expected a condition such as altitude > 30000")
    expression = parser.expression(_LOOSEST, 1)
    if not parser.at_end():
        raise parser.unexpected("an operator or the end of the filter")
    return expression


class _Parser:
    """A cursor over the tokens. `depth` counts what is open around the cursor."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._next]

    def at(self, symbol: str) -> bool:
        return self.token.kind == "symbol" and self.token.text == symbol

    def at_end(self) -> bool:
        return self.token.kind == "end"

    def take(self) -> Token:
        token = self.token
        self._next += not self.at_end()
        return token

    def expect(self, symbol: str, expected: str) -> None:
        if not self.at(symbol):
            raise self.unexpected(expected)
        self.take()

    def unexpected(self, expected: str) -> Exception:
        found, hint = self.token, ""
        # `a and b` stumbles over the word itself, `not a` over what stands behind it.
        for word in (found, self._tokens[self._next - 1]):
            if word.kind == "name" and word.text in _WORD_OPERATORS:
                hint = f"; write {_WORD_OPERATORS[word.text]} for {word.text}"
        return fault(
            found.position,
            f"found {found.shown()}, expected {expected}{hint}",
            found=found.shown(),
            expected=expected,
        )

    def bounded(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise fault(
                self.token.position, f"it nests deeper than {MAX_DEPTH} levels", limit=MAX_DEPTH
            )

    # --- operators between operands --------------------------------------------------------------

    def expression(self, power: int, depth: int) -> Expression:
        self.bounded(depth)
        left = self.operand(depth)
        while self.token.kind == "symbol" and BINDING_POWER.get(self.token.text, 0) > power:
            symbol = self.token.text
            if symbol == "?":
                left = self.conditional(left, depth)
            elif symbol in ("&&", "||"):
                left = self.junction(left, depth)
            elif symbol in ARITHMETIC_OPS:
                # Every further term buries the first one deeper, so a chain counts as nesting.
                depth += 1
                left = self.arithmetic(left, depth)
            else:
                left = self.comparison(left, depth)
        return left

    def conditional(self, condition: Expression, depth: int) -> Expression:
        position = self.take().position
        then = self.expression(_CONDITIONAL, depth + 1)
        self.expect(":", "an operator or the : of the ?")
        otherwise = self.expression(_LOOSEST, depth + 1)
        return Conditional(condition, then, otherwise, position=position)

    def junction(self, left: Expression, depth: int) -> Expression:
        symbol, position = self.token.text, self.token.position
        operands = [left]
        while self.at(symbol):
            self.take()
            operands.append(self.expression(BINDING_POWER[symbol], depth + 1))
        kind = And if symbol == "&&" else Or
        return kind(tuple(operands), position=position)

    def arithmetic(self, left: Expression, depth: int) -> Expression:
        token = self.take()
        right = self.expression(BINDING_POWER[token.text], depth + 1)
        return Arithmetic(cast("ArithmeticOp", token.text), left, right, position=token.position)

    def comparison(self, left: Expression, depth: int) -> Expression:
        token = self.take()
        right = self.expression(_COMPARISON, depth + 1)
        if self.token.kind == "symbol" and self.token.text in COMPARE_OPS:
            raise fault(
                self.token.position,
                f"found {self.token.text} behind another comparison; join the two with &&, "
                "or put one of them in parentheses",
                found=self.token.text,
            )
        return Compare(cast("CompareOp", token.text), left, right, position=token.position)

    # --- operands --------------------------------------------------------------------------------

    def operand(self, depth: int) -> Expression:
        self.bounded(depth)
        token = self.token
        if self.at("!"):
            self.take()
            return Not(self.operand(depth + 1), position=token.position)
        if self.at("-"):
            self.take()
            if self.token.kind not in ("int", "uint", "double"):
                return Negate(self.operand(depth + 1), position=token.position)
            # The sign belongs to the number, or -9223372036854775808 couldn't be written.
            return self.members(self.number(sign=-1, position=token.position), depth)
        return self.members(self.primary(depth), depth)

    def primary(self, depth: int) -> Expression:
        token = self.token
        if token.kind in ("int", "uint", "double"):
            return self.number(sign=1, position=token.position)
        if token.kind == "string":
            self.take()
            return Literal("string", str(token.value), position=token.position)
        if token.kind in ("name", "quoted_name"):
            return self.named(depth)
        if self.at("("):
            self.take()
            inner = self.expression(_LOOSEST, depth + 1)
            self.expect(")", "an operator or the closing )")
            return inner
        if self.at("["):
            self.take()
            items = self.sequence("]", depth, limit=MAX_LIST_ITEMS)
            return ListOf(items, position=token.position)
        raise self.unexpected(_OPERAND)

    def number(self, *, sign: int, position: int) -> Literal:
        token = self.take()
        if token.kind == "double":
            return Literal("double", sign * float(token.value), position=position)
        value = sign * int(token.value)
        unsigned = token.kind == "uint"
        low, high = (0, UINT_MAX) if unsigned else (INT_MIN, INT_MAX)
        if not low <= value <= high or (unsigned and sign < 0):
            kind = "an unsigned 64-bit" if unsigned else "a 64-bit"
            raise fault(position, f"{value} is not {kind} integer", low=low, high=high)
        return Literal(cast("LiteralKind", token.kind), value, position=position)

    def named(self, depth: int) -> Expression:
        token = self.take()
        if token.kind == "name" and token.text in _CONSTANTS:
            value = _CONSTANTS[token.text]
            return Literal("null" if value is None else "bool", value, position=token.position)
        if token.kind == "name" and self.at("("):
            return self.call(token, receiver=None, depth=depth)
        return Field(str(token.value), position=token.position)

    def members(self, node: Expression, depth: int) -> Expression:
        """What hangs on an operand: `.name`, `.method(…)` and `[key]`."""
        while self.at(".") or self.at("["):
            self.bounded(depth)
            depth += 1
            opening = self.take()
            if opening.text == "[":
                key = self.expression(_LOOSEST, depth + 1)
                self.expect("]", "an operator or the closing ]")
                node = Index(node, key, position=opening.position)
                continue
            if self.token.kind not in ("name", "quoted_name") or self.token.text in KEYWORDS:
                raise self.unexpected("a field or method name (in `backticks` if it is a keyword)")
            name = self.take()
            if name.kind == "name" and self.at("("):
                node = self.call(name, receiver=node, depth=depth)
            else:
                node = Select(node, str(name.value), position=opening.position)
        return node

    # --- functions and methods -------------------------------------------------------------------

    def call(self, name: Token, *, receiver: Expression | None, depth: int) -> Expression:
        known = FUNCTIONS if receiver is None else METHODS
        if name.text not in known:
            raise _unknown_function(name, method=receiver is not None)
        self.take()
        arguments = self.sequence(")", depth, limit=MAX_LIST_ITEMS)
        wanted = known[name.text]
        if len(arguments) != wanted:
            plural = "" if wanted == 1 else "s"
            problem = f"{name.text} takes {wanted} argument{plural}, found {len(arguments)}"
            raise fault(name.position, problem, found=len(arguments), expected=wanted)
        if name.text == "has":
            return self.has(name, arguments[0])
        received = () if receiver is None else (receiver,)
        return Call(name.text, received + arguments, position=name.position)

    def has(self, name: Token, target: Expression) -> Has:
        if not isinstance(target, Field | Select | Index):
            raise fault(
                target.position,
                "has takes a field such as has(flight.altitude)",
                expected="a field",
            )
        return Has(target, position=name.position)

    def sequence(self, closing: str, depth: int, *, limit: int) -> tuple[Expression, ...]:
        """Expressions up to the `closing` bracket; a comma behind the last one is allowed."""
        items: list[Expression] = []
        while not self.at(closing):
            if len(items) == limit:
                raise fault(
                    self.token.position, f"the list has more than {limit} elements", limit=limit
                )
            items.append(self.expression(_LOOSEST, depth + 1))
            if not self.at(closing):
                self.expect(",", f"an operator, a comma or the closing {closing}")
        self.take()
        return tuple(items)


def _unknown_function(name: Token, *, method: bool) -> Exception:
    word, known, other = (
        ("method", METHODS, FUNCTIONS) if method else ("function", FUNCTIONS, METHODS)
    )
    if name.text in other:
        form = f"{name.text}(x)" if method else f"x.{name.text}(…)"
        problem = f"{name.text} is written {form}"
        return fault(name.position, problem, found=name.text, expected=form)
    # Case is the usual slip, and difflib sees startswith and startsWith as far apart as any two.
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.text.lower(), by_lower, n=1, cutoff=0.5)
    expected = by_lower[near[0]] if near else ", ".join(known)
    hint = f"; the nearest is {expected}" if near else f", expected one of {expected}"
    problem = f"unknown {word} {name.text}{hint}"
    return fault(name.position, problem, found=name.text, expected=expected)
