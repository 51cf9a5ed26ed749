"""The paper's figures: complete, consistent with each other, easy to ask for."""

import numpy as np
import pytest

from laplacian_keyboard.envs.tasks import DOMAINS, tasks_of
from laplacian_keyboard.experiments import paper
from laplacian_keyboard.stats import sign_test
from laplacian_keyboard.types import UserError

SIZES = ("1", "2", "3", "5", "10", "20", "50")
EXPLORERS = ("aps", "proto", "rnd")


def test_single_figures_are_the_papers():
    zero_shot = paper.table("zero-shot")
    assert zero_shot.value(domain="cheetah", task="run", method="fb") == (248, 7)
    assert zero_shot.value(domain="walker", task="avg", method="laplacian") == (582, None)
    by_dataset = paper.table("zero-shot-by-dataset")
    found = by_dataset.value(domain="walker", task="flip", explorer="aps", method="laplacian")
    assert found == paper.Value(mean=604, stderr=21)
    ratio = paper.table("auc-ratio")
    cheetah = {"explorer": "aps", "domain": "cheetah", "k": 10}
    found = [ratio.value(task=task, **cheetah).mean for task in tasks_of("cheetah")]
    assert found == [1.7, 0.7, 1.9, 1.0]
    assert paper.table("termination").value(t_term=15, task="walk_backward").mean == 12345


@pytest.mark.parametrize("name", ["basis-size", "improvement", "auc-ratio"])
def test_tables_over_the_basis_size_are_complete(name):
    table = paper.table(name)
    assert table.axes == ("explorer", "domain", "task", "k")
    expected = {
        (explorer, domain, task, k)
        for explorer in EXPLORERS
        for domain in DOMAINS
        for task in (*tasks_of(domain), paper.AVERAGE)
        for k in SIZES
    }
    assert set(table.values) == expected
    assert table.labels("k") == SIZES


def test_every_table_loads_and_has_a_figure_for_all_labels():
    for name in paper.TABLES:
        table = paper.table(name)
        assert all(len(key) == len(table.axes) for key in table.values)
        assert all(np.isfinite(value.mean) for value in table.values.values())


@pytest.mark.parametrize("method", ["fb", "laplacian"])
def test_the_main_table_is_the_mean_over_the_datasets_and_not_aps(method):
    main, by_dataset = paper.table("zero-shot"), paper.table("zero-shot-by-dataset")
    differences, from_aps = [], []
    for domain in DOMAINS:
        for task in tasks_of(domain):
            labels = {"domain": domain, "task": task, "method": method}
            each = [by_dataset.value(explorer=one, **labels).mean for one in EXPLORERS]
            differences.append(main.value(**labels).mean - np.mean(each))
            from_aps.append(main.value(**labels).mean - each[0])
    assert np.abs(differences).max() <= 1.0, "rounding only"
    assert np.abs(from_aps).max() > 100.0


def test_averages_are_those_of_the_tasks():
    table = paper.table("basis-size")
    for explorer, domain, task, k in table.values:
        if task == paper.AVERAGE:
            labels = {"explorer": explorer, "domain": domain, "k": k}
            each = [table.value(task=one, **labels).mean for one in tasks_of(domain)]
            assert abs(np.mean(each) - table.value(task=task, **labels).mean) <= 1.0


def test_k_50_is_the_same_in_both_tables():
    sizes, by_dataset = paper.table("basis-size"), paper.table("zero-shot-by-dataset")
    for domain, task, explorer, method in by_dataset.values:
        labels = {"domain": domain, "task": task, "explorer": explorer}
        if method == "laplacian":
            assert by_dataset.value(method=method, **labels) == sizes.value(k=50, **labels)


def test_the_papers_sign_test_finds_no_difference():
    table = paper.table("zero-shot")
    fb, laplacian = (
        [
            table.value(domain=domain, task=task, method=method).mean
            for domain in DOMAINS
            for task in tasks_of(domain)
        ]
        for method in ("fb", "laplacian")
    )
    found = sign_test(np.array(fb), np.array(laplacian))
    assert (found.wins, found.losses) == (7, 5)
    assert found.p_value == pytest.approx(0.774, abs=1e-3)


def test_mistakes_say_what_there_is():
    with pytest.raises(UserError, match="known: zero-shot"):
        paper.table("nonsense")
    with pytest.raises(UserError, match="needs domain, task, method"):
        paper.table("zero-shot").value(domain="cheetah")
    with pytest.raises(UserError, match="no entry for cheetah, swim, fb"):
        paper.table("zero-shot").value(domain="cheetah", task="swim", method="fb")
