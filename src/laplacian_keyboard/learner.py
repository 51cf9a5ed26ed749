"""Parameters, their optimiser state and a slow copy of them, as one pytree."""

from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

Params = TypeVar("Params")


class Learner(eqx.Module, Generic[Params]):
    """Parameters with their optimiser's state, and the moving average used as target (or None)."""

    params: Params
    opt_state: optax.OptState
    target: Params | None

    @classmethod
    def create(
        cls, params: Params, optimiser: optax.GradientTransformation, *, target: bool = True
    ) -> "Learner[Params]":
        # optax types its trees as arrays; an equinox module is such a tree.
        tree: Any = params
        # A copy, so that a jitted function may be given the whole learner to overwrite.
        slow = jax.tree.map(jnp.copy, params) if target else None
        return cls(params, optimiser.init(tree), slow)

    def step(
        self, gradient: Params, optimiser: optax.GradientTransformation, tau: float = 0.0
    ) -> "Learner[Params]":
        """One optimiser step, then target <- (1 - tau) target + tau params."""
        tree: Any = self.params
        updates, opt_state = optimiser.update(gradient, self.opt_state, tree)  # type: ignore[arg-type]
        params: Any = optax.apply_updates(tree, updates)
        if self.target is None:
            return Learner(params, opt_state, None)
        target: Any = self.target
        return Learner(params, opt_state, optax.incremental_update(params, target, tau))


def adam(
    step_size: float, *, num_steps: int = 0, max_grad_norm: float = 0.0
) -> optax.GradientTransformation:
    """Adam, with the step size annealed to zero over `num_steps` (0: constant) along a cosine
    and the gradient's global norm clipped at `max_grad_norm` (0: not clipped)."""
    schedule = optax.cosine_decay_schedule(step_size, num_steps) if num_steps else step_size
    clip = optax.clip_by_global_norm(max_grad_norm) if max_grad_norm else optax.identity()
    return optax.chain(clip, optax.adam(schedule))
