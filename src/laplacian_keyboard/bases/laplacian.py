"""Stage 1: the first eigenvectors of the graph Laplacian, learned from reward-free data (ALLO).

Minimise how much each output differs between neighbouring states, while keeping the outputs
orthonormal. The stop-gradient orders them: output j is pushed away from the outputs before it and
never the other way round, so that the solution is the eigenvectors and not a rotation of them.

    loop:
      s, s+ ~ pairs a geometric number of steps apart;  n1, n2 ~ other states
      E1 = tril(mean n1: u(n1) [[u(n1)]]^T - I),  E2 likewise;  E = (E1 + E2) / 2
      loss = sum_i mean (u_i(s) - u_i(s+))^2 + sum beta * E + b * sum Q        (eq. 25)
      beta <- beta + rate * E;  b <- b + rate * mean max(0, average of Q)
    at the end: one eigenproblem of size k + 1 inside the learned span (`refine`)

| symbol | here | meaning |
|---|---|---|
| u | encoder | k + 1 outputs; output 0 is the constant eigenvector and is dropped |
| phi | `phi` | outputs 1 to k |
| beta | dual | multipliers of the constraints, lower triangular |
| b | barrier | weight of the squared constraint errors, grows |
| Q | `quadratic` | E1 * E2 (unbiased, the reference's) or E1^2 (the paper's pseudocode) |
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.types import Metrics, Pairs, Spec, UserError


@dataclass(frozen=True)
class Config:
    """How a Laplacian basis is learned. Defaults: the paper's Table 3, else the reference's."""

    k: int
    """Number of eigenvectors, the constant one not counted."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the encoder's hidden layers (reference)."""
    batch_size: int = 1024
    """Pairs in a batch (reference)."""
    step_size: float = 1e-4
    """Adam's step size (paper)."""
    num_steps: int = 0
    """Anneal the step size to zero over this many updates; 0 keeps it constant."""
    pair_discount: float = 0.5
    """Parameter of the geometric gap between a state and its neighbour (paper)."""
    negatives: Literal["independent", "same-episode"] = "independent"
    """Where the states of the constraints come from: the dataset (reference), or the episode of
    the reference state (paper)."""
    quadratic: Literal["product", "square"] = "product"
    """The squared constraint error: the product of two independent estimates (reference), or the
    square of one (paper)."""
    dual_rate: float = 1e-4
    """Step size of the multipliers (reference)."""
    dual_limit: float = 100.0
    """The multipliers stay within plus and minus this (reference)."""
    barrier: float = 0.5
    """Initial weight of the squared errors (the reference's large runs)."""
    barrier_rate: float = 0.01
    """Step size of that weight (the reference's large runs)."""
    barrier_limit: float = 1e4
    """Its largest value (reference)."""
    error_rate: float = 0.1
    """Rate of the moving average of the squared errors (reference)."""
    bound: float = 0.0
    """Squash phi into plus and minus this with tanh; 0 does not (paper). Ours: eigenvectors are far
    larger in a few odd states than anywhere else, and behaviors would go there and stay."""
    refine: bool = True
    """Solve the small eigenproblem inside the learned span at the end. Ours: it separates
    eigenvectors whose eigenvalues nearly coincide, which gradient steps do very slowly."""

    @property
    def num_negatives(self) -> int:
        """Batches of negatives a training batch holds."""
        return 2 if self.quadratic == "product" else 1


class State(eqx.Module):
    """Everything that changes in training."""

    encoder: Learner[MLP]
    dual: Float[Array, "d d"]
    barrier: Float[Array, ""]
    squared_error: Float[Array, "d d"]
    """Moving average of Q."""
    step: Int[Array, ""]


def optimiser(config: Config) -> optax.GradientTransformation:
    """The encoder's optimiser."""
    return adam(config.step_size, num_steps=config.num_steps)


def init(config: Config, spec: Spec, *, key: PRNGKeyArray) -> State:
    """A fresh encoder for the shapes of `spec`, multipliers at zero."""
    width = config.k + 1
    encoder = MLP(spec.obs_dim, config.hidden, width, key=key)
    return State(
        encoder=Learner.create(encoder, optimiser(config), target=False),
        dual=jnp.zeros((width, width)),
        barrier=jnp.asarray(config.barrier),
        squared_error=jnp.zeros((width, width)),
        step=jnp.zeros((), jnp.int32),
    )


def encoder(state: State) -> MLP:
    """What is kept of the training: all that `phi` needs."""
    return state.encoder.params


def phi(config: Config, encoder: MLP, obs: Float[Array, "*b o"]) -> Float[Array, "*b k"]:
    """The basis: eigenvectors e_1 to e_k at `obs`, scaled to unit mean square over the data, and
    squashed if the config says so."""
    outputs = encoder(obs)[..., 1:]
    return config.bound * jnp.tanh(outputs / config.bound) if config.bound else outputs


def smoothness(
    outputs: Float[Array, "b d"], future_outputs: Float[Array, "b d"]
) -> Float[Array, "d"]:
    """Mean squared change of every output over a pair; 2 <u, L u> of the pair operator."""
    return jnp.mean(jnp.square(outputs - future_outputs), axis=0)


def constraint_error(outputs: Float[Array, "b d"]) -> Float[Array, "d d"]:
    """`<u_j, [[u_k]]> - delta_jk` for k <= j, zero above the diagonal."""
    gram = outputs.T @ jax.lax.stop_gradient(outputs) / outputs.shape[0]
    return jnp.tril(gram - jnp.eye(outputs.shape[1]))


