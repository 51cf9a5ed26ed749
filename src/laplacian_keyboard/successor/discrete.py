"""Stage 2 for discrete actions: universal successor features by Double DQN.

One network predicts, for every action, the features a behavior will collect. The behavior for the
reward `w . phi` takes the action whose prediction points most along w.

    loop:
      (s, a, s') ~ data;  w ~ sphere of radius sqrt(k), or phi of a random state
      a' = argmax_a psi(s', a, w) . w                     the online network chooses,
      y  = phi(s') + gamma psi_target(s', a', w)          the target network evaluates   (eq. 4)
      psi(s, a, w) <- y  under  (|e|^2 + c (e . w)^2) / k,  e = psi - y

| symbol | here | meaning |
|---|---|---|
| psi | network | expected discounted sum of phi from the next state on (eq. 3) |
| w | w | the task, or chord; |w| = sqrt(k) |
| gamma | gamma | discount of the behaviors |
| c | emphasis | extra weight of the error along w, the only part the behavior sees |

The paper's loss is c = 0. Any c has the same minimiser, psi itself; but where two behaviors tie,
psi jumps as a function of w and a network must blur it, and c > 0 makes it blur in the directions
that do not change `psi . w`.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from laplacian_keyboard.learner import Learner, adam
from laplacian_keyboard.nets import MLP
from laplacian_keyboard.types import Metrics, Spec, Transition


@dataclass(frozen=True)
class Config:
    """How discrete behaviors are learned. Defaults: the paper's Table 4 where it has one."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    layer_norm: bool = True
    """Normalise every hidden layer before its ReLU."""
    batch_size: int = 256
    """Transitions in a batch."""
    step_size: float = 1e-4
    """Adam's step size (paper)."""
    num_steps: int = 0
    """Anneal the step size to zero over this many updates; 0 keeps it constant."""
    max_grad_norm: float = 0.0
    """Clip the gradient's global norm; 0 does not (the paper clips at 0.01)."""
    tau: float = 0.001
    """Rate at which the target network follows (paper)."""
    gamma: float = 0.95
    """Discount of the behaviors (paper)."""
    goal_fraction: float = 0.5
    """Fraction of w that are features of a state, the rest uniform on the sphere."""
    emphasis: float = 0.0
    """Extra weight c of the error along w; 0 is the paper's plain vector loss."""
    changes: bool = False
    """Collect the changes phi(s') - phi(s) instead of phi(s'). Ours. The sum telescopes, so that
    the network holds (1 - gamma) psi - phi(s): the same behaviors in worlds without termination,
    and nothing to learn about features that stay as they are."""


class State(eqx.Module):
    """Everything that changes in training."""

    network: Learner[MLP]
    step: Int[Array, ""]


def optimiser(config: Config) -> optax.GradientTransformation:
    """The network's optimiser."""
    return adam(config.step_size, num_steps=config.num_steps, max_grad_norm=config.max_grad_norm)


def init(config: Config, spec: Spec, k: int, *, key: PRNGKeyArray) -> State:
    """A fresh network of k keys for the shapes of `spec`."""
    network = MLP(
        spec.obs_dim + k, config.hidden, spec.num_actions * k, norm=config.layer_norm, key=key
    )
    return State(Learner.create(network, optimiser(config)), jnp.zeros((), jnp.int32))


def behaviors(state: State) -> MLP:
    """The slow copy: what is used after training."""
    assert state.network.target is not None
    return state.network.target


def psi(network: MLP, obs: Float[Array, "*b o"], w: Float[Array, "*b k"]) -> Float[Array, "*b a k"]:
    """Successor features of every action."""
    outputs = network(jnp.concatenate([obs, w], axis=-1))
    return outputs.reshape(*outputs.shape[:-1], -1, w.shape[-1])


def q_values(
    network: MLP, obs: Float[Array, "*b o"], w: Float[Array, "*b k"]
) -> Float[Array, "*b a"]:
    """`psi(s, a, w) . w` for every action."""
    return jnp.einsum("...ak,...k->...a", psi(network, obs, w), w)


def act(
    network: MLP,
    obs: Float[Array, "*b o"],
    w: Float[Array, "*b k"],
    *,
    key: PRNGKeyArray | None = None,
) -> Int[Array, "*b"]:
    """The greedy action of behavior w. Behaviors are deterministic; `key` is not used."""
    return jnp.argmax(q_values(network, obs, w), axis=-1)


def target(
    config: Config,
    network: MLP,
    target_network: MLP,
    batch: Transition,
    next_phi: Float[Array, "b k"],
    w: Float[Array, "b k"],
) -> Float[Array, "b k"]:
    """`phi(s') + gamma psi_target(s', argmax_a psi(s', a, w) . w, w)` (eq. 4)."""
    next_action = act(network, batch.next_obs, w)
    next_psi = _of_action(psi(target_network, batch.next_obs, w), next_action)
    return next_phi + config.gamma * batch.discount[:, None] * next_psi


def loss(
    network: MLP,
    config: Config,
    batch: Transition,
    w: Float[Array, "b k"],
    y: Float[Array, "b k"],
) -> tuple[Float[Array, ""], Metrics]:
    """Squared error of the whole vector, with `emphasis` more along w."""
    k = w.shape[-1]
    error = _of_action(psi(network, batch.obs, w), batch.action) - y
    vector = jnp.mean(jnp.sum(jnp.square(error), axis=-1)) / k
    along_w = jnp.mean(jnp.square(jnp.sum(error * w, axis=-1))) / k
    return vector + config.emphasis * along_w, {
        "successor/vector_loss": vector,
        "successor/value_error": jnp.sqrt(along_w * k),
        "successor/value": jnp.mean(jnp.sum(y * w, axis=-1)),
    }


def update(
    config: Config,
    state: State,
    batch: Transition,
    next_phi: Float[Array, "b k"],
    w: Float[Array, "b k"],
    *,
    key: PRNGKeyArray | None = None,
) -> tuple[State, Metrics]:
    """One gradient step on the batch for the given weights."""
    network = state.network
    y = target(config, network.params, network.target, batch, next_phi, w)  # type: ignore[arg-type]
    gradient, metrics = jax.grad(loss, has_aux=True)(network.params, config, batch, w, y)
    network = network.step(gradient, optimiser(config), config.tau)
    return State(network, state.step + 1), metrics


def _of_action(values: Float[Array, "b a k"], action: Int[Array, "b"]) -> Float[Array, "b k"]:
    return jnp.take_along_axis(values, action[:, None, None], axis=1)[:, 0]
