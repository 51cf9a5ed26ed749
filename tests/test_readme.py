"""What the README shows runs as it stands, at the size of a test."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np

from laplacian_keyboard import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli.main(["collect", "four-rooms", "--steps", "20000", "--out", "data/four-rooms"])
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(compile(block.replace('"cpu"', '"smoke"'), "README.md", "exec"), names)
    assert np.asarray(names["action"]).shape == (16,)
    assert names["player"].keyboard.k == 5


def test_the_commands_of_the_readme_exist():
    shown = re.findall(r"^lk ([a-z-]+(?: info)?)", README, re.MULTILINE)
    assert len(shown) >= 8 and set(shown) <= cli.COMMANDS.keys()


def test_the_example_of_own_data_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_data.py", "smoke"])
    names = runpy.run_path(str(ROOT / "examples" / "own_data.py"))
    assert names["dataset"].num_transitions == 4_000
    assert "in the data" in capsys.readouterr().out
