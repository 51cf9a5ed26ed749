"""The exact oracle: what the learned quantities should be, on a world small enough to enumerate.

    P_pi(s, s') = sum_a pi(a|s) p(s'|s, a)         `transition_matrix`
    L = I - (P + P^T) / 2                          `laplacian`
    L e_i = lambda_i e_i, lambda_0 <= lambda_1 ... `eigenbasis`
    f~ = E^T f,  f_k = E_k E_k^T f                 `fourier`, `reconstruct`
    |f|_G^2 = 1/2 sum_ij P_ij (f_i - f_j)^2        `graph_norm` (eq. 1)
    |v* - v*_k|_inf <= |r - r_k|_inf / (1-gamma) <= |r|_G / ((1-gamma) sqrt(lambda_k))
                                                   `value_bounds` (theorem 3.1, eqs. 23 and 24)
    psi(s, a) = E[phi(s') + gamma psi(s', pi(s'))] `successor_features` (eqs. 3 and 4)

Dynamics `p` are given in one of two forms: a table of next states `(s, a)` of integers for a
deterministic world, or probabilities `(a, s, s')`, or `(s, s')` where there is nothing to choose.
Rewards are functions of the next state, as in
the paper. NumPy and JAX arrays are accepted; results are NumPy float64.
"""

import warnings
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

Matrix: TypeAlias = Any
"""A dense array or a scipy.sparse array `(s, s)`."""
Dynamics: TypeAlias = Any
"""A table of next states `(s, a)` of integers, or probabilities `(a, s, s)` or `(s, s)`."""

STOCHASTIC_TOLERANCE = 1e-8
DEGENERATE_TOLERANCE = 1e-9
DENSE_LIMIT = 2_000
"""Up to this many states a sparse matrix is solved densely."""


class Eigenbasis(NamedTuple):
    """The first eigenvectors of a Laplacian, smoothest first."""

    eigenvalues: np.ndarray
    """`(k,)`, ascending."""
    vectors: np.ndarray
    """`(s, k)`, orthonormal columns; the entry of largest magnitude is positive."""


class ValueBounds(NamedTuple):
    """Upper bounds on `|v* - v*_k|_inf`."""

    tight: float
    """`|r - r_k|_inf / (1 - gamma)`: holds for every reward and every Laplacian."""
    theorem: float
    """`|r|_G / ((1 - gamma) sqrt(lambda_k))`: needs a doubly stochastic `(P + P^T)/2`."""


class NotDoublyStochasticWarning(UserWarning):
    """The symmetrised transition matrix does not have unit row sums."""


def transition_matrix(dynamics: Dynamics, policy: Any = None, *, sparse: bool = False) -> Matrix:
    """State-to-state probabilities `(s, s)` under `policy` `(s, a)`; None is the uniform policy."""
    dynamics = _table_or_probabilities(dynamics)
    is_table = dynamics.ndim == 2
    num_states, num_actions = dynamics.shape if is_table else (dynamics.shape[1], dynamics.shape[0])
    if policy is None:
        policy = np.full((num_states, num_actions), 1.0 / num_actions)
    policy = np.asarray(policy, np.float64)
    if is_table:
        rows = np.repeat(np.arange(num_states), num_actions)
        entries = (policy.ravel(), (rows, dynamics.ravel()))
        matrix = scipy.sparse.coo_array(entries, shape=(num_states, num_states)).tocsr()
        return matrix if sparse else matrix.toarray()
    matrix = np.einsum("sa,ast->st", policy, dynamics.astype(np.float64))
    return scipy.sparse.csr_array(matrix) if sparse else matrix


def symmetrised(P: Matrix) -> Matrix:
    """`(P + P^T) / 2`, the weights of the undirected graph."""
    P = P if scipy.sparse.issparse(P) else np.asarray(P, np.float64)
    return (P + P.T) / 2


def laplacian(P: Matrix) -> Matrix:
    """`L = I - (P + P^T) / 2`, dense or sparse like `P`.

    The paper takes `(P + P^T)/2` to be doubly stochastic, which is so exactly when the columns of
    `P` sum to one (a uniform random walk whose moves can be undone). Where they do not, a
    `NotDoublyStochasticWarning` says so. Then L is still symmetric, its eigenvectors are still an
    orthonormal basis, Parseval and the tight bound still hold; but the constant vector is not an
    eigenvector, the smallest eigenvalue is negative, `|f|_G^2` is `f^T (D - W) f` instead of
    `f^T L f`, and the theorem's bound is not guaranteed.
    """
    weights = symmetrised(P)
    degree = np.asarray(weights.sum(axis=1)).ravel()
    if np.max(np.abs(degree - 1.0)) > STOCHASTIC_TOLERANCE:
        warnings.warn(
            "(P + P^T)/2 is not doubly stochastic: its row sums lie between "
            f"{degree.min():.4g} and {degree.max():.4g}. The eigenvectors are still orthonormal "
            "and the bound |r - r_k|_inf / (1 - gamma) holds, but the constant vector is not e_0, "
            "lambda_0 is negative and the theorem's bound |r|_G / ((1 - gamma) sqrt(lambda_k)) "
            "is not guaranteed.",
            NotDoublyStochasticWarning,
            stacklevel=2,
        )
    if scipy.sparse.issparse(weights):
        return scipy.sparse.eye_array(len(degree), format="csr") - weights
    return np.eye(len(degree)) - weights


