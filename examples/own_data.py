"""A keyboard from data of your own: arrays in, a behavior for any reward out.

    python examples/own_data.py [smoke|cpu]

Gymnasium's pendulum stands for your environment, which need not be one of Gymnasium's: what is
needed are episodes of observations and actions. No reward is looked at before a task is named.
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np

import laplacian_keyboard as lk

preset = sys.argv[1] if len(sys.argv) > 1 else "cpu"
env = gymnasium.make("Pendulum-v1")


def record(num_episodes):
    """Episodes of torques that wander, so that the pendulum swings high."""
    rng = np.random.default_rng(0)
    for seed in range(num_episodes):
        observations, actions = [env.reset(seed=seed)[0]], []
        action, terminated, truncated = np.zeros(1), False, False
        while not (terminated or truncated):
            action = np.clip(0.95 * action + 0.3 * rng.standard_normal(1), -1, 1)
            obs, _, terminated, truncated, _ = env.step(2 * action.astype(np.float32))
            observations.append(obs)
            actions.append(action)
        yield observations, actions, terminated


if not Path("data/pendulum").exists():
    lk.save_dataset("data/pendulum", record(20 if preset == "smoke" else 500))
dataset = lk.load_dataset("data/pendulum")
keyboard = lk.pretrain(dataset, k=5, preset=preset, out="runs/pendulum", quiet=False)

# A task is a reward for some states of the data: here, to be upright (the cosine of the angle).
states = dataset.next_observations(dataset.sample_next_rows(10_000, seed=0))
w = keyboard.infer(states, rewards=states[:, 0])

obs, _ = env.reset(seed=10_000)
upright = []
for _ in range(200):
    obs, *_ = env.step(2 * np.asarray(keyboard.act(obs, w)))
    upright.append(obs[0])
print(f"reward a step: {np.mean(upright):.2f} now, {np.mean(states[:, 0]):.2f} in the data")
