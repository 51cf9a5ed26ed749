"""Stage 2 for continuous actions: universal successor features by TD3.

A critic predicts the features that a behavior will collect after an action; an actor, for every w,
climbs the critic's prediction along w. Nothing here is special to offline data.

    loop:
      (s, a, s') ~ data;  w ~ sphere of radius sqrt(k), or phi of a random state
      a' = pi_slow(s', w)                                 plus noise, if the config has any
      j  = argmin_j psi_slow_j(s', a', w) . w             the more careful of two heads,
      y  = phi(s') + gamma psi_slow_j(s', a', w)          its whole vector                   (eq. 4)
      psi_j(s, a, w) <- y  under  (|e|^2 + c (e . w)^2) / k,  e = psi_j - y,  both heads
      every `policy_delay` updates:  pi <- ascend min_j psi_j(s, pi(s, w), w) . w

| symbol | here | meaning |
|---|---|---|
| psi_1, psi_2 | critic | expected discounted sum of phi from the next state on (eq. 3), twice |
| pi | actor | observation and w to an action in [-1, 1]^m |
| w | w | the task, or chord; |w| = sqrt(k) |
| tau | tau | rate of the slow copies |
| c | emphasis | extra weight of the error along w, the only part the actor sees |

The paper's loss is c = 0; any c has the same minimiser (see `discrete.py`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.nets import MLP, Branch, of_each
from laplacian_keyboard.types import Metrics, Spec, Transition


@dataclass(frozen=True)
class Config:
    """How continuous behaviors are learned. Defaults: the paper's Table 3 where it has an entry,
    else the implementation it follows (Touati et al.)."""

    network: Literal["two-branch", "plain"] = "two-branch"
    """Two branches, on (obs, action) and (obs, w), that meet in a hidden layer; or one MLP."""
    hidden: tuple[int, ...] = (1024, 1024)
    """Widths. Two branches: of a branch's first layer (its second has half of it), then of the
    hidden layers after they meet. Plain: of the hidden layers."""
    layer_norm: bool = True
    """Normalise the hidden layers of plain networks. Branches always are, in their first layer."""
    batch_size: int = 1024
    """Transitions in a batch."""
    actor_step_size: float = 1e-4
    """Adam's step size for the actor (paper)."""
    critic_step_size: float = 1e-3
    """Adam's step size for the critic (paper)."""
    num_steps: int = 0
    """Anneal both step sizes to zero over this many updates; 0 keeps them constant."""
    max_grad_norm: float = 0.001
    """Clip the global norm of the critic's gradient; 0 does not (paper)."""
    tau: float = 0.001
    """Rate of the slow copies (paper)."""
    policy_delay: int = 1
    """Critic updates for each actor update (paper)."""
    policy_noise: float = 0.0
    """Standard deviation of the noise on target actions, clipped at 0.3 (paper: none)."""
    gamma: float = 0.98
    """Discount of the behaviors (paper)."""
    goal_fraction: float = 0.5
    """Fraction of w that are features of a state, the rest uniform on the sphere."""
    climb: Literal["smaller", "first"] = "smaller"
    """What the actor climbs: the head that promises less at its action (Touati et al.), or always
    the first (TD3), which costs a tenth less."""
    emphasis: float = 0.0
    """Extra weight c of the error along w; 0 is the paper's plain vector loss."""


NOISE_CLIP = 0.3


class Actor(eqx.Module):
    """pi(s, w)."""

    branches: tuple[Branch, ...] | None
    head: MLP

    def __init__(self, config: Config, spec: Spec, k: int, *, key: PRNGKeyArray):
        sizes = (spec.obs_dim, spec.obs_dim + k)
        self.branches, width, hidden, norm = _body(config, sizes, key)
        # A small head keeps the first actions near zero, away from the flat ends of tanh.
        self.head = MLP(
            width or sizes[1],
            hidden,
            spec.action_dim,
            norm=norm,
            out_gain=0.1,
            key=jax.random.fold_in(key, 2),
        )

    def __call__(self, obs: Float[Array, "*b o"], w: Float[Array, "*b k"]) -> Float[Array, "*b m"]:
        return jnp.tanh(self.head(_meet(self.branches, obs, (obs, w))))


