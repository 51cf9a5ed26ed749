"""What a behavior does, to look at: recordings, strips of poses, videos. Needs no OpenGL.

states = record("cheetah", agent, steps=1_000, seed=0)
film_strip("cheetah", {"walk": states})              a matplotlib figure
save_video("walk.gif", "cheetah", states)            or walk.mp4
"""

import contextlib
import io
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from laplacian_keyboard.envs.domains import grid_map, make_vector_env
from laplacian_keyboard.evaluate import Agent
from laplacian_keyboard.figures import new_figure
from laplacian_keyboard.files import write_atomically
from laplacian_keyboard.scenes import AIR, TILE, Maze, Rendered, Scene, scene_of
from laplacian_keyboard.types import UserError

FPS = 25.0
"""Pictures a second: a whole number of the hundredths a GIF counts in."""
TRAIL = 0.12
"""Time between a pose of a film strip and the faint ones behind it, s."""
INK = "#57606a"


def record(
    domain: str, agent: Agent, *, steps: int, seed: int, task: str | None = None
) -> NDArray[Any]:
    """What `scene_of` draws, of one episode of an agent: the first state, and the one after each
    of at most `steps` steps."""
    if domain.startswith("gym:"):
        return _record_pictures(domain.removeprefix("gym:"), agent, steps, seed)
    return record_many(domain, agent, steps=steps, seeds=[seed], task=task)[0]


def record_many(
    domain: str, agent: Agent, *, steps: int, seeds: Sequence[int], task: str | None = None
) -> NDArray[np.float64]:
    """The same of several episodes side by side, one a seed, `(seeds, n, ...)`, until the first of
    them ends."""
    env: Any = make_vector_env(domain, task, len(seeds))
    if not hasattr(env, "physics_states"):
        raise UserError(f"cannot film {domain!r}: it has no physics to draw")
    (obs, _), first = env.reset(seed=list(seeds)), np.ones(len(seeds), bool)
    states = [_state(domain, obs, env.physics_states())]
    for _ in range(steps):
        obs, _, terminated, truncated, infos = env.step(np.asarray(agent.act(obs, first)))
        if terminated.any() or truncated.any():
            states.append(_state(domain, infos["final_obs"], infos.get("final_physics")))
            break
        states.append(_state(domain, obs, env.physics_states()))
        first = np.zeros(len(seeds), bool)
    return np.stack(states, axis=1).astype(np.float64)


def _state(domain: str, obs: np.ndarray, physics: np.ndarray | None) -> np.ndarray:
    """Physics if there is any; else the place that a grid world's observation names."""
    if physics is not None:
        return physics
    rows, _ = grid_map(domain).shape
    return np.stack([obs[:, rows:].argmax(axis=1), obs[:, :rows].argmax(axis=1)], axis=1) + 0.5


def _record_pictures(env_id: str, agent: Agent, steps: int, seed: int) -> NDArray[np.uint8]:
    import gymnasium

    from laplacian_keyboard.envs.host import as_vector

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Gymnasium warns of is an error below
            single = gymnasium.make(env_id, render_mode="rgb_array")
        if "rgb_array" not in single.metadata.get("render_modes", []):
            raise UserError("it has no render mode rgb_array")
        env = as_vector(single)
        (obs, _), first = env.reset(seed=seed), np.ones(1, bool)
        pictures: list[Any] = [single.render()]
        for _ in range(steps):
            obs, _, terminated, truncated, _ = env.step(np.asarray(agent.act(obs, first)))
            if terminated[0] or truncated[0]:
                break  # the environment already shows the next episode
            pictures.append(single.render())
            first = np.zeros(1, bool)
        env.close()
        return np.stack(pictures).astype(np.uint8)
    except Exception as error:  # whatever the environment's own drawing raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{env_id} cannot be filmed, it renders no pictures: {reason}") from error


def film_strip(
    domain: str,
    states: Mapping[str, NDArray[Any]],
    num_frames: int = 8,
    *,
    task: str | None = None,
) -> Figure:
    """A row of poses for each named behavior, evenly spaced in time, with the way travelled below.
    On a map, one panel with the whole path for each."""
    if not states or num_frames < 1:
        raise UserError("a film strip needs at least one behavior and one frame")
    scenes = {name: scene_of(domain, np.asarray(each), task) for name, each in states.items()}
    if all(isinstance(scene, Maze) for scene in scenes.values()):
        return _panels(scenes)
    width, height = next(iter(scenes.values())).picture(0).size
    cell = 1.35
    figure, axes = new_figure(len(scenes), num_frames, cell=(cell, cell * height / width + 0.2))
    _tighten(figure)
    for number, (name, scene) in enumerate(scenes.items()):
        step = round(TRAIL * scene.rate)
        for one, i in zip(axes[number], _spread(len(scene), num_frames), strict=True):
            trail = [j for j in (i - 2 * step, i - step) if j >= 0]
            one.imshow(np.asarray(scene.picture(i, trail)))
            one.set_xlabel(scene.caption(i), fontsize=7, color=INK, labelpad=2)
            _frame(one)
            if number == 0:
                one.set_title(f"{i / scene.rate:.1f} s", fontsize=8, color=INK, pad=3)
        axes[number, 0].set_ylabel(name, rotation=0, fontsize=10, ha="right", va="center")
    return figure


