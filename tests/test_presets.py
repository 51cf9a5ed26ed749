"""The preset `paper` is the paper's Tables 3 and 4, entry by entry."""

import dataclasses

import pytest

from laplacian_keyboard import presets
from laplacian_keyboard.composing import updates_of

TABLE_3 = {
    "N_allo": 1_000_000,
    "gamma_allo": 0.5,
    "alpha_allo": 1e-4,
    "N_usfa": 1_000_000,
    "lambda_usfa": 0.001,
    "tau_usfa": 0.001,
    "gamma_usfa": 0.98,
    "N": 10_000,
    "N_lk": 200_000,
    "B_lk": 16,
    "tau_lk": 0.01,
    "d_lk": 5,
    "epsilon_lk": 0.01,
    "alpha_lk_a": 1e-4,
    "alpha_lk_c": 1e-3,
    "t_term": 5,
    "gamma_lk": 0.98,
}
TABLE_4 = {
    "N_allo": 500_000,
    "gamma_allo": 0.1,
    "alpha_allo": 1e-4,
    "N_usfa": 1_000_000,
    "lambda_usfa": 0.01,
    "tau_usfa": 0.001,
    "gamma_usfa": 0.95,
    "N": 50_000,
    "N_lk": 500_000,
    "B_lk": 32,
    "tau_lk": 0.001,
    "d_lk": 10,
    "epsilon_lk": 0.1,
    "alpha_lk_a": 1e-4,
    "alpha_lk_c": 1e-4,
    "t_term": 5,
    "gamma_lk": 0.95,
}


def in_symbols(found: presets.Settings) -> dict[str, float]:
    """The settings that both tables have, by the paper's symbols."""
    basis, usfa, player, td3 = found.basis, found.successor, found.player, found.player.td3
    return {
        "N_allo": found.basis_steps,
        "gamma_allo": basis.pair_discount,
        "alpha_allo": basis.step_size,
        "N_usfa": found.successor_steps,
        "lambda_usfa": usfa.max_grad_norm,
        "tau_usfa": usfa.tau,
        "gamma_usfa": usfa.gamma,
        "N": found.inference_states,
        "N_lk": found.player_steps * found.player_updates // player.t_term,
        "B_lk": td3.batch_size,
        "tau_lk": td3.tau,
        "d_lk": td3.policy_delay,
        "epsilon_lk": td3.exploration_noise,
        "alpha_lk_a": td3.actor_step_size,
        "alpha_lk_c": td3.critic_step_size,
        "t_term": player.t_term,
        "gamma_lk": player.gamma,
    }


@pytest.mark.parametrize("domain", ["cheetah", "walker", "quadruped"])
def test_robots_have_table_3(domain):
    found = presets.settings("paper", 10, discrete=False, domain=domain)
    assert in_symbols(found) == TABLE_3
    usfa: presets.continuous.Config = found.successor  # type: ignore[assignment]
    assert (usfa.actor_step_size, usfa.critic_step_size) == (1e-4, 1e-3)
    assert (usfa.policy_delay, usfa.policy_noise) == (1, 0.0)


def test_item_collector_has_table_4():
    found = presets.settings("paper", 10, discrete=True, domain="item-collector")
    assert in_symbols(found) == TABLE_4
    assert found.successor.step_size == 1e-4  # type: ignore[union-attr]


def test_four_rooms_has_the_horizon_of_the_stitching_figure():
    found = presets.settings("paper", 5, discrete=True, domain="four-rooms")
    assert found.player.t_term == found.player_updates == 6


def test_forward_backward_is_metamotivos_and_hilps_walker_its_authors():
    fb = presets.settings("paper", 50, discrete=False, basis="fb", domain="cheetah")
    assert (fb.basis.hidden, fb.basis.target_rule, fb.basis.orthonormality) == (
        (256, 256),
        "mean",
        0.5,
    )
    assert fb.successor_steps == 1_000_000
    gammas = [
        presets.settings("paper", 50, discrete=False, basis="hilp", domain=domain).basis.gamma
        for domain in ("walker", "cheetah")
    ]
    assert gammas == [0.96, 0.98]


@pytest.mark.parametrize("t_term", [1, 3, 6, 12])
def test_another_horizon_keeps_the_updates_of_a_step(t_term):
    found = presets.settings("cpu", 5, discrete=True, domain="four-rooms")
    config = dataclasses.replace(found.player, t_term=t_term)
    a_step = found.player_updates / found.player.t_term
    assert updates_of(found, config) == pytest.approx(a_step * t_term, abs=0.5)
