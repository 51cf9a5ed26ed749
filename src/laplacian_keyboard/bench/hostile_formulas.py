"""Formulas that nobody means well with: what `lk play` must refuse, or at least survive."""

from collections.abc import Iterator

import numpy as np

MEGABYTE = 2**20
PIECES = (
    *"()+-*/,<>=.[]{}:;'\"\\@!~^%&|#$?_ \t\n\0",
    *("**", "//", "<=", ">=", "==", "!=", ":=", "->", "..", "__", "0x", "1e", "1e999", "9" * 60),
    *("if", "else", "for", "in", "lambda", "and", "or", "not", "is", "None", "True", "import"),
    *("eval", "exec", "open", "getattr", "__import__", "__class__", "os", "self", "np", "inf"),
    *("abs", "sqrt", "exp", "log", "tanh", "sin", "cos", "min", "max", "clip", "ramp", "nan"),
    *("0", "1", "2", "0.5", ".5", "1.", "1e3", "-1", "1j", "0b1", "1_000", "1e308"),
    *(
        "е",
        "ѕ",
        "х",
        "ｓ",
        "１",
        "２",
        "²",
        "∞",
        "π",
        "−",
        "×",
        "·",
        "⁄",
        "＊",
        "（",
        "ⅷ",
        "𝟏",
        "\u202e",
    ),
    *("\ud800", "\u200b", "\ufeff", "\x1b", "é", "e\u0301", "٣", "१"),
)


def hostile_formulas(names: tuple[str, ...], count: int, seed: int) -> Iterator[str]:
    """`count` formulas: those made by hand first, then random ones of ever more pieces."""
    made = list(by_hand(names[0]))
    yield from made[:count]
    rng = np.random.default_rng(seed)
    pieces = (*PIECES, *names, *names, *names)
    for _ in range(count - len(made)):
        length = int(rng.integers(1, 40))
        glue = rng.choice(["", " "])
        yield str(glue).join(pieces[i] for i in rng.integers(len(pieces), size=length))


def by_hand(name: str) -> Iterator[str]:
    """Attacks on parsers and evaluators, over a quantity called `name`."""
    yield from ("", " ", "\n", "\0", "()", ")(", ",", "-", "1", "1+1", "0*1", "exp(1)")
    # Ways out of Python's eval.
    yield "__import__('os').system('true')"
    yield f"{name}.__class__.__mro__[1].__subclasses__()"
    yield f"{name}.tofile('x')"
    yield "().__class__.__bases__[0]"
    yield "(lambda: 0)()"
    yield "[x for x in (1,)]"
    yield f"{name} if {name} else 0"
    yield "open('/etc/passwd').read()"
    yield "eval('1')"
    yield f"{name}; import os"
    yield f"({name} := 1)"
    yield f"f'{{{name}}}'"
    yield "os:system"
    # Numbers that grow.
    yield "9**9**9**9**9**9**9"
    yield f"{name}**9**9**9"
    yield f"10**10**10*{name}"
    yield f"{name}**" + "9" * 200
    yield "1e999999999*" + name
    yield f"exp(exp(exp(exp({name} + 9))))"
    yield f"{name} / 0"
    yield f"log(-1 - abs({name}))"
    yield f"{name} * 1e308 * 1e308"
    yield f"({name} - {name}) / ({name} - {name})"
    yield f"sqrt(-1 - {name} ** 2)"
    # Depth and length.
    for depth in (10, 16, 17, 100, 10_000, MEGABYTE):
        yield "(" * depth + name + ")" * depth
        yield "-" * depth + name
        yield "abs(" * depth + name + ")" * depth
        yield f"{name}**" * depth + name
        yield f"{name}+" * depth + name
        yield "(" * depth
        yield ")" * depth
    yield name * MEGABYTE
    yield " " * MEGABYTE + name
    yield "9" * MEGABYTE
    yield "\n" * 5 * MEGABYTE
    yield "é" * 10 * MEGABYTE
    yield "max(" + ",".join([name] * 100) + ")"
    yield "max(" + ",".join([name] * MEGABYTE) + ")"
    # Look-alikes: Cyrillic, full width, mathematical, combining, invisible, right to left.
    yield name.replace("e", "е").replace("x", "х")
    yield "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in name)
    yield "".join(chr(ord(c) - 97 + 0x1D41A) if "a" <= c <= "z" else c for c in name)
    yield f"{name} * ２"
    yield f"{name} − 1"
    yield f"{name}²"
    yield f"{name}\u200b + 1"
    yield f"\u202e{name}"
    yield f"{name}\ud800"
    yield f"{name} * ∞"
    # Slips.
    yield from (f"{name} {name}", f"2{name}", f"{name}(1)", f"{name}[0]", f"{name} ** ** 2")
    yield from ("abs", "abs()", f"abs({name}", f"abs({name}, 1)", f"max({name})", f"min({name},)")
    yield from (f"{name} < 1 < 2", f"{name} == 1", f"{name} = 1", f"{name} and 1", f"not {name}")
