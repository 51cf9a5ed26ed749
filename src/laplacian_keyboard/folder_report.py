"""Tables and curves of everything below a folder: one HTML page, and the tables as Markdown.

It reads the tables that `lk reproduce` leaves (`table.json`) and the curves of finished runs; runs
that differ in nothing but the seed become one curve with an interval.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from laplacian_keyboard.checkpoint import read_json
from laplacian_keyboard.figures import draw_interval, panels, to_png
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.report import Page
from laplacian_keyboard.stats import mean_interval
from laplacian_keyboard.types import UserError

TABLE_FILE = "table.json"
HTML_FILE, MARKDOWN_FILE = "report.html", "report.md"


@dataclass(frozen=True)
class Curve:
    """Mean returns of one run over its steps."""

    group: str
    """The same for runs that differ in nothing but the seed."""
    title: str
    """World and task: curves of one title share a panel."""
    name: str
    command: str
    folder: str
    steps: list[int]
    returns: list[float]


def write_folder_report(folder: str | Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` into a folder; returns both paths."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one that holds runs")
    tables = []
    for path in sorted(folder.rglob(TABLE_FILE)):
        tables.append(table := read_json(path))
        if missing := {"experiment", "preset", "command", "rows"} - table.keys():
            raise UserError(f"{path} lacks {min(missing)}: it is no table of `lk reproduce`")
    curves = find_curves(folder)
    if not tables and not curves:
        raise UserError(
            f"{folder} holds no finished runs with curves and no tables of `lk reproduce`"
        )
    page, markdown = Page(f"Runs in {folder.resolve().name}"), [f"# {folder.resolve().name}", ""]
    for table in tables:
        header, rows = cells_of(table["rows"])
        page.heading(f"{table['experiment']} ({table['preset']} preset)")
        page.table(header, rows)
        page.code(table["command"])
        markdown += [f"## {table['experiment']}", "", *_markdown(header, rows), ""]
        markdown += [f"`{table['command']}`", ""]
    if curves:
        page.heading("Learning curves")
        page.picture(
            to_png(draw_curves(curves)), "Means over seeds; shaded, their 95 % bootstrap intervals."
        )
        header, rows = _endings(curves)
        page.table(header, rows)
        markdown += ["## Learning curves", "", *_markdown(header, rows), ""]
    html_path, markdown_path = folder / HTML_FILE, folder / MARKDOWN_FILE
    write_atomically(html_path, page.render())
    write_atomically(markdown_path, "\n".join(markdown).encode())
    return html_path, markdown_path


def cells_of(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a table. A mean is shown with its interval, and where the paper has a
    figure for it the difference follows."""
    names = list(dict.fromkeys(name for row in rows for name in row if not _is_part(name)))
    header: list[str] = []
    columns: list[list[str]] = []
    for name in names:
        header.append(name.replace("_", " "))
        columns.append([_cell(row, name) for row in rows])
        if name == "paper" or name.startswith("paper_"):
            ours = name.removeprefix("paper").lstrip("_") or "mean"
            header.append("difference")
            columns.append([_difference(row, ours, name) for row in rows])
    return header, [list(row) for row in zip(*columns, strict=True)]


def _is_part(name: str) -> bool:
    """Whether a column is shown inside another."""
    return name.endswith("ci95") or name == "each"


def _cell(row: dict[str, Any], name: str) -> str:
    value, interval = row.get(name), row.get("ci95" if name == "mean" else f"{name}_ci95")
    if isinstance(value, dict) and "mean" in value:
        value, interval = value["mean"], value.get("ci95")
    if isinstance(value, dict | list):
        return json.dumps(value)
    text = _number(value)
    return f"{text} [{_number(interval[0])}, {_number(interval[1])}]" if interval else text


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _difference(row: dict[str, Any], ours: str, theirs: str) -> str:
    value, published = row.get(ours), row.get(theirs)
    value = value.get("mean") if isinstance(value, dict) else value
    if not isinstance(value, int | float) or not isinstance(published, int | float):
        return ""
    return f"{value - published:+.4g}"


def _markdown(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def find_curves(folder: Path) -> list[Curve]:
    """The learning curves of every finished run below a folder."""
    found = []
    for done in sorted(folder.rglob("done")):
        place = done.parent
        config, result = (place / name for name in ("config.json", "result.json"))
        if config.exists() and result.exists():
            described, outcome = read_json(config), read_json(result)
            found += _curves_of(str(place.relative_to(folder)), described, outcome)
    return found


def _curves_of(place: str, config: dict[str, Any], result: dict[str, Any]) -> list[Curve]:
    """One curve of a player or flat agent, or one for each task of a cell."""
    settings, command = config.get("settings", {}), config.get("command", "")
    group = json.dumps({**settings, "seed": None, "keyboard": None}, sort_keys=True)
    kind, domain = settings.get("kind", ""), settings.get("domain") or result.get("domain") or ""
    k = settings.get("k") or (settings.get("basis") or {}).get("k")
    name = {
        "td3": "flat TD3",
        "players": f"player, k = {k}, {settings.get('t_term')} steps a chord",
    }.get(kind, f"{kind}, k = {k}")
    if result.get("curve", {}).get("steps"):
        task, curve = str(result.get("task", "")), result["curve"]
        title = f"{domain} {task}".strip() or place
        # A return that was not a number is null in JSON.
        means = [float(np.mean(np.array(each, float))) for each in curve["returns"]]
        return [Curve(f"{group}{task}", title, name, command, place, curve["steps"], means)]
    return [
        Curve(
            f"{group}{task}",
            f"{domain} {task}",
            name,
            command,
            place,
            each["player_steps"],
            each["player_curve"],
        )
        for task, each in (result.get("tasks") or {}).items()
        if "player_curve" in each
    ]


def _grouped(curves: list[Curve]) -> list[tuple[Curve, np.ndarray]]:
    """The first curve of every group, with the returns `(seeds, steps)` of all of them."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.group, []).append(curve)
    together = []
    for members in groups.values():
        length = min(len(curve.returns) for curve in members)
        together.append((members[0], np.array([curve.returns[:length] for curve in members])))
    return together


def draw_curves(curves: list[Curve]) -> Figure:
    """A panel for each world and task."""
    titles = list(dict.fromkeys(curve.title for curve in curves))
    figure, axes = panels(len(titles), cell=(3.3, 2.6))
    panel_of = dict(zip(titles, axes, strict=True))
    for first, returns in _grouped(curves):
        steps = first.steps[: returns.shape[1]]
        draw_interval(panel_of[first.title], steps, returns.T, label=first.name)
    for title, one in panel_of.items():
        one.set_title(title, fontsize=9)
        one.tick_params(labelsize=7)
        one.grid(alpha=0.25)
        one.legend(fontsize=7, frameon=False)
    return figure


def _endings(curves: list[Curve]) -> tuple[list[str], list[list[str]]]:
    """The last return of every group, and the command that made it."""
    rows = []
    for first, returns in _grouped(curves):
        mean, (low, high) = mean_interval(returns[:, -1], rng=np.random.default_rng(0))
        final = f"{mean:.1f} [{low:.1f}, {high:.1f}]"
        made = first.command or first.folder
        rows.append(
            [first.title, first.name, str(len(returns)), f"{first.steps[-1]:,}", final, made]
        )
    return ["task", "agent", "seeds", "steps", "last return", "made by"], rows
