"""TD3 and the player over it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laplacian_keyboard import player
from laplacian_keyboard.baselines import td3
from laplacian_keyboard.data.replay import Replay
from laplacian_keyboard.types import Spec, TimeStep, Transition

SPEC = Spec(3, action_dim=2)
CONFIG = td3.Config(hidden=(16,), policy_noise=0.0, batch_size=32)


def make_batch(count: int = 6) -> Transition:
    keys = jax.random.split(jax.random.key(0), 5)
    return Transition(
        obs=jax.random.normal(keys[0], (count, 3)),
        action=jax.random.uniform(keys[1], (count, 2), minval=-1, maxval=1),
        reward=jax.random.normal(keys[2], (count,)),
        discount=jax.random.uniform(keys[3], (count,)),
        next_obs=jax.random.normal(keys[4], (count, 3)),
    )


def test_target_takes_the_smaller_of_both_critics():
    state, batch = td3.init(CONFIG, SPEC, key=jax.random.key(0)), make_batch()
    y = td3.target(CONFIG, state.actor.params, state.critic.params, batch, key=jax.random.key(1))
    action = jnp.tanh(state.actor.params(batch.next_obs))
    values = td3.q_values(CONFIG, state.critic.params, batch.next_obs, action)
    assert values.shape == (2, 6) and not np.allclose(values[0], values[1])
    expected = batch.reward + batch.discount * np.minimum(values[0], values[1])
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_critics_may_see_the_direction_of_an_action_alone():
    state, batch = td3.init(CONFIG, SPEC, key=jax.random.key(0)), make_batch()
    config = dataclasses.replace(CONFIG, critic_sees="direction")
    values = lambda scale: td3.q_values(  # noqa: E731
        config, state.critic.params, batch.obs, scale * batch.action
    )
    np.testing.assert_allclose(values(0.1), values(1.0), rtol=1e-4, atol=1e-5)
    longest = batch.action * (2.0**0.5 / jnp.linalg.norm(batch.action, axis=-1, keepdims=True))
    plain = td3.q_values(CONFIG, state.critic.params, batch.obs, longest)
    np.testing.assert_allclose(values(1.0), plain, rtol=1e-4, atol=1e-5)


def test_target_noise_is_clipped():
    noisy = dataclasses.replace(CONFIG, policy_noise=100.0, policy_noise_clip=0.0)
    state, batch = td3.init(CONFIG, SPEC, key=jax.random.key(0)), make_batch()
    args = (state.actor.params, state.critic.params, batch)
    a = td3.target(noisy, *args, key=jax.random.key(1))
    np.testing.assert_allclose(a, td3.target(CONFIG, *args, key=jax.random.key(2)), rtol=1e-6)


def test_actor_changes_only_when_due():
    config = dataclasses.replace(CONFIG, policy_delay=3)
    state = td3.init(config, SPEC, key=jax.random.key(0))
    changed = []
    for i in range(6):
        after, _ = td3.update(config, state, make_batch(), key=jax.random.key(i))
        leaves = zip(jax.tree.leaves(state.actor), jax.tree.leaves(after.actor), strict=True)
        changed.append(any(not np.array_equal(a, b) for a, b in leaves))
        state = after
    assert changed == [True, False, False, True, False, False]


def test_td3_finds_the_best_action_of_a_bandit():
    """A probe with a known answer: reward 1 - (a - 0.5 s)^2, one step."""
    config = td3.Config(
        hidden=(64,),
        batch_size=64,
        actor_step_size=3e-3,
        critic_step_size=3e-3,
        policy_delay=1,
        policy_noise=0.0,
    )
    spec = Spec(1, action_dim=1)

    @jax.jit
    def train(state):
        def step(state, key):
            key_s, key_a, key_u = jax.random.split(key, 3)
            s = jax.random.uniform(key_s, (64, 1), minval=-1, maxval=1)
            a = jax.random.uniform(key_a, (64, 1), minval=-1, maxval=1)
            reward = 1 - jnp.square(a - 0.5 * s)[:, 0]
            batch = Transition(s, a, reward, jnp.zeros(64), s)
            return td3.update(config, state, batch, key=key_u)[0], None

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 1_500))[0]

    state = train(td3.init(config, spec, key=jax.random.key(0)))
    s = jnp.linspace(-1, 1, 9)[:, None]
    np.testing.assert_allclose(td3.act(config, state.actor.params, s), 0.5 * s, atol=0.12)


def counting_world(end: int, *, terminal: bool):
    """Reward 1, 2, 3, ...; the episode is over after `end` steps."""

    def step(state, action):
        state = state + 1
        over = state >= end
        discount = jnp.where(over & terminal, 0.0, 1.0)
        return state, TimeStep(state[None] * 1.0, state * 1.0, discount, over)

    return step


@pytest.mark.parametrize(
    ("end", "terminal", "rewards", "length", "alive"),
    [
        (99, True, [1, 2, 3, 4], 4, 1.0),  # the chord runs its full time
        (2, True, [1, 2], 2, 0.0),  # the episode terminates inside it
        (3, False, [1, 2, 3], 3, 1.0),  # the episode is cut off by the time limit: bootstrapped
    ],
)
def test_a_stretch_is_one_semi_markov_transition(end, terminal, rewards, length, alive):
    config = player.Config(t_term=4, gamma=0.9)
    u = jnp.array([0.3, -0.4])
    seen = []

    def behavior(obs, w):
        seen.append(w)
        return jnp.zeros(())

    state, stretch, over, total = player.play(
        config,
        counting_world(end, terminal=terminal),
        behavior,
        jnp.zeros((), jnp.int32),
        jnp.zeros(1),
        u,
    )
    np.testing.assert_allclose(
        stretch.reward, sum(r * 0.9**i for i, r in enumerate(rewards)), rtol=1e-6
    )
    np.testing.assert_allclose(stretch.discount, alive * 0.9**length, rtol=1e-6)
    assert float(stretch.next_obs[0]) == length == int(state)
    assert bool(over) == (end <= 4)
    assert float(total) == sum(rewards)
    np.testing.assert_array_equal(stretch.action, u)
    np.testing.assert_allclose(np.linalg.norm(seen[0]), np.sqrt(2), rtol=1e-5)


def test_a_chord_of_one_key_is_the_sign_of_the_players_output():
    u = jnp.array([[0.2], [-0.7]])
    np.testing.assert_allclose(player.chord(u), [[1.0], [-1.0]])


def test_replay_keeps_the_newest_and_samples_only_what_was_stored():
    example = Transition(jnp.zeros(1), jnp.zeros(1), jnp.zeros(()), jnp.zeros(()), jnp.zeros(1))
    replay = Replay.create(example, 5)
    for start in (0, 3, 6):
        rewards = jnp.arange(start, start + 3) * 1.0
        column = rewards[:, None]
        replay = replay.add(Transition(column, column, rewards, rewards, column))
        drawn = set(np.asarray(replay.sample(200, key=jax.random.key(start)).reward).tolist())
        newest = set(np.arange(max(0, start + 3 - 5), start + 3).astype(float).tolist())
        assert drawn == newest
    assert int(replay.size) == 5
