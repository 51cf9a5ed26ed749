"""Files that are whole or not there, and the folder of a run."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laplacian_keyboard.checkpoint import (
    RunFolder,
    fingerprint,
    load_arrays,
    read_arrays,
    read_json,
    save_arrays,
    write_json,
)
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.types import UserError

SETTINGS = {"kind": "test", "basis": {"k": 5, "hidden": (32, 32)}, "seed": 0}


def tree() -> dict[str, Any]:
    """One leaf of every kind a training state has."""
    return {
        "weights": [jax.random.normal(jax.random.key(0), (3, 4)), jnp.zeros((0, 2))],
        "scalar": jnp.float32(1.5),
        "step": jnp.int32(7),
        "flags": jnp.array([True, False]),
        "flag": jnp.array(True),
        "bytes": jnp.arange(5, dtype=jnp.uint8),
        "odd": jnp.array([np.nan, -0.0, np.inf]),
    }


def contents(folder: Path) -> dict[str, bytes]:
    """Everything in a folder; two equal ones mean that nothing was touched."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def one_line(error: pytest.ExceptionInfo[UserError], *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_arrays_come_back_bitwise(tmp_path):
    path = tmp_path / "a.safetensors"
    save_arrays(path, tree(), {"note": "x"})
    loaded, metadata = load_arrays(path, jax.eval_shape(tree))
    assert metadata == {"note": "x"}
    assert jax.tree.structure(loaded) == jax.tree.structure(tree())
    for got, wanted in zip(jax.tree.leaves(loaded), jax.tree.leaves(tree()), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert np.asarray(got).tobytes() == np.asarray(wanted).tobytes()


def test_a_transposed_array_comes_back_as_it_was(tmp_path):
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3).T
    save_arrays(tmp_path / "a.safetensors", array)
    loaded, _ = load_arrays(tmp_path / "a.safetensors", array)
    np.testing.assert_array_equal(loaded, array)


def test_equal_trees_have_equal_fingerprints_and_others_do_not():
    changed = tree() | {"step": jnp.int32(8)}
    renamed = {("steps" if name == "step" else name): value for name, value in tree().items()}
    assert fingerprint(tree()) == fingerprint(tree())
    assert len({fingerprint(tree()), fingerprint(changed), fingerprint(renamed)}) == 3


def test_equal_arrays_make_equal_files(tmp_path):
    path, metadata = tmp_path / "a.safetensors", {"stage": "basis", "step": "5", "format": "1"}
    files = set()
    for _ in range(20):
        save_arrays(path, tree(), metadata)
        files.add(path.read_bytes())
    assert len(files) == 1


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path, keep):
    path = tmp_path / "a.safetensors"
    save_arrays(path, tree())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError) as error:
        load_arrays(path, tree())
    one_line(error, str(path), "corrupt")


def test_any_flipped_byte_is_an_error_that_names_the_file_or_changes_nothing(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays, metadata = {"x": np.arange(3, dtype=np.int32)}, {"stage": "basis", "step": "20"}
    save_arrays(path, arrays, metadata)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found, said = load_arrays(path, arrays)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            np.testing.assert_array_equal(found["x"], arrays["x"])
            assert said == metadata, f"byte {place}"


@pytest.mark.parametrize(
    ("like", "said"),
    [
        ({"x": jnp.zeros(4)}, "float32[3], expected float32[4]"),
        ({"x": jnp.zeros(3, jnp.int32)}, "float32[3], expected int32[3]"),
        ({"y": jnp.zeros(3)}, "lacks ['y']"),
        ({}, "has ['x']"),
    ],
)
def test_arrays_of_other_shapes_or_names_are_an_error(tmp_path, like, said):
    path = tmp_path / "a.safetensors"
    save_arrays(path, {"x": jnp.zeros(3)})
    with pytest.raises(UserError) as error:
        load_arrays(path, like)
    one_line(error, str(path), said, "other settings")


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UserError, match=r"none\.safetensors does not exist"):
        read_arrays(tmp_path / "none.safetensors")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_arrays(path, {"x": jnp.zeros(3)})
    before = contents(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError) as error:
        save_arrays(path, {"x": jnp.ones(3)})
    one_line(error, str(path), "No space left on device")
    assert contents(tmp_path) == before


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(UserError, match=r"cannot write .*none/a"):
        write_atomically(tmp_path / "none" / "a", b"")


def test_broken_json_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "a.json").write_text('{"k": ')
    with pytest.raises(UserError) as error:
        read_json(tmp_path / "a.json")
    one_line(error, "a.json is not valid JSON")


def test_a_figure_that_is_not_a_number_still_makes_json_that_others_read(tmp_path):
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    write_json(tmp_path / "a.json", {"path_ratio": math.nan})
    json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)


