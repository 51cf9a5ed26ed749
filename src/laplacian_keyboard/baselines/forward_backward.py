"""Forward-backward representations: a basis and its behaviors, learned together.

`F(s, a, w) . B(g)` is the density of where behavior w will be: how much of its discounted future,
after action a in state s, is spent at g, relative to how often g is in the data. From it follows
the value of every reward, and behavior w is the best one for the reward whose weights are w.

    loop:
      (s_i, a_i, s'_i) ~ data;  w_i ~ sphere of radius sqrt(k), or B of a random state
      a'_i = pi_slow(s'_i, w_i)                               plus noise, if the config has any
      M_ij = F(s_i, a_i, w_i) . B(s'_j)                       all pairs of the batch, both heads
      y_ij = gamma F_slow(s'_i, a'_i, w_i) . B_slow(s'_j)     the smaller head's, or the heads' mean
      loss = sum_heads [1/2 mean_{i != j} (M_ij - y_ij)^2 - mean_i M_ii]
             + c [mean_{i != j} (B(s'_i) . B(s'_j))^2 - 2 mean_i |B(s'_i)|^2]
             + e sum_heads mean_i (F(s_i, a_i, w_i) . w_i - q_i)^2 / k
                 with q_i = (B_slow(s'_i) + gamma F_slow(s'_i, a'_i, w_i)) . w_i, heads as above
      pi <- ascend F(s, pi(s, w), w) . w of the head the successor config names; its default,
            the smaller one, is the reference
    a task: w = mean r(s') B(s'), scaled to the sphere

| symbol | here | meaning |
|---|---|---|
| B | `phi` | the basis: k outputs scaled to length sqrt(k) |
| F_1, F_2 | successor | in the place of psi: once `mean B B^T` is the identity, F is B's psi |
| M | measures | `sum_t gamma^t P(s_{t+1} = g) / rho(g)`, rho the distribution of the s' |
| w | w | the task, or chord; often called z |
| c | orthonormality | weight of the pull of `mean B B^T` to the identity |
| e | emphasis | extra weight of the error along w, the successor config's; 0 is the reference |

F and pi are those of `successor.continuous`, with its config; with discrete actions F is the
network of `successor.discrete`, one head that knows every action, and pi is greedy. So the result
is a keyboard like any other: `phi` with `encoder`, and `behaviors`. Tasks are inferred by the
method `mean` of `zero_shot`.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from laplacian_keyboard.bases.lap import orthonormality, orthonormality_error
from laplacian_keyboard.bases.network import FeatureNet, on_sphere
from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.successor import continuous, discrete
from laplacian_keyboard.types import Metrics, Spec, Transition

TargetRule: TypeAlias = Literal["min", "mean"]
Successor: TypeAlias = continuous.Config | discrete.Config
Forward: TypeAlias = continuous.Critic | MLP

REFERENCE = continuous.Config(
    critic_step_size=1e-4, max_grad_norm=0.0, tau=0.01, policy_noise=0.2, gamma=0.98
)
"""The settings of the behaviors in the implementations the paper compares with."""


@dataclass(frozen=True)
class Config:
    """How B is learned; F and the behaviors have the config of their successor module. Defaults:
    controllable_agent's, which metamotivo shares where not said."""

    k: int
    """Number of features."""
    hidden: tuple[int, ...] = (512, 512)
    """Widths of B's hidden layers (controllable_agent: 526, metamotivo: 256)."""
    step_size: float = 1e-4
    """Adam's step size for B."""
    num_steps: int = 0
    """Anneal the step size to zero over this many updates; 0 keeps it constant."""
    orthonormality: float = 1.0
    """Weight of the pull to an orthonormal B (metamotivo's 1 is 0.5 here)."""
    target_rule: TargetRule = "min"
    """How the two heads' measures make one target: elementwise their smaller one
    (controllable_agent) or their mean (metamotivo). With discrete actions there is one head."""


class State(eqx.Module):
    """Everything that changes in training."""

    encoder: Learner[FeatureNet]
    """B."""
    successor: continuous.State | discrete.State
    """F in the place of psi, and the actor if there is one."""


def optimiser(config: Config) -> optax.GradientTransformation:
    """B's optimiser."""
    return adam(config.step_size, num_steps=config.num_steps)


def init(config: Config, successor: Successor, spec: Spec, *, key: PRNGKeyArray) -> State:
    """Fresh networks for the shapes of `spec`."""
    key_encoder, key_successor = jax.random.split(key)
    network = FeatureNet(spec.obs_dim, config.hidden, config.k, key=key_encoder)
    module = continuous if isinstance(successor, continuous.Config) else discrete
    return State(
        Learner.create(network, optimiser(config)),
        module.init(successor, spec, config.k, key=key_successor),  # type: ignore[arg-type]
    )


def encoder(state: State) -> FeatureNet:
    """The slow copy of B: what is used after training."""
    assert state.encoder.target is not None
    return state.encoder.target


def behaviors(state: State) -> continuous.Behaviors | MLP:
    """The slow copies of F and the actor: what is used after training."""
    if isinstance(state.successor, continuous.State):
        return continuous.behaviors(state.successor)
    return discrete.behaviors(state.successor)


def phi(config: Config, encoder: FeatureNet, obs: Float[Array, "*b o"]) -> Float[Array, "*b k"]:
    """The basis: B, features of length sqrt(k)."""
    return on_sphere(encoder(obs))


def measures(
    forward: Float[Array, "h b k"], backward: Float[Array, "c k"]
) -> Float[Array, "h b c"]:
    """`F_i . B_j` of every row i and every state j, for each head."""
    return jnp.einsum("hik,jk->hij", forward, backward)