class Critic(eqx.Module):
    """psi_1 and psi_2 of (s, a, w)."""

    branches: tuple[Branch, ...] | None
    """Shared by both, as are the paper's; plain networks share nothing."""
    heads: MLP
    """Two, stacked on a leading axis."""

    def __init__(self, config: Config, spec: Spec, k: int, *, key: PRNGKeyArray):
        sizes = (spec.obs_dim + spec.action_dim, spec.obs_dim + k)
        self.branches, width, hidden, norm = _body(config, sizes, key)
        width = width or sizes[0] + k
        self.heads = jax.vmap(lambda key: MLP(width, hidden, k, norm=norm, key=key))(
            jax.random.split(jax.random.fold_in(key, 2))
        )

    def __call__(
        self, obs: Float[Array, "*b o"], action: Float[Array, "*b m"], w: Float[Array, "*b k"]
    ) -> Float[Array, "2 *b k"]:
        if self.branches is None:
            x = jnp.concatenate([obs, action, w], axis=-1)
        else:
            x = _meet(self.branches, jnp.concatenate([obs, action], axis=-1), (obs, w))
        return of_each(self.heads, x)

    def first(self) -> "Critic":
        """The critic with psi_1 alone."""
        return eqx.tree_at(lambda c: c.heads, self, jax.tree.map(lambda x: x[:1], self.heads))