def eigenbasis(L: Matrix, k: int | None = None) -> Eigenbasis:
    """The first `k` eigenvectors of `L`, starting with the smoothest, `e_0`; None is all of them.

    Large sparse matrices are solved by Lanczos iterations on the inverse of `L - sigma I`, with
    sigma just below the spectrum, where the wanted eigenvalues are the best separated ones.
    """
    num_states: int = L.shape[0]
    k = num_states if k is None else k
    if not 1 <= k <= num_states:
        raise ValueError(f"k must lie between 1 and the number of states {num_states}, not {k}")
    if scipy.sparse.issparse(L) and num_states > DENSE_LIMIT and k < num_states // 2:
        eigenvalues, vectors = _lanczos(L, k)
    else:
        dense = L.toarray() if scipy.sparse.issparse(L) else np.asarray(L, np.float64)
        eigenvalues, vectors = scipy.linalg.eigh(dense, subset_by_index=[0, k - 1])
    return Eigenbasis(eigenvalues, vectors * _signs(vectors))


def _lanczos(L: Matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    off_diagonal = np.asarray(abs(L).sum(axis=1)).ravel() - np.abs(L.diagonal())
    below_spectrum = float(np.min(L.diagonal() - off_diagonal)) - 1e-8
    # A fixed start makes the result repeatable; a constant one would stop at e_0.
    start = np.random.default_rng(0).standard_normal(L.shape[0])
    eigenvalues, vectors = scipy.sparse.linalg.eigsh(
        scipy.sparse.csc_array(L), k, sigma=below_spectrum, which="LM", v0=start
    )
    order = np.argsort(eigenvalues)
    return eigenvalues[order], vectors[:, order]


def _signs(vectors: np.ndarray) -> np.ndarray:
    # Rounding makes the choice stable where two entries are equally large up to noise.
    largest = np.argmax(np.round(np.abs(vectors), 8), axis=0)
    return np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


def _vectors(basis: Eigenbasis | Any) -> np.ndarray:
    return basis.vectors if isinstance(basis, Eigenbasis) else np.asarray(basis, np.float64)


def fourier(basis: Eigenbasis | Any, f: Any) -> np.ndarray:
    """Graph Fourier coefficients `E^T f` of a function on the states (eq. 5)."""
    return _vectors(basis).T @ np.asarray(f, np.float64)


def reconstruct(basis: Eigenbasis | Any, f: Any) -> np.ndarray:
    """`E E^T f`: the part of `f` inside the span of the basis (eq. 7)."""
    return _vectors(basis) @ fourier(basis, f)


def graph_norm(P: Matrix, f: Any) -> float:
    """`[1/2 sum_ij P_ij (f_i - f_j)^2]^(1/2)` (eq. 1): small for functions smooth on the graph."""
    f = np.asarray(f, np.float64)
    edges = scipy.sparse.coo_array(P if scipy.sparse.issparse(P) else np.asarray(P, np.float64))
    row, column = edges.coords
    return float(np.sqrt(0.5 * np.sum(edges.data * (f[row] - f[column]) ** 2)))


def value_bounds(P: Matrix, r: Any, basis: Eigenbasis, gamma: float) -> ValueBounds:
    """Both bounds on the value error of using `reconstruct(basis, r)` in place of `r`.

    lambda_k is the largest eigenvalue in the basis; with e_0 alone the theorem says nothing (inf).
    """
    residual = float(np.max(np.abs(np.asarray(r, np.float64) - reconstruct(basis, r))))
    largest = float(basis.eigenvalues[-1])
    smoothness = graph_norm(P, r)
    positive = largest > STOCHASTIC_TOLERANCE
    theorem = smoothness / ((1 - gamma) * np.sqrt(largest)) if positive else float("inf")
    return ValueBounds(residual / (1 - gamma), theorem)


def _table_or_probabilities(dynamics: Dynamics) -> np.ndarray:
    """Dynamics as `(s, a)` of integers or `(a, s, s')` of probabilities."""
    dynamics = np.asarray(dynamics)
    is_matrix = dynamics.ndim == 2 and not np.issubdtype(dynamics.dtype, np.integer)
    return dynamics[None] if is_matrix else dynamics


def expected_next(dynamics: Dynamics, f: Any) -> np.ndarray:
    """`E[f(s') | s, a]`, shape `(s, a)` for `f` of shape `(s,)`, `(s, a, k)` for `(s, k)`."""
    dynamics, f = _table_or_probabilities(dynamics), np.asarray(f, np.float64)
    if dynamics.ndim == 2:
        return f[dynamics]
    return np.moveaxis(dynamics.astype(np.float64) @ f, 0, 1)


def q_values(dynamics: Dynamics, r: Any, v: Any, gamma: float, terminal: Any = None) -> np.ndarray:
    """`E[r(s') + gamma v(s')]`, shape `(s, a)`; nothing follows a `terminal` state."""
    alive = 1.0 if terminal is None else 1.0 - np.asarray(terminal, np.float64)
    return expected_next(
        dynamics, np.asarray(r, np.float64) + gamma * alive * np.asarray(v, np.float64)
    )


def value_iteration(
    dynamics: Dynamics, r: Any, gamma: float, *, terminal: Any = None, tolerance: float = 1e-10
) -> np.ndarray:
    """Optimal values `(s,)` for reward `r(s')`, within `tolerance` of the fixed point."""
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma must lie in [0, 1), not {gamma}")
    v = np.zeros(len(np.asarray(r)))
    change = np.inf
    while change > tolerance * (1 - gamma):
        improved = q_values(dynamics, r, v, gamma, terminal).max(axis=1)
        change, v = np.max(np.abs(improved - v)), improved
    return v


def greedy_policy(
    dynamics: Dynamics, r: Any, v: Any, gamma: float, terminal: Any = None
) -> np.ndarray:
    """The best action `(s,)` in every state with respect to values `v`; ties take the first."""
    # Rounding keeps ties ties: equal values differ in the last digits after different sums.
    return np.argmax(np.round(q_values(dynamics, r, v, gamma, terminal), 9), axis=1)


def successor_features(
    dynamics: Dynamics, policy: Any, phi: Any, gamma: float, terminal: Any = None
) -> np.ndarray:
    """Exact `psi(s, a) = E[sum_t gamma^t phi(s_{t+1})]` of a policy, shape `(s, a, k)` (eq. 3).

    `policy` is `(s,)` of actions or `(s, a)` of probabilities; `phi` is `(s, k)`.
    """
    phi, policy = np.asarray(phi, np.float64), np.asarray(policy)
    num_states = len(phi)
    if policy.ndim == 1:
        dynamics = _table_or_probabilities(dynamics)
        num_actions = dynamics.shape[1] if dynamics.ndim == 2 else dynamics.shape[0]
        policy = np.eye(num_actions)[policy]
    alive = np.ones(num_states) if terminal is None else 1.0 - np.asarray(terminal, np.float64)
    P = cast(np.ndarray, transition_matrix(dynamics, policy))
    # Features accumulated from each state on, following the policy.
    accumulated = np.linalg.solve(np.eye(num_states) - gamma * P * alive, P @ phi)
    return expected_next(dynamics, phi + gamma * alive[:, None] * accumulated)


def policy_value(
    dynamics: Dynamics, policy: Any, r: Any, gamma: float, terminal: Any = None
) -> np.ndarray:
    """Exact values `(s,)` of a deterministic policy `(s,)` for reward `r(s')`."""
    r = np.asarray(r, np.float64)
    q = successor_features(dynamics, policy, r[:, None], gamma, terminal)[..., 0]
    return q[np.arange(len(r)), np.asarray(policy)]


def eigenvector_cosines(learned: Any, exact: Eigenbasis) -> np.ndarray:
    """`|cos|` between learned columns and exact eigenvectors, `(k,)`.

    Eigenvectors of one eigenvalue are only defined up to a rotation, so the learned columns of each
    such group are first rotated onto the exact ones (orthogonal Procrustes). The last group should
    be whole: a basis cut inside one has nothing to rotate its last columns onto.
    """
    learned = np.array(learned, np.float64)
    learned /= np.linalg.norm(learned, axis=0)
    cosines = np.empty(len(exact.eigenvalues))
    for group in _equal_runs(exact.eigenvalues):
        columns, target = learned[:, group], exact.vectors[:, group]
        rotation, _ = scipy.linalg.orthogonal_procrustes(columns, target)
        rotated = columns @ rotation
        cosines[group] = np.abs(np.sum(rotated * target, axis=0)) / np.linalg.norm(rotated, axis=0)
    return cosines


def _equal_runs(eigenvalues: np.ndarray) -> list[np.ndarray]:
    breaks = np.flatnonzero(np.diff(eigenvalues) > DEGENERATE_TOLERANCE) + 1
    return np.split(np.arange(len(eigenvalues)), breaks)