def target_measure(
    rule: TargetRule,
    forward: Float[Array, "h b k"],
    backward: Float[Array, "c k"],
    discount: Float[Array, "b"],
) -> Float[Array, "b c"]:
    """`gamma M(s', a', .)` of the slow copies; `discount` is gamma, or 0 after a termination."""
    reduce = jnp.min if rule == "min" else jnp.mean
    return discount[:, None] * reduce(measures(forward, backward), axis=0)


def target_value(
    rule: TargetRule,
    forward: Float[Array, "h b k"],
    backward: Float[Array, "b k"],
    discount: Float[Array, "b"],
    w: Float[Array, "b k"],
) -> Float[Array, "b"]:
    """`(B(s') + gamma F(s', a', w)) . w` of the slow copies: a step of Bellman's equation for the
    reward `w . B`, whose weights are w once `mean B B^T` is the identity. The inverse of that
    matrix would do without, at the price of a linear solve in every step."""
    reward = jnp.sum(backward * w, axis=-1)
    reduce = jnp.min if rule == "min" else jnp.mean
    return reward + discount * reduce(jnp.sum(forward * w, axis=-1), axis=0)


def measure_loss(
    forward: Float[Array, "h b k"], backward: Float[Array, "b k"], target: Float[Array, "b b"]
) -> Float[Array, ""]:
    """`1/2 mean_{i != j} (M_ij - y_ij)^2 - mean_i M_ii`, summed over the heads. Row i reached state
    i; any other state j is a draw from rho that is independent of the row."""
    count = backward.shape[0]
    measure = measures(forward, backward)
    error = jnp.where(jnp.eye(count, dtype=bool), 0.0, jnp.square(measure - target))
    bellman = 0.5 * jnp.sum(error) / (count * (count - 1))
    return bellman - jnp.sum(jnp.trace(measure, axis1=1, axis2=2)) / count


def forward(network: Forward, batch: Transition, w: Float[Array, "b k"]) -> Float[Array, "h b k"]:
    """F(s, a, w) of the batch: a critic's two heads, or a discrete network's one."""
    if isinstance(network, continuous.Critic):
        return network(batch.obs, batch.action, w)
    return _of_action(discrete.psi(network, batch.obs, w), batch.action)[None]


def next_forward(
    successor: Successor,
    state: continuous.State | discrete.State,
    batch: Transition,
    w: Float[Array, "b k"],
    *,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "h b k"]:
    """Slow F(s', a', w): of the slow actor's action, or of the one greedy for the fast F."""
    if isinstance(state, discrete.State):
        assert state.network.target is not None
        action = discrete.act(state.network.params, batch.next_obs, w)
        return _of_action(discrete.psi(state.network.target, batch.next_obs, w), action)[None]
    assert isinstance(successor, continuous.Config)
    assert state.actor.target is not None and state.critic.target is not None
    action = continuous.next_action(successor, state.actor.target, batch.next_obs, w, key=key)
    return state.critic.target(batch.next_obs, action, w)


def loss(
    networks: tuple[Forward, FeatureNet],
    config: Config,
    batch: Transition,
    w: Float[Array, "b k"],
    measure_target: Float[Array, "b b"],
    value_target: Float[Array, "b"],
    emphasis: float = 0.0,
) -> tuple[Float[Array, ""], Metrics]:
    """The measure loss of F and B, the pull of B to orthonormality, and the error along w."""
    forward_values = forward(networks[0], batch, w)
    backward = phi(config, networks[1], batch.next_obs)
    measure = measure_loss(forward_values, backward, measure_target)
    values = jnp.sum(forward_values * w, axis=-1)
    along_w = jnp.mean(jnp.square(values - value_target), axis=-1)
    value = measure + config.orthonormality * orthonormality(backward)
    value = value + emphasis * jnp.sum(along_w) / config.k
    return value, {
        "fb/loss": value,
        "fb/measure_loss": measure,
        "fb/orthonormality_error": orthonormality_error(backward),
        "fb/value": jnp.mean(values),
        "fb/value_error": jnp.sqrt(jnp.mean(along_w)),
    }


def update(
    config: Config,
    successor: Successor,
    state: State,
    batch: Transition,
    w: Float[Array, "b k"],
    *,
    key: PRNGKeyArray | None = None,
) -> tuple[State, Metrics]:
    """One step of F and B for the given weights, and an actor step when it is due."""
    slow_backward = phi(config, encoder(state), batch.next_obs)
    slow_forward = next_forward(successor, state.successor, batch, w, key=key)
    discount = successor.gamma * batch.discount
    y = target_measure(config.target_rule, slow_forward, slow_backward, discount)
    q = target_value(config.target_rule, slow_forward, slow_backward, discount, w)

    before = state.successor
    learner: Any = before.critic if isinstance(before, continuous.State) else before.network
    networks = (learner.params, state.encoder.params)
    gradient, metrics = jax.grad(loss, has_aux=True)(
        networks, config, batch, w, y, q, successor.emphasis
    )
    backward = state.encoder.step(gradient[1], optimiser(config), successor.tau)
    if isinstance(successor, discrete.Config):
        network = learner.step(gradient[0], discrete.optimiser(successor), successor.tau)
        return State(backward, discrete.State(network, before.step + 1)), metrics

    assert isinstance(before, continuous.State)
    _, critic_optimiser = continuous.optimisers(successor)
    critic = learner.step(gradient[0], critic_optimiser, successor.tau)
    return State(backward, continuous.climb(successor, before, critic, batch.obs, w)), metrics


def _of_action(values: Float[Array, "b a k"], action: Array) -> Float[Array, "b k"]:
    return jnp.take_along_axis(values, action[:, None, None], axis=1)[:, 0]
