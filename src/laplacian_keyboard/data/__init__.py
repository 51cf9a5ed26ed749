"""Reward-free experience: datasets on disk and in memory, and sampling from them."""
