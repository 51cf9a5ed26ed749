"""What the README shows runs as it stands, at the size of a test."""

import re
from pathlib import Path

import numpy as np

from laplacian_keyboard import cli

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


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
