"""The reward language: what it computes, and that nothing hurts it."""

import ast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laplacian_keyboard.bench.hostile_formulas import hostile_formulas
from laplacian_keyboard.envs import tasks
from laplacian_keyboard.play.bodies import named_quantities
from laplacian_keyboard.play.formula import FUNCTIONS, MAX_LENGTH, parse
from laplacian_keyboard.types import UserError

NAMES = ("speed", "height", "upright", "angular_momentum")


def some_states(names=NAMES, count=50):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=count) for name in names}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("speed", 3.0),
        ("-speed ** 2", -9.0),
        ("(-speed) ** 2", 9.0),
        ("2 ** speed ** 2", 512.0),
        ("2 ** -1 * speed", 1.5),
        ("speed - 1 - 1", 1.0),
        ("speed / 2 / 3", 0.5),
        ("1 + speed * 2", 7.0),
        ("- - speed", 3.0),
        ("speed > 2", 1.0),
        ("-(speed >= 3) + 1", 0.0),
        ("(speed < 2) * 5", 0.0),
        ("ramp(speed, 0, 10)", 0.3),
        ("ramp(speed, 0, -10)", 0.0),
        ("clip(speed, 0, 1) + min(speed, 1) + max(speed, 4)", 6.0),
        ("1.5e1 * speed + .5", 45.5),
        ("  speed\t* height ", 6.0),
    ],
)
def test_values(text, expected):
    assert parse(text, NAMES)({"speed": 3.0, "height": 2.0}) == pytest.approx(expected)


@pytest.mark.parametrize("domain", tasks.DOMAINS)
def test_the_domains_own_rewards_can_be_written(domain):
    found = named_quantities(domain, some_states(tuple(tasks.quantities_of(domain))))
    for name in tasks.tasks_of(domain):
        task = tasks.find_task(domain, name)
        written = parse(task.formula, found)(found)
        np.testing.assert_allclose(written, task.reward(found), atol=1e-12)


def test_ten_thousand_hostile_formulas_are_refused_or_harmless():
    states, refused = some_states(), 0
    for text in hostile_formulas(NAMES, 10_000, seed=1):
        try:
            values = parse(text, NAMES)(states)
        except UserError as error:
            message = str(error)
            refused += 1
            assert 0 < len(message) < 300 and "\n" not in message and message.isprintable()
        else:
            assert values.shape == (50,) and values.dtype == np.float64
            assert len(text) <= MAX_LENGTH
    assert refused > 9_000


def expressions():
    """Formulas that mean something, with what Python says they are."""
    leaves = st.sampled_from(NAMES) | st.floats(0, 100).map(lambda x: f"{x:.3f}")

    def grow(inner):
        pair = st.tuples(inner, st.sampled_from("+-*"), inner)
        return (
            pair.map(lambda t: f"({t[0]} {t[1]} {t[2]})")
            | pair.map(lambda t: f"{t[0]} {t[1]} {t[2]}")
            | inner.map(lambda x: f"abs({x})")
            | inner.map(lambda x: f"-{x}")
            | st.tuples(inner, inner).map(lambda t: f"min({t[0]}, {t[1]})")
        )

    return st.recursive(leaves, grow, max_leaves=8)


def python_value(node, known):
    """What Python's own grammar makes of a formula."""
    inner = lambda child: python_value(child, known)  # noqa: E731
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return known[name]
        case ast.Call(ast.Name(name), arguments):
            return known[name](*map(inner, arguments))
        case ast.UnaryOp(ast.USub(), operand):
            return -inner(operand)
        case ast.BinOp(left, ast.Add(), right):
            return inner(left) + inner(right)
        case ast.BinOp(left, ast.Sub(), right):
            return inner(left) - inner(right)
        case ast.BinOp(left, ast.Mult(), right):
            return inner(left) * inner(right)


@given(expressions())
@settings(max_examples=200, deadline=None)
def test_it_agrees_with_python(text):
    states = some_states(count=1)
    known = {name: float(value[0]) for name, value in states.items()} | {"abs": abs, "min": min}
    try:
        value = parse(text, NAMES)(states)[0]
    except UserError as error:
        assert any(word in str(error) for word in ("nothing", "deeply", "long", "operations"))
    else:
        expected = python_value(ast.parse(text, mode="eval").body, known)
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.text(max_size=2 * MAX_LENGTH))
@example("speed" * 100)
@settings(max_examples=300, deadline=None)
def test_any_text_is_understood_or_refused(text):
    try:
        formula = parse(text, NAMES)
    except UserError as error:
        assert str(error)
    else:
        assert formula.names <= set(NAMES)
        assert formula(some_states()).shape == (50,)


def test_every_function_is_explained_and_works():
    for name, function in FUNCTIONS.items():
        arguments = ", ".join(["speed"] * function.arguments)
        assert function.meaning.startswith(f"{name}(")
        assert parse(f"{name}({arguments})", NAMES)({"speed": np.array([0.5])}).shape == (1,)
