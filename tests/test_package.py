"""The package as a whole: direction of imports, light import, public names, docstrings."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import laplacian_keyboard

ROOT = Path(laplacian_keyboard.__file__).parent
PACKAGE = "laplacian_keyboard"

ROOMS = {
    "0 words": "types",
    "1 tools": "nets learner inputs spectral files compiling devices",
    "2 method": "bases successor player zero_shot gpi baselines explore",
    "2' world": "envs data",
    # `gather` runs explorers in worlds; `pretraining` and `composing` read `presets`, so
    # that counts as running.
    "3 running": "train evaluate checkpoint log stats figures report run_figures run_report "
    "folder_report scenes film keyboard pretraining composing host_loop flat presets gather "
    "parallel cluster option_keyboard seeds",
    "4 doors": "__init__ experiments bench sweep play cli",
}
ROOM_OF = {name: room for room, names in ROOMS.items() for name in names.split()}
MAY_IMPORT = {
    "0 words": "0 words",
    "1 tools": "0 words, 1 tools",
    "2 method": "0 words, 1 tools, 2 method",
    "2' world": "0 words, 1 tools, 2' world",
    "3 running": "0 words, 1 tools, 2 method, 2' world, 3 running",
    "4 doors": ", ".join(ROOMS),
}
EXCEPTIONS: set[tuple[str, str]] = set()
"""(module, imported module) that may point the other way; each with its reason."""

HEAVY = ("mujoco", "dm_control", "gymnasium", "matplotlib", "ray")
UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def modules() -> dict[str, ast.Module]:
    """Every source file by its dotted name inside the package; the package itself is `__init__`."""
    trees = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
        trees[".".join(parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules of the package that a file imports, at its top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            found = [f"{PACKAGE}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found = [node.module or ""]
        else:
            continue
        for name in found:
            if name == PACKAGE:
                yield "__init__"
            elif name.startswith(f"{PACKAGE}."):
                yield name.removeprefix(f"{PACKAGE}.")


def room(module: str) -> str:
    return ROOM_OF[module.split(".")[0]]


def test_every_module_has_a_room():
    tops = {module.split(".")[0] for module in modules()}
    assert tops <= ROOM_OF.keys(), f"add {tops - ROOM_OF.keys()} to ROOMS"


def test_imports_point_one_way():
    backward = {
        (module, imported)
        for module, tree in modules().items()
        for imported in imports(tree)
        if room(imported) not in MAY_IMPORT[room(module)].split(", ")
    }
    assert backward - EXCEPTIONS == set()
    assert EXCEPTIONS - backward == set(), "no longer needed"


def test_importing_the_package_is_light():
    code = f"import sys, {PACKAGE}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert PACKAGE in loaded
    assert loaded.isdisjoint(HEAVY)


def test_every_public_name_resolves():
    assert len(set(laplacian_keyboard.__all__)) == len(laplacian_keyboard.__all__)
    for name in laplacian_keyboard.__all__:
        assert getattr(laplacian_keyboard, name) is not None
        assert name in dir(laplacian_keyboard)
    assert not hasattr(laplacian_keyboard, "nonsense")


def test_every_public_module_class_and_function_has_a_docstring():
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    missing = []
    for module, tree in modules().items():
        public = [n for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]
        missing += [f"{module}.{n.name}" for n in public if not ast.get_docstring(n)]
        missing += [] if ast.get_docstring(tree) else [module]
    assert not missing, ", ".join(missing)


def test_nothing_is_unpickled_or_evaluated():
    unsafe = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").split(".")[0]]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = [f"{node.func.id}("]
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                safe = isinstance(node.value, ast.Constant) and node.value.value is False
                names = [] if safe else ["allow_pickle"]
            bad = UNSAFE_MODULES | {"eval(", "exec(", "allow_pickle"}
            unsafe += [f"{module}: {name}" for name in names if name in bad]
    assert unsafe == []


def _printed(code: str, **environment: str) -> str:
    """What a new Python prints that knows of no setting of JAX's but these."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    run = [sys.executable, "-c", code]
    out = subprocess.run(run, env={**ours, **environment}, capture_output=True, check=True)
    return out.stdout.decode().strip()


def test_compilations_are_kept_unless_the_user_says_otherwise(tmp_path):
    code = (
        "import jax\n"
        "from laplacian_keyboard.compiling import keep_compilations\n"
        "keep_compilations()\n"
        "print(jax.config.jax_compilation_cache_dir)"
    )

    def folder(**environment: str) -> str:
        return _printed(code, **environment)

    cache = str(tmp_path / "cache")
    assert folder(XDG_CACHE_HOME=cache).startswith(f"{cache}/laplacian-keyboard/xla-")
    assert folder(XDG_CACHE_HOME=cache, JAX_COMPILATION_CACHE_DIR="/elsewhere") == "/elsewhere"
    (tmp_path / "file").write_text("")
    assert folder(XDG_CACHE_HOME=str(tmp_path / "file")) == "None"
