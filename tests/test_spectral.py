"""The exact oracle against closed forms and independent computations, one equation a test."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laplacian_keyboard import spectral
from laplacian_keyboard.envs.grid import GridMap, maze

quickly = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
gammas = st.floats(0.0, 0.95)


@st.composite
def maps(draw, most: int = 6) -> GridMap:
    """Any map of a few cells, connected or not."""
    rows, columns = draw(st.integers(1, most)), draw(st.integers(2, most))
    line = st.text("#..", min_size=columns, max_size=columns)
    lines = draw(st.lists(line, min_size=rows, max_size=rows))
    assume(any("." in line for line in lines))
    return GridMap(tuple(lines))


def room(rows: int, columns: int) -> GridMap:
    return GridMap(tuple("." * columns for _ in range(rows)))


def walk(grid: GridMap, *, sparse: bool = False):
    """Transitions of the uniform random walk: doubly stochastic, since moves can be undone."""
    return spectral.transition_matrix(grid.next_states(), sparse=sparse)


def path_eigenvalues(n: int) -> np.ndarray:
    """Of the uniform walk of four actions on a line, where two of them stay."""
    return (1 - np.cos(np.pi * np.arange(n) / n)) / 2


def value_error(dynamics, reward, basis, gamma, terminal=None) -> float:
    """`|v* - v*_k|_inf`."""
    rebuilt = spectral.reconstruct(basis, reward)
    exact, approximate = (
        spectral.value_iteration(dynamics, r, gamma, terminal=terminal) for r in (reward, rebuilt)
    )
    return np.max(np.abs(exact - approximate))


def random_dynamics(rng: np.random.Generator, num_states: int, num_actions: int) -> np.ndarray:
    """Probabilities `(a, s, s)` of a random world."""
    return rng.dirichlet(np.full(num_states, 0.5), (num_actions, num_states))


def one_hot(table: np.ndarray) -> np.ndarray:
    """A table of next states as probabilities."""
    return np.moveaxis(np.eye(len(table))[table], 1, 0)


def value_of(dynamics, actions, r, gamma, terminal) -> np.ndarray:
    """A policy's value by one linear solve, written for probabilities only."""
    P = dynamics[actions, np.arange(len(actions))]
    return np.linalg.solve(np.eye(len(P)) - gamma * P @ np.diag(1.0 - terminal), P @ r)


@pytest.mark.parametrize("n", [2, 7, 30])
def test_a_path_has_the_eigenvalues_of_its_closed_form(n):
    basis = spectral.eigenbasis(spectral.laplacian(walk(room(1, n))))
    np.testing.assert_allclose(basis.eigenvalues, path_eigenvalues(n), atol=1e-12)


def test_a_room_has_the_eigenvalues_of_its_two_paths_summed():
    basis = spectral.eigenbasis(spectral.laplacian(walk(room(4, 6))))
    rows, columns = path_eigenvalues(4), path_eigenvalues(6)
    expected = np.sort(np.add.outer(rows, columns).ravel())
    np.testing.assert_allclose(basis.eigenvalues, expected, atol=1e-12)


@quickly
@given(maps())
def test_eigenvectors_are_ascending_orthonormal_solutions(grid):
    L = spectral.laplacian(walk(grid))
    values, vectors = spectral.eigenbasis(L)
    np.testing.assert_allclose(L @ vectors, vectors * values, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(grid.num_states), atol=1e-12)
    assert (np.diff(values) >= 0).all()
    assert abs(values[0]) < 1e-12


def test_the_first_eigenvector_of_a_connected_world_is_constant():
    grid = maze(4, 5)
    first = spectral.eigenbasis(spectral.laplacian(walk(grid)), 1).vectors[:, 0]
    np.testing.assert_allclose(first, grid.num_states**-0.5, atol=1e-12)


def test_the_largest_entry_of_every_eigenvector_is_positive():
    vectors = spectral.eigenbasis(spectral.laplacian(walk(maze(4, 5)))).vectors
    largest = np.argmax(np.abs(vectors), axis=0)
    assert (vectors[largest, np.arange(vectors.shape[1])] > 0).all()


@pytest.mark.parametrize("k", [0, -1, 7])
def test_k_outside_the_number_of_states_is_an_error(k):
    with pytest.raises(ValueError, match=f"between 1 and the number of states 6, not {k}"):
        spectral.eigenbasis(spectral.laplacian(walk(room(2, 3))), k)


