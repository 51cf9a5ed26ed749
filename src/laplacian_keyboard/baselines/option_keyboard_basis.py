"""The option keyboard on given features, and the behaviors that linear support finds for it (OKB).

Where features phi of a transition are given, a task is a weight vector w on the simplex, and a
behavior that collects v = E[sum phi] earns v . w. The best of several behaviors earns
max_i v_i . w: a convex surface over the simplex, flat but for creases. It can only be raised, and
most of all at a corner, where creases meet; so the corners are the only weights worth a try.

    linear support:  which behaviors are best for some w                   `linear_support`
      solve the corners of the simplex: one behavior for each feature
      loop:
        w = the corner of the surface with the largest possible gain; stop if that is nothing
        solve w;  v joins the surface

    OKB:  which behaviors the keyboard needs, to be best for every w        `keyboard_basis`
      behaviors = one for each feature                                     (this alone is SIP)
      loop:
        surface = linear support on what the keyboard of `behaviors` earns
        w = the corner of the surface where a behavior of its own would gain most over the
            keyboard; stop if that is nothing
        behaviors += one trained for w

A keyboard earns at least as much as the best of its behaviors, and mostly more, so OKB needs fewer
of them than linear support does. The method is that of Alegre et al. (2025), linear support that of
Roijers (2016).

| symbol | here | meaning |
|---|---|---|
| w | w, weights | a task: d numbers of at least 0 that sum to 1 |
| v | value, values | features a behavior collects on average, (d,) and (n, d) |
| d | num_features | number of features; to allow negative weights, `mirror` the features |

Training, the keyboard's meta-policy and its evaluation are callables: networks in an experiment,
exact planners in the tests. Arrays are NumPy float64.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.spatial
from jax import Array
from jaxtyping import Float

Behavior = TypeVar("Behavior")

TOLERANCE = 1e-6
"""Gains up to this are none. Values are thought to be of the order of 1."""


class Support(NamedTuple, Generic[Behavior]):
    """Solutions that together are best for every w; none of them can be spared."""

    weights: np.ndarray
    """The tasks they were found for, `(n, d)`."""
    values: np.ndarray
    """What they collect, `(n, d)`."""
    behaviors: list[Behavior]


class Basis(NamedTuple, Generic[Behavior]):
    """The behaviors of a keyboard, and what the keyboard earns with them."""

    weights: np.ndarray
    """The tasks they were trained for, `(n, d)`."""
    behaviors: list[Behavior]
    values: np.ndarray
    """What the keyboard collects on the tasks that shape its surface, `(m, d)`."""


def independent_weights(num_features: int) -> np.ndarray:
    """The corners of the simplex, `(d, d)`: one task for each feature (SIP, the set of independent
    policies)."""
    return np.eye(num_features)


def surface(values: np.ndarray, w: np.ndarray) -> np.ndarray:
    """`max_i v_i . w`, shape `(...,)` for w `(..., d)`."""
    return (np.asarray(w) @ np.asarray(values).T).max(axis=-1)


def corner_weights(values: np.ndarray) -> np.ndarray:
    """The weights `(m, d)` at the corners of the surface of `values` `(n, d)`, those of the simplex
    included.

    They are the vertices of the polyhedron above the surface, `u >= v_i . w` for all i. The last
    weight is one minus the others, which leaves d - 1 weights and the height u; a lid closes the
    polyhedron, and its own vertices are dropped.
    """
    values = np.asarray(values, np.float64)
    num_features = values.shape[1]
    if num_features == 1:
        return np.ones((1, 1))
    # Shifting or scaling all values moves no corner; it makes tolerances mean the same everywhere.
    heights = values - values.min()
    heights = np.unique(np.round(heights / max(heights.max(), 1e-300), 12), axis=0)
    free = num_features - 1
    lid, unit = 2.0, np.eye(free)
    column = np.ones((len(heights), 1))
    halfspaces = np.concatenate(
        [
            np.hstack([heights[:, :-1] - heights[:, -1:], -column, heights[:, -1:]]),
            np.hstack([-unit, np.zeros((free, 2))]),  # the free weights are not negative,
            np.hstack([np.ones(free), 0.0, -1.0])[None],  # nor is the last one
            np.hstack([np.zeros(free), 1.0, -lid])[None],
        ]
    )
    inside = np.append(np.full(free, 1.0 / num_features), (1.0 + lid) / 2)
    vertices = scipy.spatial.HalfspaceIntersection(halfspaces, inside).intersections
    vertices = vertices[vertices[:, -1] < (1.0 + lid) / 2]
    weights = np.hstack([vertices[:, :-1], 1.0 - vertices[:, :-1].sum(axis=1, keepdims=True)])
    # Where many creases meet the vertex is found many times, with different rounding errors.
    weights = np.unique(np.clip(np.round(weights, 9), 0.0, 1.0), axis=0)
    return weights / weights.sum(axis=1, keepdims=True)


def optimistic_value(weights: np.ndarray, heights: np.ndarray, w: np.ndarray) -> float:
    """The most that any behavior can earn on w, when none earns more than `heights` `(n,)` on
    `weights` `(n, d)`: a linear program. Infinite where these say nothing about w."""
    answer = scipy.optimize.linprog(-np.asarray(w), weights, heights, bounds=(None, None))
    if answer.status == 3:  # unbounded
        return float("inf")
    if answer.status != 0:
        raise RuntimeError(f"no bound on the value of {w}: {answer.message}")
    return -float(answer.fun)


def undominated(values: np.ndarray, *, tolerance: float = TOLERANCE) -> np.ndarray:
    """The indices of the values that are better than all others for some w; of equal ones the
    first. For each, a linear program looks for the w where its lead is largest."""
    values = np.asarray(values, np.float64)
    distinct: list[int] = []
    for i, value in enumerate(values):
        if all(np.abs(value - values[j]).max() > tolerance for j in distinct):
            distinct.append(i)
    kept = [i for i in distinct if _lead(values, i, distinct) > tolerance]
    # Some lead nowhere only because of each other: as many of them stay as are needed.
    while left := [i for i in distinct if i not in kept]:
        leads = [_lead(values, i, kept) for i in left]
        if max(leads) <= tolerance:
            break
        kept.append(left[int(np.argmax(leads))])
    return np.array(sorted(kept), int)


def _lead(values: np.ndarray, i: int, among: Sequence[int]) -> float:
    """The largest x with `(v_i - v_j) . w >= x` for all other j and some w."""
    others = [j for j in among if j != i]
    if not others:
        return float("inf")
    num_features = values.shape[1]
    answer = scipy.optimize.linprog(
        np.append(np.zeros(num_features), -1.0),
        A_ub=np.hstack([values[others] - values[i], np.ones((len(others), 1))]),
        b_ub=np.zeros(len(others)),
        A_eq=np.append(np.ones(num_features), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, None)] * num_features + [(None, None)],
    )
    return -float(answer.fun)


def linear_support(
    solve: Callable[[np.ndarray], tuple[Behavior, Any]],
    num_features: int,
    *,
    tolerance: float = TOLERANCE,
    exact: bool = True,
    max_solved: int | None = None,
) -> Support[Behavior]:
    """Solutions that are best for some w, found at the corners of their own surface.

    `solve(w)` returns a behavior that is best for w and the features it collects, `(d,)`. Then the
    result is the convex coverage set: on every w it misses at most `tolerance`. Where `solve` may
    fall short of the best, what it earned on one task bounds nothing on another; with `exact` false
    every corner is therefore solved. At most `max_solved` tasks are (None: no limit).
    """
    weights = list(independent_weights(num_features))
    behaviors, values = _solve_each(solve, weights)
    while max_solved is None or len(weights) < max_solved:
        known = np.stack(values)
        heights = surface(known, np.stack(weights))
        corners = corner_weights(known)
        gains = [optimistic_value(np.stack(weights), heights, w) for w in corners]
        gains = np.array(gains) - surface(known, corners)
        is_open = gains > tolerance if exact else ~_are_among(corners, np.stack(weights))
        if not is_open.any():
            break
        weights.append(corners[np.where(is_open, gains, -np.inf).argmax()])
        new_behaviors, new_values = _solve_each(solve, weights[-1:])
        behaviors, values = behaviors + new_behaviors, values + new_values
    needed = undominated(np.stack(values), tolerance=tolerance)
    return Support(
        np.stack(weights)[needed], np.stack(values)[needed], [behaviors[i] for i in needed]
    )


def _are_among(corners: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.abs(corners[:, None] - weights).max(axis=-1).min(axis=1) < TOLERANCE


def _solve_each(
    solve: Callable[[np.ndarray], tuple[Behavior, Any]], weights: list[np.ndarray]
) -> tuple[list[Behavior], list[np.ndarray]]:
    solved = [solve(w) for w in weights]
    return [behavior for behavior, _ in solved], [np.asarray(v, np.float64) for _, v in solved]


def keyboard_basis(
    train: Callable[[np.ndarray], Behavior],
    play: Callable[[list[Behavior], np.ndarray], Any],
    gain: Callable[[list[Behavior], np.ndarray], float],
    num_features: int,
    *,
    tolerance: float = TOLERANCE,
    max_behaviors: int | None = None,
    max_solved: int | None = None,
) -> Basis[Behavior]:
    """Behaviors whose keyboard is best for every w.

    `train(w)` returns a behavior for w. `play(behaviors, w)` returns the features `(d,)` that the
    keyboard of these behaviors collects on w, its meta-policy trained for it. `gain(behaviors, w)`
    is how much more than this keyboard a behavior of its own would earn on w, at best a cheap
    estimate (`positive_advantage`). With `max_behaviors` of d the result is SIP; `max_solved`
    limits the tasks on which each keyboard is tried.
    """
    weights = list(independent_weights(num_features))
    behaviors = [train(w) for w in weights]
    while True:
        support = linear_support(
            lambda w, behaviors=behaviors: (None, play(behaviors, w)),
            num_features,
            tolerance=tolerance,
            exact=False,
            max_solved=max_solved,
        )
        basis = Basis(np.stack(weights), behaviors, support.values)
        if max_behaviors is not None and len(behaviors) >= max_behaviors:
            return basis
        corners = corner_weights(support.values)
        gains = np.array([gain(behaviors, w) for w in corners])
        if gains.max() <= tolerance:
            return basis
        weights.append(corners[gains.argmax()])
        behaviors = [*behaviors, train(weights[-1])]


def positive_advantage(q: np.ndarray, v: np.ndarray) -> float:
    """How much a behavior would gain over the keyboard where it gains: the mean over n states of
    `max(0, max_a q(s, a) - v(s))`, for the behavior's values q `(n, a)` and the keyboard's v
    `(n,)` on one task."""
    return float(np.maximum(np.asarray(q).max(axis=1) - np.asarray(v), 0.0).mean())


def mirror(phi: Float[Array, "*b d"]) -> Float[Array, "*b m"]:
    """Features and their negatives, m = 2d: a task on the simplex can then dislike a feature."""
    return jnp.concatenate([phi, -phi], axis=-1)


def fold(w: np.ndarray) -> np.ndarray:
    """The weights `(..., d)` on the features themselves, from weights `(..., 2d)` on mirrored
    features."""
    positive, negative = np.split(np.asarray(w), 2, axis=-1)
    return positive - negative
