"""Reward-free explorers. None ever reads a task's reward.

`babble` learns nothing. `rnd`, `proto` and `aps` are TD3 agents whose reward is their own surprise;
each file has `Config`, `State`, `init`, `intrinsic_reward`, `update` and `act`.
"""