@quickly
@given(maps(), seeds)
def test_graph_norm_is_the_quadratic_form_of_the_laplacian(grid, seed):
    P, f = walk(grid), np.random.default_rng(seed).standard_normal(grid.num_states)
    form = f @ spectral.laplacian(P) @ f
    assert spectral.graph_norm(P, f) == pytest.approx(np.sqrt(max(form, 0.0)), abs=1e-7)
    assert spectral.graph_norm(walk(grid, sparse=True), f) == spectral.graph_norm(P, f)


def test_graph_norm_of_a_step_counts_the_edges_it_crosses():
    # One edge, in both directions, of probability 1/4: 1/2 * 2 * 1/4.
    assert spectral.graph_norm(walk(room(1, 4)), [0, 0, 1, 1]) == pytest.approx(0.5)


@quickly
@given(maps(), seeds)
def test_coefficients_keep_the_energy_of_a_function(grid, seed):
    f = np.random.default_rng(seed).standard_normal(grid.num_states)
    coefficients = spectral.fourier(spectral.eigenbasis(spectral.laplacian(walk(grid))), f)
    assert coefficients @ coefficients == pytest.approx(f @ f)


@quickly
@given(maps(), seeds, st.data())
def test_reconstruction_error_is_the_energy_of_the_discarded_coefficients(grid, seed, data):
    f = np.random.default_rng(seed).standard_normal(grid.num_states)
    full = spectral.eigenbasis(spectral.laplacian(walk(grid)))
    k = data.draw(st.integers(1, grid.num_states))
    error = f - spectral.reconstruct(full.vectors[:, :k], f)
    discarded = spectral.fourier(full, f)[k:]
    assert error @ error == pytest.approx(discarded @ discarded, abs=1e-10)


@quickly
@given(maps(), seeds, gammas, st.sampled_from([0.0, 0.3]), st.data())
def test_value_error_is_below_the_tight_bound_and_that_below_the_theorems(
    grid, seed, gamma, fraction_terminal, data
):
    rng = np.random.default_rng(seed)
    reward = rng.standard_normal(grid.num_states)
    terminal = rng.random(grid.num_states) < fraction_terminal
    P = walk(grid)
    k = data.draw(st.integers(1, grid.num_states))
    basis = spectral.eigenbasis(spectral.laplacian(P), k)
    error = value_error(grid.next_states(), reward, basis, gamma, terminal)
    tight, theorem = spectral.value_bounds(P, reward, basis, gamma)
    assert error <= tight + 1e-8
    assert tight <= theorem + 1e-8


def test_bounds_have_the_papers_closed_form():
    P, reward = walk(room(1, 4)), np.array([0.0, 0.0, 1.0, 1.0])
    basis = spectral.eigenbasis(spectral.laplacian(P), 2)
    tight, theorem = spectral.value_bounds(P, reward, basis, 0.9)
    slope = np.cos(np.pi * (np.arange(4) + 0.5) / 4)
    rebuilt = 0.5 + slope * (slope @ reward) / (slope @ slope)
    assert tight == pytest.approx(np.max(np.abs(reward - rebuilt)) / 0.1)
    assert theorem == pytest.approx(0.5 / (0.1 * np.sqrt((1 - np.cos(np.pi / 4)) / 2)))


def test_the_theorem_says_nothing_with_the_constant_alone():
    P = walk(room(1, 4))
    basis = spectral.eigenbasis(spectral.laplacian(P), 1)
    assert spectral.value_bounds(P, [0, 0, 1, 1], basis, 0.9).theorem == np.inf


def leaning_dynamics(n: int = 6) -> np.ndarray:
    """A path whose two actions move by 1 and 2 to the right, and stay at the right end."""
    return np.minimum(np.arange(n)[:, None] + [1, 2], n - 1)


def test_a_matrix_that_is_not_doubly_stochastic_warns_and_keeps_what_the_docstring_says():
    dynamics = leaning_dynamics()
    P = spectral.transition_matrix(dynamics)
    with pytest.warns(spectral.NotDoublyStochasticWarning, match=r"not doubly stochastic"):
        L = spectral.laplacian(P)
    full = spectral.eigenbasis(L)
    ones, rng = np.ones(len(P)), np.random.default_rng(0)
    assert np.ptp(L @ ones) > 0.1, "the constant would be an eigenvector"
    assert full.eigenvalues[0] < -0.01
    np.testing.assert_allclose(full.vectors.T @ full.vectors, np.eye(len(P)), atol=1e-12)

    f = rng.standard_normal(len(P))
    coefficients = spectral.fourier(full, f)
    assert coefficients @ coefficients == pytest.approx(f @ f)
    W = (P + P.T) / 2
    D = np.diag(W.sum(axis=1))
    squared = spectral.graph_norm(P, f) ** 2
    assert squared == pytest.approx(f @ (D - W) @ f)
    assert squared != pytest.approx(f @ L @ f, rel=1e-3)

    for k in range(1, len(P) + 1):
        basis = spectral.Eigenbasis(full.eigenvalues[:k], full.vectors[:, :k])
        tight = spectral.value_bounds(P, f, basis, 0.9).tight
        assert value_error(dynamics, f, basis, 0.9) <= tight + 1e-8


