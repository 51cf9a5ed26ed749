"""Linear support and the option keyboard's basis, on problems whose answers are known."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_keyboard import gpi, spectral
from laplacian_keyboard.baselines import option_keyboard_basis as okb

GAMMA = 0.9


def points(seed: int, count: int, num_features: int) -> np.ndarray:
    """Values in general position, many of them on the outside."""
    rng = np.random.default_rng(seed)
    directions = np.abs(rng.standard_normal((count, num_features)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return directions * rng.uniform(0.9, 1.0, (count, 1)) - rng.uniform(0, 1, num_features)


def coverage_set(values: np.ndarray) -> set[int]:
    """The points that are best for some w of at least 0: the vertices of their convex hull when
    everything below them counts as part of it."""
    num_features = values.shape[1]
    below = [values - 1e3 * unit for unit in np.eye(num_features)]
    hull = scipy.spatial.ConvexHull(np.concatenate([values, *below]))
    return {int(i) for i in hull.vertices if i < len(values)}


def simplex(num_features: int, count: int = 500, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(num_features), count)


problems = st.tuples(st.integers(0, 2**31 - 1), st.integers(1, 8), st.integers(2, 4))


@settings(max_examples=20, deadline=None)
@given(problems)
def test_the_surface_is_a_plane_between_its_corners(problem):
    """No point of the surface lies above the hull of its corners: the corners miss no crease."""
    values = points(*problem)
    corners = okb.corner_weights(values)
    np.testing.assert_allclose(corners.sum(axis=1), 1.0)
    assert (corners >= 0).all()
    for unit in np.eye(values.shape[1]):
        assert np.abs(corners - unit).max(axis=1).min() < 1e-9, "the simplex has its own corners"
    heights = okb.surface(values, corners)
    for w in simplex(values.shape[1], 20):
        lowest = okb.optimistic_value(corners, heights, w)
        assert lowest == pytest.approx(float(okb.surface(values, w)), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(problems)
def test_at_an_inner_corner_as_many_values_are_equal_as_there_are_features(problem):
    values = points(*problem)
    for w in okb.corner_weights(values):
        best = np.sum(values @ w > okb.surface(values, w) - 1e-6)
        assert best + np.sum(w < 1e-9) >= values.shape[1]


def test_corners_of_two_features_are_where_lines_cross():
    values = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.8], [0.1, 0.1]])
    corners = okb.corner_weights(values)
    # (1, 0) and (.8, .8) cross where w_0 = .8; the last value is nowhere the best.
    np.testing.assert_allclose(corners, [[0, 1], [0.2, 0.8], [0.8, 0.2], [1, 0]], atol=1e-9)
    np.testing.assert_allclose(okb.corner_weights(values[:2]), [[0, 1], [0.5, 0.5], [1, 0]])
    np.testing.assert_allclose(okb.corner_weights(values[:1]), [[0, 1], [1, 0]])
    np.testing.assert_allclose(okb.corner_weights(np.zeros((2, 3))), np.eye(3)[::-1])
    assert okb.corner_weights(np.array([[3.0], [4.0]])).tolist() == [[1.0]]


@settings(max_examples=30, deadline=None)
@given(problems, st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_units_and_offsets_of_the_values_move_no_corner(problem, offset, scale):
    values = points(*problem)
    np.testing.assert_allclose(
        okb.corner_weights(values * scale + offset), okb.corner_weights(values), atol=1e-6
    )


def test_optimism_is_bounded_by_what_is_known():
    weights, heights = np.eye(2), np.array([1.0, 2.0])
    assert okb.optimistic_value(weights, heights, np.array([0.5, 0.5])) == pytest.approx(1.5)
    assert okb.optimistic_value(weights, heights, np.array([1.0, 0.0])) == pytest.approx(1.0)
    assert okb.optimistic_value(weights[:1], heights[:1], np.array([0.5, 0.5])) == float("inf")


@settings(max_examples=30, deadline=None)
@given(problems)
def test_undominated_values_are_the_outer_ones(problem):
    values = points(*problem)
    assert set(okb.undominated(values, tolerance=1e-9).tolist()) == coverage_set(values)


def test_of_equal_values_the_first_is_kept():
    values = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.2, 0.2]])
    # (.5, .5) only ties with the two others, at one weight.
    assert okb.undominated(values).tolist() == [1, 2]
    assert okb.undominated(values[:1]).tolist() == [0]


def test_values_that_hide_each_other_do_not_all_go():
    """Each leads by less than the tolerance while the others are there."""
    values = np.array([[0.0, 0.09], [0.045, 0.045], [0.09, 0.0]])
    kept = okb.undominated(values, tolerance=0.05)
    lines = np.linspace(0.0, 1.0, 101)[:, None] * [1.0, -1.0] + [0.0, 1.0]
    assert (okb.surface(values, lines) - okb.surface(values[kept], lines)).max() <= 0.05


@settings(max_examples=15, deadline=None)
@given(problems)
def test_linear_support_finds_exactly_the_coverage_set(problem):
    values = points(*problem)
    solved = []

    def solve(w):
        solved.append(w)
        best = int(np.argmax(values @ w))
        return best, values[best]

    support = okb.linear_support(solve, values.shape[1], tolerance=1e-9)
    assert sorted(support.behaviors) == sorted(coverage_set(values))
    np.testing.assert_array_equal(support.values, values[support.behaviors])
    assert len(support.weights) == len(support.behaviors)
    ways = simplex(values.shape[1])
    np.testing.assert_allclose(
        okb.surface(support.values, ways), okb.surface(values, ways), atol=1e-8
    )
    # A corner is solved only if something may be gained there, so never twice.
    apart = scipy.spatial.distance.pdist(np.array(solved))
    assert apart.min() > 1e-9


def test_linear_support_on_a_corridor_of_treasures():
    """Treasures i steps away; features are the treasure and the time. The best ones by hand: the
    treasures on the upper hull of (steps, size), and of these all but those at equal slope."""
    size = {1: 1.0, 2: 8.0, 3: 9.0, 4: 13.0, 5: 14.0, 6: 14.5}
    values = np.array([[size[i], -float(i)] for i in size])

    def solve(w):
        best = int(np.argmax(values @ w))
        return best + 1, values[best]

    # From 1 to 2 the slope is 7, from 2 to 4 it is 5/2, from 4 to 5 it is 1, from 5 to 6 it is 1/2.
    assert sorted(okb.linear_support(solve, 2).behaviors) == [1, 2, 4, 5, 6]


def test_linear_support_stops_where_it_is_told():
    values = points(0, 12, 3)
    solve = lambda w: (None, values[np.argmax(values @ w)])  # noqa: E731
    assert len(okb.linear_support(solve, 3, max_solved=4).values) <= 4
    everything = okb.linear_support(solve, 3, tolerance=100.0)
    assert len(everything.values) <= 3, "no gain is worth the trouble"


class Mdp:
    """A random MDP with exact planning: behaviors are policies with their psi."""

    def __init__(self, seed: int, num_features: int, num_states: int = 5, num_actions: int = 3):
        rng = np.random.default_rng(seed)
        dynamics = rng.random((num_actions, num_states, num_states)) ** 6
        self.dynamics = dynamics / dynamics.sum(axis=-1, keepdims=True)
        self.phi = rng.standard_normal((num_states, num_features))

    def policy(self, w):
        """An optimal policy, as actions."""
        reward = self.phi @ w
        v = spectral.value_iteration(self.dynamics, reward, GAMMA)
        return spectral.greedy_policy(self.dynamics, reward, v, GAMMA)

    def psi(self, policy):
        return spectral.successor_features(self.dynamics, policy, self.phi, GAMMA)

    def value(self, policy):
        """Features collected from a uniformly random first state."""
        return self.psi(policy)[np.arange(len(policy)), policy].mean(axis=0)

    def best(self, w):
        return float(self.value(self.policy(w)) @ w)

    def train(self, w):
        return self.psi(self.policy(w))

    def play(self, behaviors, w):
        """The keyboard that always plays the chord w."""
        stacked = jnp.asarray(np.stack(behaviors, axis=1))
        q = gpi.evaluate(stacked, jnp.broadcast_to(jnp.asarray(w), (len(stacked), len(w))))
        return self.value(np.asarray(gpi.improve(q)))

    def gain(self, behaviors, w):
        return self.best(w) - float(self.play(behaviors, w) @ w)


@pytest.mark.parametrize(("seed", "num_features"), [(0, 2), (2, 2), (4, 2), (0, 3)])
def test_the_keyboard_of_the_basis_is_best_for_every_task(seed, num_features):
    mdp = Mdp(seed, num_features)
    basis = okb.keyboard_basis(mdp.train, mdp.play, mdp.gain, num_features, tolerance=1e-4)
    for w in simplex(num_features, 20):
        assert float(okb.surface(basis.values, w)) == pytest.approx(mdp.best(w), abs=1e-3)
    assert len(basis.behaviors) == len(basis.weights)
    solve = lambda w: (None, mdp.value(mdp.policy(w)))  # noqa: E731
    coverage = okb.linear_support(solve, num_features)
    # A task that one policy solves for every w still costs the first behavior of each feature.
    assert len(basis.behaviors) <= max(num_features, len(coverage.values) - 1)


def test_independent_policies_are_the_basis_without_a_search():
    mdp = Mdp(0, 3)
    trained = []
    train = lambda w: (trained.append(w.tolist()), mdp.train(w))[1]  # noqa: E731
    basis = okb.keyboard_basis(train, mdp.play, mdp.gain, 3, max_behaviors=3, max_solved=5)
    assert trained == np.eye(3).tolist() == basis.weights.tolist()
    np.testing.assert_array_equal(okb.independent_weights(3), np.eye(3))


def test_the_next_behavior_is_trained_where_the_keyboard_gains_most():
    """A keyboard that is only as good as its best behavior has to learn all of the set; it begins
    with the largest gain."""
    values = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.5], [0.5, 0.9]])
    solve = lambda w: int(np.argmax(np.round(values @ w, 9)))  # noqa: E731
    play = lambda behaviors, w: values[max(behaviors, key=lambda b: values[b] @ w)]  # noqa: E731
    gain = lambda behaviors, w: float(  # noqa: E731
        (values @ w).max() - play(behaviors, w) @ w
    )
    basis = okb.keyboard_basis(solve, play, gain, 2)
    assert sorted(basis.behaviors) == [0, 1, 2, 3] and set(basis.behaviors[:2]) == {0, 1}
    np.testing.assert_allclose(basis.weights[2], [0.5, 0.5])
    with_two = okb.keyboard_basis(solve, play, gain, 2, tolerance=0.3)
    assert sorted(with_two.behaviors) == [0, 1], "a gain of 0.2 is not worth a behavior"


def test_only_positive_advantages_count():
    q = np.array([[1.0, 3.0], [0.0, 0.0], [2.0, 1.0]])
    assert okb.positive_advantage(q, np.array([1.0, 5.0, 2.0])) == pytest.approx(2 / 3)


def test_mirrored_features_allow_dislikes():
    phi, w = np.array([[1.0, 2.0], [0.0, -3.0]]), np.array([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(okb.mirror(phi) @ w, phi @ okb.fold(w), rtol=1e-5)
    np.testing.assert_allclose(okb.fold(w), [-0.2, -0.2])