def _body(config: Config, sizes: tuple[int, int], key: PRNGKeyArray):
    """The two branches, what they hand on, and the hidden layers after them."""
    if config.network == "plain":
        return None, 0, config.hidden, config.layer_norm
    width, *hidden = config.hidden
    branches = tuple(
        Branch(size, width, width // 2, key=jax.random.fold_in(key, i))
        for i, size in enumerate(sizes)
    )
    return branches, 2 * (width // 2), tuple(hidden), False


def _meet(branches: tuple[Branch, ...] | None, left: Array, right: tuple[Array, Array]) -> Array:
    both = jnp.concatenate(right, axis=-1)
    if branches is None:
        return both
    return jnp.concatenate([branches[0](left), branches[1](both)], axis=-1)


class Behaviors(eqx.Module):
    """What is kept of the training: the behaviors, and how they are judged."""

    actor: Actor
    critic: Critic | None
    """psi; a keyboard that only plays may do without."""


class State(eqx.Module):
    """Everything that changes in training."""

    actor: Learner[Actor]
    critic: Learner[Critic]
    step: Int[Array, ""]


def optimisers(
    config: Config,
) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    """The actor's and the critic's."""
    updates = math.ceil(config.num_steps / config.policy_delay)
    return (
        adam(config.actor_step_size, num_steps=updates),
        adam(
            config.critic_step_size,
            num_steps=config.num_steps,
            max_grad_norm=config.max_grad_norm,
        ),
    )


def init(config: Config, spec: Spec, k: int, *, key: PRNGKeyArray) -> State:
    """Fresh networks of k keys for the shapes of `spec`."""
    key_actor, key_critic = jax.random.split(key)
    actor_optimiser, critic_optimiser = optimisers(config)
    return State(
        Learner.create(Actor(config, spec, k, key=key_actor), actor_optimiser),
        Learner.create(Critic(config, spec, k, key=key_critic), critic_optimiser),
        jnp.zeros((), jnp.int32),
    )


def behaviors(state: State) -> Behaviors:
    """The slow copies: what is used after training."""
    assert state.actor.target is not None
    return Behaviors(state.actor.target, state.critic.target)


def act(
    behaviors: Behaviors, obs: Float[Array, "*b o"], w: Float[Array, "*b k"]
) -> Float[Array, "*b m"]:
    """The action of behavior w. Behaviors are deterministic."""
    return behaviors.actor(obs, w)


def next_action(
    config: Config,
    actor: Actor,
    obs: Float[Array, "b o"],
    w: Float[Array, "b k"],
    *,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "b m"]:
    """`pi(s', w)` in a target, with noise if the config has any."""
    action = actor(obs, w)
    if not config.policy_noise:
        return action
    assert key is not None, "noise on target actions needs a key"
    noise = config.policy_noise * jax.random.normal(key, action.shape)
    noise = jnp.clip(noise, -NOISE_CLIP, NOISE_CLIP)
    return jnp.clip(action + noise, -1.0, 1.0)


def target(
    config: Config,
    actor: Actor,
    critic: Critic,
    batch: Transition,
    next_phi: Float[Array, "b k"],
    w: Float[Array, "b k"],
    *,
    key: PRNGKeyArray,
) -> Float[Array, "b k"]:
    """`phi(s') + gamma psi_j(s', pi(s', w), w)`, j the head that promises less along w (eq. 4)."""
    action = next_action(config, actor, batch.next_obs, w, key=key)
    first, second = critic(batch.next_obs, action, w)
    first_is_less = jnp.sum((first - second) * w, axis=-1, keepdims=True) < 0
    careful = jnp.where(first_is_less, first, second)
    return next_phi + config.gamma * batch.discount[:, None] * careful


def critic_loss(
    critic: Critic,
    config: Config,
    batch: Transition,
    w: Float[Array, "b k"],
    y: Float[Array, "b k"],
) -> tuple[Float[Array, ""], Metrics]:
    """Squared error of both heads' whole vectors, with `emphasis` more along w."""
    k = w.shape[-1]
    error = critic(batch.obs, batch.action, w) - y
    vector = jnp.mean(jnp.sum(jnp.square(error), axis=-1), axis=-1) / k
    along_w = jnp.mean(jnp.square(jnp.sum(error * w, axis=-1)), axis=-1) / k
    loss = jnp.sum(vector + config.emphasis * along_w)
    return loss, {
        "successor/vector_loss": jnp.mean(vector),
        "successor/value_error": jnp.sqrt(jnp.mean(along_w) * k),
        "successor/value": jnp.mean(jnp.sum(y * w, axis=-1)),
    }


def actor_loss(
    actor: Actor, critic: Critic, config: Config, obs: Float[Array, "b o"], w: Float[Array, "b k"]
) -> Float[Array, ""]:
    """`-mean min_j psi_j(s, pi(s, w), w) . w`, or of the first head alone."""
    heads = critic.first() if config.climb == "first" else critic
    values = jnp.sum(heads(obs, actor(obs, w), w) * w, axis=-1)
    return -jnp.mean(jnp.min(values, axis=0))


def climb(
    config: Config,
    state: State,
    critic: Learner[Critic],
    obs: Float[Array, "b o"],
    w: Float[Array, "b k"],
) -> State:
    """The state after a critic step, with an actor step on the new critic when it is due."""
    actor_optimiser, _ = optimisers(config)

    def improve(actor: Learner[Actor]) -> Learner[Actor]:
        gradient = jax.grad(actor_loss)(actor.params, critic.params, config, obs, w)
        return actor.step(gradient, actor_optimiser, config.tau)

    if config.policy_delay == 1:
        actor = improve(state.actor)
    else:
        is_due = state.step % config.policy_delay == 0
        actor = jax.lax.cond(is_due, improve, lambda actor: actor, state.actor)
    return State(actor, critic, state.step + 1)


def update(
    config: Config,
    state: State,
    batch: Transition,
    next_phi: Float[Array, "b k"],
    w: Float[Array, "b k"],
    *,
    key: PRNGKeyArray,
) -> tuple[State, Metrics]:
    """One critic step for the given weights, and an actor step when it is due."""
    _, critic_optimiser = optimisers(config)
    slow_actor, slow_critic = state.actor.target, state.critic.target
    y = target(config, slow_actor, slow_critic, batch, next_phi, w, key=key)  # type: ignore[arg-type]
    gradient, metrics = jax.grad(critic_loss, has_aux=True)(
        state.critic.params, config, batch, w, y
    )
    critic = state.critic.step(gradient, critic_optimiser, config.tau)
    return climb(config, state, critic, batch.obs, w), metrics
