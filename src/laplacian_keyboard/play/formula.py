"""A small language for rewards: formulas over named quantities, such as `speed * upright`.

    formula  = sum (("<" | "<=" | ">" | ">=") sum)?     1 where it holds, else 0
    sum      = product (("+" | "-") product)*
    product  = signed (("*" | "/") signed)*
    signed   = ("+" | "-") signed | power
    power    = atom ("**" signed)?
    atom     = number | name | name "(" formula ("," formula)* ")" | "(" formula ")"

What is written is never run as Python. It is read into a short program for a stack machine that
knows floating-point numbers, the names it was given and the functions below: no attributes, no
indexing, no integers that grow. Length, nesting and number of operations are bounded, so a formula
is refused, with a reason, in the time it takes to look at it.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laplacian_keyboard.types import UserError

MAX_LENGTH = 240
"""Characters of a formula."""
MAX_DEPTH = 16
"""Levels of brackets, signs and powers inside each other."""
MAX_OPERATIONS = 48

Array = NDArray[np.float64]


def _ramp(x: Any, start: Any, full: Any) -> Any:
    return np.clip((x - start) / (full - start), 0.0, 1.0)


class _Function(NamedTuple):
    arguments: int
    apply: Callable[..., Any]
    meaning: str


FUNCTIONS = {
    "abs": _Function(1, np.abs, "abs(x): x without its sign"),
    "sqrt": _Function(1, np.sqrt, "sqrt(x): square root"),
    "exp": _Function(1, np.exp, "exp(x)"),
    "log": _Function(1, np.log, "log(x): natural logarithm"),
    "tanh": _Function(1, np.tanh, "tanh(x): -1 to 1"),
    "sin": _Function(1, np.sin, "sin(x), x in radians"),
    "cos": _Function(1, np.cos, "cos(x), x in radians"),
    "min": _Function(2, np.minimum, "min(x, y): the smaller"),
    "max": _Function(2, np.maximum, "max(x, y): the larger"),
    "clip": _Function(3, np.clip, "clip(x, low, high): x kept between low and high"),
    "ramp": _Function(3, _ramp, "ramp(x, a, b): 0 at a, 1 at b, a straight line between"),
}
_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<symbol>\*\*|<=|>=|[-+*/<>(),])"
)


class _Step(NamedTuple):
    """Take `arguments` values from the stack and put one back; a load takes none."""

    arguments: int
    apply: Callable[..., Any] | None
    load: float | str = 0.0


@dataclass(frozen=True)
class Formula:
    """A formula that was understood."""

    text: str
    names: frozenset[str]
    """The quantities it looks at."""
    steps: tuple[_Step, ...]

    def __call__(self, quantities: Mapping[str, Any]) -> Array:
        """Its value for quantities of any one shape. It may be infinite or not a number."""
        stack: list[Array] = []
        with np.errstate(all="ignore"):
            for step in self.steps:
                if step.apply is None:
                    value = quantities[step.load] if isinstance(step.load, str) else step.load
                else:
                    arguments = stack[-step.arguments :]
                    del stack[-step.arguments :]
                    value = step.apply(*arguments)
                stack.append(np.asarray(value, np.float64))
        return np.broadcast_to(stack[-1], np.shape(quantities[next(iter(self.names))]))


def parse(text: str, names: Collection[str]) -> Formula:
    """The formula in `text` over quantities of these names; a UserError says what is wrong."""
    if len(text) > MAX_LENGTH:
        raise UserError(f"the formula is {len(text):,} characters long; at most {MAX_LENGTH}")
    tokens = _tokens(text)
    if not tokens:
        raise UserError(f"write a formula of {', '.join(names)}")
    return _Parser(text, tokens, names).parse()


class _Token(NamedTuple):
    kind: str
    text: str
    place: int
    """Its first character, counted from 1."""


def _tokens(text: str) -> list[_Token]:
    tokens, place = [], 0
    while place < len(text):
        if text[place] in " \t":
            place += 1
            continue
        found = _TOKEN.match(text, place)
        if found is None:
            raise UserError(f"{text[place]!a} has no meaning here (character {place + 1})")
        tokens.append(_Token(str(found.lastgroup), found.group(), place + 1))
        place = found.end()
    return tokens


class _Parser:
    """Recursive descent, one method a line of the grammar, into postfix steps."""

    def __init__(self, text: str, tokens: list[_Token], names: Collection[str]):
        self.text, self.tokens, self.names = text, tokens, names
        self.next = 0
        self.depth = 0
        self.operations = 0
        self.steps: list[_Step] = []
        self.used: set[str] = set()

    def parse(self) -> Formula:
        self.formula()
        if self.next < len(self.tokens):
            raise self.unexpected()
        if not self.used:
            raise UserError(f"the formula looks at nothing; use {', '.join(self.names)}")
        return Formula(self.text.strip(), frozenset(self.used), tuple(self.steps))

    def formula(self) -> None:
        self.sum()
        if (symbol := self.take("<", "<=", ">", ">=")) is not None:
            self.sum()
            self.emit(2, _OPERATORS[symbol])

    def sum(self) -> None:
        self.product()
        while (symbol := self.take("+", "-")) is not None:
            self.product()
            self.emit(2, _OPERATORS[symbol])

    def product(self) -> None:
        self.signed()
        while (symbol := self.take("*", "/")) is not None:
            self.signed()
            self.emit(2, _OPERATORS[symbol])

    def signed(self) -> None:
        # Everything that nests passes through here.
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UserError(f"the formula is nested too deeply; at most {MAX_DEPTH} levels")
        symbol = self.take("+", "-")
        if symbol is None:
            self.power()
        else:
            self.signed()
            if symbol == "-":
                self.emit(1, np.negative)
        self.depth -= 1

    def power(self) -> None:
        self.atom()
        if (symbol := self.take("**")) is not None:
            self.signed()
            self.emit(2, _OPERATORS[symbol])

    def atom(self) -> None:
        token = self.tokens[self.next] if self.next < len(self.tokens) else None
        if token is None:
            raise UserError("the formula ends too early")
        self.next += 1
        if token.kind == "number":
            value = float(token.text)
            if not np.isfinite(value):
                raise UserError(f"{_short(token.text)} is too large a number")
            self.steps.append(_Step(0, None, value))
        elif token.kind == "name" and self.take("(") is not None:
            self.call(token)
        elif token.kind == "name":
            if token.text not in self.names:
                raise UserError(f"unknown name {_short(token.text)}; use {', '.join(self.names)}")
            self.used.add(token.text)
            self.steps.append(_Step(0, None, token.text))
        elif token.text == "(":
            self.formula()
            self.close()
        else:
            self.next -= 1
            raise self.unexpected()

    def call(self, token: _Token) -> None:
        if token.text not in FUNCTIONS:
            known = ", ".join(FUNCTIONS)
            raise UserError(f"unknown function {_short(token.text)}; use {known}")
        function, given = FUNCTIONS[token.text], 1
        self.formula()
        while self.take(",") is not None:
            self.formula()
            given += 1
        self.close()
        if given != function.arguments:
            raise UserError(f"{token.text} takes {function.arguments} values, not {given}")
        self.emit(given, function.apply)

    def close(self) -> None:
        if self.take(")") is None:
            raise (
                self.unexpected()
                if self.next < len(self.tokens)
                else UserError("a bracket is not closed")
            )

    def take(self, *symbols: str) -> str | None:
        """The next token if it is one of these symbols."""
        if self.next < len(self.tokens):
            token = self.tokens[self.next]
            if token.kind == "symbol" and token.text in symbols:
                self.next += 1
                return token.text
        return None

    def emit(self, arguments: int, apply: Callable[..., Any]) -> None:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise UserError(f"the formula has too many operations; at most {MAX_OPERATIONS}")
        self.steps.append(_Step(arguments, apply))

    def unexpected(self) -> UserError:
        token = self.tokens[self.next]
        return UserError(f"did not expect {_short(token.text)} (character {token.place})")


def _short(text: str) -> str:
    return repr(text if len(text) <= 24 else text[:24] + "...")
