"""The paper's own figures, to stand beside ours.

    paper.table("zero-shot").value(domain="cheetah", task="run", method="fb")  -> Value(248.0, 7.0)

| table | axes | figures |
|---|---|---|
| zero-shot | domain, task, method | return at k = 50: Forward-Backward against Laplacian |
| zero-shot-by-dataset | domain, task, explorer, method | the same for each dataset |
| basis-size | explorer, domain, task, k | return of the Laplacian basis |
| improvement | explorer, domain, task, k | of the player over zero-shot, percent |
| auc-ratio | explorer, domain, task, k | of the player to TD3, first 200,000 steps |
| termination | t_term, task | AUC of the player, cheetah, APS, k = 50 |

Tasks have this package's names; `avg` is the paper's mean over the tasks of a domain. The caption
of `zero-shot` says APS, but its figures are the means over the three datasets of
`zero-shot-by-dataset`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from laplacian_keyboard.types import UserError

AVERAGE = "avg"

_SOURCES = {
    "zero-shot": ("zero_shot_k50_fb_vs_laplacian_main", "domain task method"),
    "zero-shot-by-dataset": ("zero_shot_k50_by_dataset", "domain task explorer method"),
    "basis-size": ("zero_shot_by_k", "explorer domain task k"),
    "improvement": ("improvement_over_zero_shot_percent", "explorer domain task k"),
    "auc-ratio": ("auc_ratio_vs_td3", "explorer domain task k"),
    "termination": ("auc_by_termination_horizon_cheetah_aps_k50", "t_term task"),
}
TABLES = tuple(_SOURCES)

_TASK_NAMES = {"run-b": "run_backward", "walk-b": "walk_backward"}


class Value(NamedTuple):
    """A figure of the paper."""

    mean: float
    stderr: float | None
    """Standard error of the mean; None where the paper gives none."""


def explorer_beside(explorer: str) -> str:
    """The explorer whose figures stand beside those of ours: the same, if the paper has it."""
    return explorer if explorer in table("improvement").labels("explorer") else "aps"


@dataclass(frozen=True)
class Table:
    """A table of the paper: a figure for each combination of labels."""

    name: str
    axes: tuple[str, ...]
    values: Mapping[tuple[str, ...], Value]

    def value(self, **labels: Any) -> Value:
        """The figure with these labels, one for each axis: `value(domain="cheetah", ..., k=10)`."""
        if set(labels) != set(self.axes):
            given = ", ".join(labels) or "none"
            raise UserError(f"table {self.name} needs {', '.join(self.axes)}; given: {given}")
        key = tuple(str(labels[axis]) for axis in self.axes)
        if key not in self.values:
            raise UserError(f"the paper's table {self.name} has no entry for {', '.join(key)}")
        return self.values[key]

    def find(self, **labels: Any) -> float | None:
        """The mean with these labels, or None where the paper has no such entry."""
        try:
            return self.value(**labels).mean
        except UserError:
            return None

    def labels(self, axis: str) -> tuple[str, ...]:
        """The labels along an axis, in the table's order."""
        index = self.axes.index(axis)
        return tuple(dict.fromkeys(key[index] for key in self.values))


@cache
def table(name: str) -> Table:
    """A table by its name, one of `TABLES`."""
    if name not in _SOURCES:
        raise UserError(f"the paper has no table {name!r}; known: {', '.join(TABLES)}")
    source, axes = _SOURCES[name]
    names = tuple(axes.split())
    text = (resources.files("laplacian_keyboard.experiments") / "paper_results.json").read_text(
        encoding="utf-8"
    )
    return Table(name, names, dict(_flatten(json.loads(text)[source], len(names))))


def _flatten(
    entry: Any, depth: int, key: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Value]]:
    """(labels, figure) of every leaf, `depth` labels deep."""
    if depth == 0:
        yield key, _value(entry)
        return
    for label, inner in entry.items():
        yield from _flatten(inner, depth - 1, (*key, _our_name(label)))


def _our_name(label: str) -> str:
    return _TASK_NAMES.get(label, label)


def _value(entry: Any) -> Value:
    if not isinstance(entry, dict):
        return Value(float(entry), None)
    stderr = entry["stderr"]
    return Value(float(entry["mean"]), None if stderr is None else float(stderr))