def loss(
    encoder: MLP,
    dual: Float[Array, "d d"],
    barrier: Float[Array, ""],
    batch: Pairs,
) -> tuple[Float[Array, ""], tuple[Metrics, Float[Array, "d d"], Float[Array, "d d"]]]:
    """The augmented Lagrangian (eq. 25), with the linear and the squared errors beside it."""
    # One pass over all states: three or four small products would leave the cores idle.
    everything = jnp.concatenate([batch.obs[None], batch.future_obs[None], batch.negative_obs])
    outputs = encoder(everything)
    per_output = smoothness(outputs[0], outputs[1])
    errors = jax.vmap(constraint_error)(outputs[2:])
    linear, quadratic = jnp.mean(errors, axis=0), errors[0] * errors[-1]
    value = jnp.sum(per_output) + jnp.sum(dual * linear) + barrier * jnp.sum(quadratic)
    # lambda = 1/2 mean (du)^2 / mean u^2, so that it does not depend on the outputs' scale.
    scale = jnp.mean(jnp.square(outputs[:2]), axis=(0, 1))
    metrics = {
        "laplacian/loss": value,
        "laplacian/smoothness": jnp.sum(per_output),
        "laplacian/orthonormality_error": jnp.max(jnp.abs(linear)),
        "laplacian/largest_eigenvalue": jnp.max(per_output / (2 * scale)),
    }
    return value, (metrics, linear, quadratic)


def update(
    config: Config, state: State, batch: Pairs, *, key: PRNGKeyArray | None = None
) -> tuple[State, Metrics]:
    """One gradient step on the encoder, one ascent step on the multipliers and the barrier."""
    gradient, (metrics, linear, quadratic) = jax.grad(loss, has_aux=True)(
        state.encoder.params, state.dual, state.barrier, batch
    )
    encoder = state.encoder.step(gradient, optimiser(config))
    dual = jnp.clip(state.dual + config.dual_rate * linear, -config.dual_limit, config.dual_limit)
    rate = jnp.where(state.step == 0, 1.0, config.error_rate)
    squared_error = state.squared_error + rate * (quadratic - state.squared_error)
    growth = jnp.mean(jnp.maximum(squared_error, 0.0))
    barrier = jnp.clip(state.barrier + config.barrier_rate * growth, 0.0, config.barrier_limit)
    metrics["laplacian/barrier"] = barrier
    return State(encoder, dual, barrier, squared_error, state.step + 1), metrics


class Moments(eqx.Module):
    """Second moments of the outputs over pairs: all that is needed to refine and to report."""

    change: Float[Array, "d d"]
    """1/2 mean (u(s) - u(s+)) (u(s) - u(s+))^T: the Laplacian inside the learned span."""
    gram: Float[Array, "d d"]
    """mean u u^T: the inner products of the outputs."""


def moments(encoder: MLP, batch: Pairs) -> Moments:
    """Moments of one batch; average them over many."""
    now, later = encoder(batch.obs), encoder(batch.future_obs)
    count = now.shape[0]
    change = now - later
    return Moments(change.T @ change / (2 * count), (now.T @ now + later.T @ later) / (2 * count))


def refine(encoder: MLP, averaged: Moments) -> MLP:
    """The encoder with its linear head turned so that its outputs solve the eigenproblem
    `A v = lambda B v` of the averaged moments (Rayleigh-Ritz): on the data they become orthonormal,
    ordered, and the best eigenvectors inside the span that was learned."""
    change, gram = (np.asarray(x, np.float64) for x in (averaged.change, averaged.gram))
    try:
        _, rotation = scipy.linalg.eigh(change, gram)
    except scipy.linalg.LinAlgError as error:
        raise UserError(
            f"{len(gram)} outputs of the basis are not independent on these data: choose a smaller "
            "k, or data with more different states"
        ) from error
    rotation = jnp.asarray(rotation, jnp.float32)
    *hidden, head = encoder.layers
    head = eqx.tree_at(
        lambda h: (h.weight, h.bias), head, (head.weight @ rotation, head.bias @ rotation)
    )
    return eqx.tree_at(lambda e: e.layers, encoder, (*hidden, head))


def truncate(encoder: MLP, k: int) -> MLP:
    """The encoder of the first k eigenvectors: they are ordered, so the others just go."""
    *hidden, head = encoder.layers
    head = eqx.tree_at(
        lambda h: (h.weight, h.bias), head, (head.weight[:, : k + 1], head.bias[: k + 1])
    )
    return eqx.tree_at(lambda e: e.layers, encoder, (*hidden, head))


class Report(eqx.Module):
    """How good a basis is, without knowing the truth."""

    eigenvalues: Float[Array, "k"]
    """Estimated eigenvalues of the pair operator, e_1 to e_k."""
    smoothness: Float[Array, "k"]
    """Mean squared change of every component over a pair."""
    orthonormality_error: Float[Array, ""]
    """Largest deviation of the inner products of e_0 to e_k from the identity."""


def report(averaged: Moments) -> Report:
    """Figures of a basis from its averaged moments."""
    change, norm = jnp.diag(averaged.change), jnp.diag(averaged.gram)
    return Report(
        eigenvalues=(change / norm)[1:],
        smoothness=2 * change[1:],
        orthonormality_error=jnp.max(jnp.abs(averaged.gram - jnp.eye(len(norm)))),
    )


def empty_report(k: int) -> Report:
    """A report's shapes."""
    return Report(jnp.zeros(k), jnp.zeros(k), jnp.zeros(()))


def pair_eigenvalue(eigenvalue: Float[Array, "*k"], pair_discount: float) -> Float[Array, "*k"]:
    """The eigenvalue of the pair operator that belongs to an eigenvalue of L: with mu = 1 - lambda
    of P, `1 - (1 - g) mu / (1 - g mu)`, for pairs far from the end of their episode."""
    mu = 1.0 - eigenvalue
    return 1.0 - (1.0 - pair_discount) * mu / (1.0 - pair_discount * mu)