def test_a_run_folder_records_settings_command_and_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lk", "pretrain", "data"])
    RunFolder(tmp_path / "run", SETTINGS, {"dataset": "data"})
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"] == json.loads(json.dumps(SETTINGS))
    assert config["command"] == "lk pretrain data"
    assert config["origin"] == {"dataset": "data"}
    assert {"python", "jax", "numpy"} <= config["versions"].keys()
    RunFolder(tmp_path / "run", SETTINGS, {"dataset": "moved"})  # the same run


def test_a_run_of_other_settings_is_refused_by_name_and_left_alone(tmp_path):
    run = RunFolder(tmp_path / "run", SETTINGS)
    run.save_state("basis", 10, tree())
    del run
    before = contents(tmp_path)
    other = SETTINGS | {"basis": {"k": 6, "hidden": (32, 32)}}
    with pytest.raises(UserError) as error:
        RunFolder(tmp_path / "run", other)
    one_line(error, str(tmp_path / "run"), "k = 5, not 6")
    with pytest.raises(UserError, match="seed = 0, not None"):
        RunFolder(tmp_path / "run", {"kind": "test", "basis": SETTINGS["basis"]})
    assert contents(tmp_path) == before


def test_a_folder_that_is_not_a_run_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    before = contents(tmp_path)
    for path in (tmp_path, tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "run"):
        with pytest.raises(UserError) as error:
            RunFolder(path, SETTINGS)
        one_line(error, str(path))
    assert contents(tmp_path) == before


def test_an_empty_folder_becomes_a_run(tmp_path):
    assert RunFolder(tmp_path, SETTINGS).stage() is None


def test_a_run_killed_before_its_settings_were_written_starts_afresh(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.json.4711.tmp").write_text('{"comm')
    RunFolder(tmp_path, SETTINGS)
    assert read_json(tmp_path / "config.json")["settings"]["seed"] == 0


def test_a_second_process_is_refused_while_the_first_runs(tmp_path):
    code = (
        "import sys\n"
        "from laplacian_keyboard.checkpoint import RunFolder\n"
        "run = RunFolder(sys.argv[1], {})\n"
        "print('open', flush=True)\n"
        "sys.stdin.readline()\n"
        "run.finish({})\n"
        "print('finished', flush=True)\n"
        "sys.stdin.read()\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=f"another process is writing to {tmp_path}"):
            RunFolder(tmp_path, {})
        assert first.stdin is not None
        print("finish", file=first.stdin, flush=True)
        assert first.stdout.readline() == "finished\n"
        assert RunFolder(tmp_path, {}).is_done, "what is complete can be read"
        first.kill()


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from laplacian_keyboard.checkpoint import RunFolder\n"
        "run = RunFolder(sys.argv[1], {})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    assert not RunFolder(tmp_path, {}).is_done


def test_the_same_process_may_open_its_run_again(tmp_path):
    """A notebook's interrupted cell keeps the first one alive in its traceback."""
    first = RunFolder(tmp_path, SETTINGS)
    first.log("basis", 1, {})
    RunFolder(tmp_path, SETTINGS)


def test_state_comes_back_for_its_own_stage_only(tmp_path):
    run = RunFolder(tmp_path, SETTINGS)
    assert run.load_state("basis", tree()) is None
    run.save_state("basis", 10, tree())
    run.save_state("basis", 20, tree())
    assert run.stage() == ("basis", 20)
    found = run.load_state("basis", tree())
    assert found is not None
    assert found[1] == 20
    assert fingerprint(found[0]) == fingerprint(tree())
    assert run.load_state("behaviors", tree()) is None


def test_forgetting_drops_torn_and_later_lines_of_the_stage(tmp_path):
    run = RunFolder(tmp_path, SETTINGS)
    run.forget_after("basis", 0)
    for stage, step in (("basis", 10), ("basis", 20), ("basis", 30), ("behaviors", 40)):
        run.log(stage, step, {"loss": [0.5]})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "basis", "st')
    run.forget_after("basis", 20)
    run.log("basis", 30, {})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    kept = [("basis", 10), ("basis", 20), ("behaviors", 40), ("basis", 30)]
    assert [(line["stage"], line["step"]) for line in lines] == kept


def test_finishing_leaves_result_and_mark_and_no_training_state(tmp_path):
    run = RunFolder(tmp_path, SETTINGS)
    run.save_state("basis", 10, tree())
    assert not run.is_done
    run.finish({"cosine": 0.5})
    assert run.is_done
    assert run.result() == {"cosine": 0.5}
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock",
        "config.json",
        "done",
        "result.json",
    }