@quickly
@given(seeds, st.integers(2, 6))
def test_the_warning_comes_exactly_when_columns_do_not_sum_to_one(seed, n):
    rng = np.random.default_rng(seed)
    permutations = [np.eye(n)[rng.permutation(n)] for _ in range(3)]
    spectral.laplacian(np.mean(permutations, axis=0))
    with pytest.warns(spectral.NotDoublyStochasticWarning):
        spectral.laplacian(rng.dirichlet(np.ones(n), n))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_value_of_two_states_has_its_closed_form(gamma):
    go_or_stay = np.array([[0, 1], [1, 0]])
    value = spectral.value_iteration(go_or_stay, [0.0, 1.0], gamma)
    np.testing.assert_allclose(value, 1 / (1 - gamma), atol=1e-9)
    ended = spectral.value_iteration(go_or_stay, [0.0, 1.0], gamma, terminal=[False, True])
    np.testing.assert_allclose(ended, 1.0, atol=1e-9)


def test_the_value_of_a_chain_solves_its_linear_equations():
    P, r, gamma = (
        np.array([[0.0, 0.4, 0.6], [0.5, 0.5, 0.0], [0.1, 0.2, 0.7]]),
        [1.0, 0.0, 2.0],
        0.9,
    )
    expected = np.linalg.solve(np.eye(3) - gamma * P, P @ r)
    np.testing.assert_allclose(spectral.value_iteration(P, r, gamma), expected, atol=1e-9)
    np.testing.assert_array_equal(spectral.transition_matrix(jnp.asarray(P)), jnp.asarray(P))


def test_value_of_an_uncertain_move_has_its_closed_form():
    p, gamma = 0.3, 0.9
    try_to_leave = np.array([[[1 - p, p], [0, 1]]])
    value = spectral.value_iteration(try_to_leave, [0.0, 1.0], gamma, terminal=[False, True])
    assert value[0] == pytest.approx(p / (1 - (1 - p) * gamma))


@settings(max_examples=10, deadline=None)
@given(seeds, gammas, st.booleans())
def test_value_iteration_finds_the_best_of_all_policies(seed, gamma, ends):
    rng = np.random.default_rng(seed)
    dynamics, reward = random_dynamics(rng, 4, 3), rng.standard_normal(4)
    terminal = np.array([0, 0, 0, float(ends)])
    policies = [np.array(actions) for actions in itertools.product(range(3), repeat=4)]
    values = [value_of(dynamics, policy, reward, gamma, terminal) for policy in policies]
    best = spectral.value_iteration(dynamics, reward, gamma, terminal=terminal)
    np.testing.assert_allclose(best, np.max(values, axis=0), atol=1e-8)
    greedy = spectral.greedy_policy(dynamics, reward, best, gamma, terminal)
    achieved = spectral.policy_value(dynamics, greedy, reward, gamma, terminal)
    np.testing.assert_allclose(achieved, best, atol=1e-6)


@pytest.mark.parametrize("gamma", [-0.1, 1.0])
def test_value_iteration_refuses_a_discount_that_does_not_converge(gamma):
    with pytest.raises(ValueError, match="gamma must lie in"):
        spectral.value_iteration([[0]], [1.0], gamma)


@quickly
@given(seeds, gammas, st.booleans())
def test_successor_features_times_w_are_the_q_values_of_that_reward(seed, gamma, ends):
    rng = np.random.default_rng(seed)
    dynamics, phi, w = random_dynamics(rng, 5, 3), rng.standard_normal((5, 2)), rng.normal(size=2)
    policy = rng.integers(3, size=5)
    terminal = np.array([0, 0, 0, 0, float(ends)])
    reward = phi @ w
    value = value_of(dynamics, policy, reward, gamma, terminal)
    q = np.einsum("ast,t->sa", dynamics, reward + gamma * (1 - terminal) * value)
    psi = spectral.successor_features(dynamics, policy, phi, gamma, terminal)
    np.testing.assert_allclose(psi @ w, q, atol=1e-9)


def test_successor_features_of_an_absorbing_state_are_a_geometric_sum():
    phi, gamma = np.array([[1.0, -2.0], [0.5, 3.0]]), 0.8
    psi = spectral.successor_features([[1], [1]], [0, 0], phi, gamma)
    np.testing.assert_allclose(psi[:, 0], [phi[1] / (1 - gamma)] * 2)
    ended = spectral.successor_features([[1], [1]], [0, 0], phi, gamma, [False, True])
    np.testing.assert_allclose(ended[:, 0], [phi[1]] * 2)