def _panels(scenes: Mapping[str, Scene]) -> Figure:
    columns = min(len(scenes), 6)
    figure, axes = new_figure(-(-len(scenes) // columns), columns, cell=(1.8, 2.0))
    for one in axes.flat[len(scenes) :]:
        one.set_visible(False)
    for one, (name, scene) in zip(axes.flat, scenes.items(), strict=False):
        one.imshow(np.asarray(scene.picture(len(scene) - 1)))
        one.set_title(name, fontsize=9)
        _frame(one)
    return figure


def _tighten(figure: Figure) -> None:
    """Bring frames close together, as on film."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(w_pad=0.01, h_pad=0.02, wspace=0, hspace=0)  # type: ignore[call-arg]


def _frame(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color=TILE, linewidth=0.6)


def _spread(length: int, count: int) -> list[int]:
    """`count` of `length` indices, evenly spaced, the first and the last among them."""
    return np.linspace(0, length - 1, count).round().astype(int).tolist()


def check_video(path: str | Path) -> Path:
    """The path of a video that can be written, else a UserError: ask before the work is done."""
    path = Path(path)
    if path.suffix not in (".gif", ".mp4"):
        raise UserError(f"cannot write a video to {path}: its name must end in .gif or .mp4")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    if path.suffix == ".mp4":
        _ffmpeg()
    return path


def save_video(
    path: str | Path,
    domain: str,
    states: NDArray[Any],
    fps: float = FPS,
    *,
    task: str | None = None,
) -> Path:
    """Write recorded states as a .gif or .mp4, in real time where the world has a clock. A task
    marks its goal on a map."""
    path = check_video(path)
    if not fps > 0:
        raise UserError(f"fps is {fps}: it must be positive")
    scene = scene_of(domain, np.asarray(states), task)
    shown = np.arange(0, len(scene), scene.rate / fps).astype(int).tolist()
    encode = _encode_gif if path.suffix == ".gif" else _encode_mp4
    write_atomically(path, encode(scene, shown, fps))
    return path


def _titled(scene: Scene, i: int) -> Image.Image:
    """State i with time and place written on it."""
    image = scene.picture(i)
    if not isinstance(scene, Rendered):
        text = f"{i / scene.rate:.1f} s   {scene.caption(i)}"
        colour = AIR if isinstance(scene, Maze) else INK
        ImageDraw.Draw(image).text((8, 6), text, fill=colour, font=ImageFont.load_default(13))
    return image


def _encode_gif(scene: Scene, shown: list[int], fps: float) -> bytes:
    # One palette for all, so that nothing flickers, made of pictures from beginning to end.
    some = [np.asarray(_titled(scene, shown[i])) for i in _spread(len(shown), 4)]
    palette = Image.fromarray(np.hstack(some)).quantize(128)
    plain = Image.Dither.NONE
    pictures = (_titled(scene, i).quantize(palette=palette, dither=plain) for i in shown)
    buffer = io.BytesIO()
    next(pictures).save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=pictures,
        duration=round(1000 / fps),
        loop=0,
    )
    return buffer.getvalue()


def _encode_mp4(scene: Scene, shown: list[int], fps: float) -> bytes:
    width, height = _titled(scene, 0).size
    source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps} -i -".split()
    target = ["-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video.mp4"  # an mp4 is not written from front to back
        command = [_ffmpeg(), "-v", "error", *source, *target, str(file)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        # A pipe that breaks is seen in what the program returns.
        with contextlib.suppress(BrokenPipeError), process:
            assert process.stdin is not None
            for i in shown:
                process.stdin.write(_titled(scene, i).tobytes())
        if process.returncode != 0:
            raise UserError("ffmpeg could not write the video; write a .gif instead")
        return file.read_bytes()


def _ffmpeg() -> str:
    """The program of the extra `video`."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe  # pyright: ignore[reportMissingImports]

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise UserError(
            "writing .mp4 needs ffmpeg: pip install 'laplacian-keyboard[video]', or write a .gif"
        ) from error