@quickly
@given(seeds)
def test_a_table_and_its_probabilities_give_the_same(seed):
    rng = np.random.default_rng(seed)
    table, reward = rng.integers(5, size=(5, 3)), rng.standard_normal(5)
    probabilities, policy = one_hot(table), rng.dirichlet(np.ones(3), 5)
    phi, terminal = rng.standard_normal((5, 2)), rng.random(5) < 0.3
    for call in (
        lambda p: spectral.transition_matrix(p),
        lambda p: spectral.transition_matrix(p, policy),
        lambda p: spectral.transition_matrix(p, policy, sparse=True).toarray(),
        lambda p: spectral.value_iteration(p, reward, 0.9, terminal=terminal),
        lambda p: spectral.q_values(p, reward, phi[:, 0], 0.9, terminal),
        lambda p: spectral.greedy_policy(p, reward, phi[:, 0], 0.9),
        lambda p: spectral.successor_features(p, policy, phi, 0.9, terminal),
    ):
        np.testing.assert_allclose(call(table), call(probabilities), atol=1e-9)


def test_jax_arrays_are_accepted_and_results_are_float64():
    grid = room(2, 3)
    P, f = walk(grid), np.arange(6.0)
    L = spectral.laplacian(jnp.asarray(P))
    basis = spectral.eigenbasis(L)
    assert basis.vectors.dtype == np.float64
    assert spectral.graph_norm(P, jnp.asarray(f)) == pytest.approx(np.sqrt(f @ L @ f))
    np.testing.assert_allclose(spectral.reconstruct(basis, jnp.asarray(f)), f, atol=1e-12)
    value = spectral.value_iteration(jnp.asarray(grid.next_states()), jnp.asarray(f), 0.9)
    assert value.dtype == np.float64


def test_lanczos_equals_the_dense_solution():
    grid = maze(35, 35)
    L = spectral.laplacian(walk(grid, sparse=True))
    assert scipy.sparse.issparse(L)
    assert grid.num_states > spectral.DENSE_LIMIT
    sparse, dense = spectral.eigenbasis(L, 20), spectral.eigenbasis(L.toarray(), 20)
    np.testing.assert_allclose(sparse.eigenvalues, dense.eigenvalues, atol=1e-12)
    assert spectral.eigenvector_cosines(sparse.vectors, dense).min() > 1 - 1e-9


@pytest.mark.parametrize("shape", ["maze", "room"])
def test_first_20_eigenvectors_of_a_250_x_250_map(shape):
    grid = maze(125, 125) if shape == "maze" else room(250, 250)
    assert min(grid.shape) >= 250
    L = spectral.laplacian(walk(grid, sparse=True))
    values, vectors = spectral.eigenbasis(L, 20)
    assert np.linalg.norm(L @ vectors - vectors * values, axis=0).max() < 1e-10
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(20), atol=1e-10)
    np.testing.assert_allclose(vectors[:, 0], grid.num_states**-0.5, rtol=1e-6)


def test_cosines_turn_within_equal_eigenvalues():
    exact = spectral.eigenbasis(spectral.laplacian(walk(room(5, 5))), 6)
    np.testing.assert_allclose(exact.eigenvalues[1], exact.eigenvalues[2], atol=1e-12)
    turn = np.eye(6)
    angle = 0.7
    turn[1:3, 1:3] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    learned = exact.vectors @ turn * [3.0, -1.0, 2.0, 1.0, -0.5, 1.0]
    np.testing.assert_allclose(spectral.eigenvector_cosines(learned, exact), 1.0, atol=1e-9)


def test_cosines_do_not_turn_across_different_eigenvalues():
    exact = spectral.eigenbasis(spectral.laplacian(walk(room(1, 6))), 4)
    angle = 0.7
    learned = exact.vectors.copy()
    learned[:, 1] = np.cos(angle) * exact.vectors[:, 1] + np.sin(angle) * exact.vectors[:, 2]
    expected = [1.0, np.cos(angle), 1.0, 1.0]
    np.testing.assert_allclose(spectral.eigenvector_cosines(learned, exact), expected, atol=1e-9)


def test_cosines_of_swapped_eigenvectors_are_zero():
    exact = spectral.eigenbasis(spectral.laplacian(walk(room(1, 6))), 4)
    cosines = spectral.eigenvector_cosines(exact.vectors[:, [0, 2, 1, 3]], exact)
    np.testing.assert_allclose(cosines, [1, 0, 0, 1], atol=1e-9)
