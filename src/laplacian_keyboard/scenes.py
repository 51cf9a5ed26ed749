"""Robots and mazes as pictures, without OpenGL, which servers rarely have.

A robot is drawn from its geoms. Each is a sum of straight half-axes s (a capsule's length, a box's
edges) and round ones r (a ball's radii) around a centre c. An orthographic camera P maps them to
the plane, where the outline of the sum has the point with normal d at

    P c + sum_s sign(d . P s) P s + sum_r P r (d . P r) / |d . P r|

With heights set to zero in P this is the shadow on the floor, and minus a little d it is the shape
inside a contour.
"""

# MuJoCo's compiled modules have no type stubs.
# pyright: reportAttributeAccessIssue=false

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from laplacian_keyboard.envs.domains import (
    DMC,
    grid_goals,
    grid_map,
    is_grid,
    is_point_maze,
    point_maze_goal,
    point_maze_map,
)
from laplacian_keyboard.envs.grid import GridMap
from laplacian_keyboard.figures import AGENT, GOAL, WALL
from laplacian_keyboard.types import UserError

Array = NDArray[np.float64]
Fill = Callable[[Array, Any], None]
"""Fills a shape `(points, 2)`, in metres, with a colour."""

BODY, CONTOUR, EYE = "#dfa75c", "#4e3417", "#3b4252"
FLOOR, TILE, SHADOW, AIR = "#eceff4", "#dde2ea", "#c3cad6", "#ffffff"

STEPS_A_SECOND = 25.0
"""Speed of worlds that have no clock of their own."""
CELL_PIXELS = 32
TILE_SIZE = 0.5
"""Edge of the floor's tiles, m."""
SMOOTHING = 2
"""Pictures are drawn this many times larger and then reduced: PIL draws hard edges."""
ANGLES = np.linspace(0, 2 * np.pi, 48, endpoint=False)
NORMALS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
"""Directions d in which outlines have points, `(points, 2)`."""


class Scene(Protocol):
    """Something that happened, to be looked at state by state."""

    rate: float
    """States a second."""

    def __len__(self) -> int: ...

    def picture(self, i: int, trail: Sequence[int] = ()) -> Image.Image:
        """State i, with the states of `trail` faintly behind it."""
        ...

    def caption(self, i: int) -> str:
        """Where state i is."""
        ...


def scene_of(domain: str, states: NDArray[Any], task: str | None = None) -> Scene:
    """The scene of recorded states: a robot's physics, positions (x, y) in cells on a map, or a
    Gymnasium environment's own pictures. A task marks its goal on a map."""
    if domain in DMC:
        return Robot(domain, states)
    if is_point_maze(domain):
        goal = point_maze_goal(domain, task)
        return Maze(point_maze_map(domain), states, [goal] if goal else [])
    if is_grid(domain):
        grid = grid_map(domain)
        cells = grid.cells[grid_goals(domain, task)].reshape(-1, 2)
        return Maze(grid, states, [(column + 0.5, row + 0.5) for row, column in cells.tolist()])
    if domain.startswith("gym:"):
        return Rendered(states)
    raise UserError(f"cannot draw {domain!r}: only {', '.join(DMC)}, mazes, grids and gym:ENV_ID")


@dataclass(frozen=True)
class View:
    """An orthographic camera that follows a robot; x runs to the right."""

    size: tuple[float, float]
    """Width and height of the picture, m; in pixels multiples of 16, as video codecs like them."""
    below: float
    """How much of the height lies below the robot's place on the floor, m."""
    azimuth: float
    """Degrees; at 0 it looks along y."""
    elevation: float
    """Degrees; at 0 the floor is a line."""
    floor: float
    """Extent of the floor to either side along y, m."""
    scale: int = 200
    """Pixels a metre."""

    @cached_property
    def axes(self) -> Array:
        """Right, up and away from the camera, in world coordinates, `(3, 3)`."""
        a, e = np.radians((self.azimuth, self.elevation))
        right = np.array([np.cos(a), np.sin(a), 0.0])
        away = np.array([-np.sin(a) * np.cos(e), np.cos(a) * np.cos(e), -np.sin(e)])
        return np.stack([right, np.cross(right, away), away])


VIEWS = {
    "cheetah": View((2.24, 1.28), below=0.2, azimuth=0, elevation=9, floor=0.45),
    "walker": View((2.24, 1.92), below=0.2, azimuth=0, elevation=9, floor=0.45),
    "quadruped": View((2.4, 1.76), below=0.6, azimuth=24, elevation=28, floor=np.inf),
}


class Robot:
    """Poses of a MuJoCo robot, from its physics `(n, p)`."""

    def __init__(self, domain: str, physics: NDArray[Any]):
        import mujoco

        from laplacian_keyboard.envs.dmc import load_domain

        world = load_domain(domain)
        model, data = world.model, mujoco.MjData(world.model)
        if physics.ndim != 2 or physics.shape[1] != world.physics_dim or not len(physics):
            raise UserError(
                f"states have shape {physics.shape}: a {domain} state is {world.physics_dim} long"
            )
        if not np.isfinite(physics).all():
            raise UserError("states are not finite: they are damaged and cannot be drawn")
        self.rate = 1 / (world.substeps * model.opt.timestep)
        self.view = VIEWS[domain]
        geoms = np.flatnonzero(model.geom_bodyid > 0).tolist()
        centers, frames, torso = [], [], []
        for state in physics:
            data.qpos[:] = state[: model.nq]
            mujoco.mj_kinematics(model, data)
            centers.append(data.geom_xpos[geoms])
            frames.append(data.geom_xmat[geoms].reshape(-1, 3, 3))
            torso.append(data.xpos[1].copy())
        self.centers, frames = np.stack(centers), np.stack(frames)
        straight, rounded = zip(*(half_axes(model, geom) for geom in geoms), strict=True)
        self.straight = frames * np.array(straight)[:, None]
        self.rounded = frames * np.array(rounded)[:, None]
        self.travelled = np.stack(torso) - torso[0]
        self.place = self.centers.mean(axis=1) * (1.0, 1.0, 0.0)
        """The point of the floor that the camera follows, `(n, 3)`."""
        is_eye = ["eye" in model.geom(geom).name for geom in geoms]
        self.colours = np.array([to_rgb(EYE if eye else BODY) for eye in is_eye])

    def __len__(self) -> int:
        return len(self.centers)

    def caption(self, i: int) -> str:
        """How far the torso has come."""
        x, y, _ = np.round(self.travelled[i], 1) + 0.0  # adding turns -0.0 into 0.0
        return f"{x:+.1f} m" if np.isfinite(self.view.floor) else f"({x:+.1f}, {y:+.1f}) m"

    def outlines(self, i: int, project: Array) -> Array:
        """Outlines `(geoms, points, 2)` of state i under a projection `(2, 3)`."""
        return outlines(self.centers[i], self.straight[i], self.rounded[i], project)

    def picture(self, i: int, trail: Sequence[int] = ()) -> Image.Image:
        view, project = self.view, self.view.axes[:2]
        shapes = self.outlines(i, project)
        left, bottom = project @ self.place[i] - (view.size[0] / 2, view.below)
        # Whoever jumps out of the picture takes the camera along.
        bottom = max(bottom, shapes[..., 1].max() + 0.05 - view.size[1])
        right, top = left + view.size[0], bottom + view.size[1]
        zoom = view.scale * SMOOTHING
        image = Image.new("RGB", (round(view.size[0] * zoom), round(view.size[1] * zoom)), AIR)
        draw = ImageDraw.Draw(image)

        def fill(shape: Array, colour: Any) -> None:
            draw.polygon(((shape - (left, top)) * (zoom, -zoom)).ravel().tolist(), fill=colour)

        _draw_floor(fill, view, np.array(list(itertools.product((left, right), (bottom, top)))))
        for shape in self.outlines(i, project * (1.0, 1.0, 0.0)):
            fill(shape, SHADOW)
        for age, ghost in enumerate(trail):
            for shape in self.outlines(ghost, project):
                fill(shape, _mix(BODY, AIR, 0.78 - 0.2 * age / len(trail)))
        away = (self.centers[i] - self.place[i]) * view.axes[2]
        sideways = away[:, 0] + away[:, 1]
        shade = np.minimum(1.0, 0.94 - 0.28 * sideways / max(0.05, np.abs(sideways).max()))
        for geom in np.argsort(-away.sum(axis=1), kind="stable"):
            shape, colour = shapes[geom], self.colours[geom] * shade[geom]
            fill(shape, CONTOUR)
            fill(shape - 0.011 * NORMALS, _mix(colour))
            fill(shape - 0.027 * NORMALS + (-0.004, 0.008), _mix(colour, AIR, 0.22))
        return image.reduce(SMOOTHING)


def outlines(centers: Array, straight: Array, rounded: Array, project: Array) -> Array:
    """Outlines `(g, points, 2)` of geoms with these centres `(g, 3)` and half-axes `(g, 3, 3)`, in
    columns, under a projection `(2, 3)`."""
    straight, rounded = project @ straight, project @ rounded
    corner = np.sign(NORMALS @ straight) @ straight.swapaxes(1, 2)
    reach = NORMALS @ rounded
    length = np.linalg.norm(reach, axis=2, keepdims=True)
    curve = (reach / np.maximum(length, 1e-9)) @ rounded.swapaxes(1, 2)
    return (centers @ project.T)[:, None] + corner + curve


def _draw_floor(fill: Fill, view: View, corners: Array) -> None:
    """The tiles inside a picture with these corners. They stay where they are as a robot moves."""
    to_screen = view.axes[:2, :2]
    on_floor = corners @ np.linalg.inv(to_screen).T
    low, high = on_floor.min(axis=0), on_floor.max(axis=0)
    low[1], high[1] = max(low[1], -view.floor), min(high[1], view.floor)
    if low[1] >= high[1]:
        return

    def rectangle(x: Any, y: Any) -> Array:
        return np.array([(x[0], y[0]), (x[-1], y[0]), (x[-1], y[-1]), (x[0], y[-1])]) @ to_screen.T

    across, along = _tile_edges(low[0], high[0]), _tile_edges(low[1], high[1])
    fill(rectangle(across, along), FLOOR)
    for x, y in itertools.product(itertools.pairwise(across), itertools.pairwise(along)):
        if (sum(x) / 2 // TILE_SIZE + sum(y) / 2 // TILE_SIZE) % 2:
            fill(rectangle(x, y), TILE)


def _tile_edges(low: float, high: float) -> Array:
    """Edges of the tiles between two bounds, which cut the outer tiles."""
    inner = np.arange(np.ceil(low / TILE_SIZE), np.ceil(high / TILE_SIZE)) * TILE_SIZE
    return np.unique([low, *inner, high])


def half_axes(model: Any, geom: int) -> tuple[Array, Array]:
    """Straight and round half-axes of a geom along x, y, z of its frame, m."""
    from mujoco import mjtGeom

    a, b, c = model.geom_size[geom]
    none = (0.0, 0.0, 0.0)
    straight, rounded = {
        mjtGeom.mjGEOM_SPHERE: (none, (a, a, a)),
        mjtGeom.mjGEOM_CAPSULE: ((0.0, 0.0, b), (a, a, a)),
        mjtGeom.mjGEOM_ELLIPSOID: (none, (a, b, c)),
        mjtGeom.mjGEOM_CYLINDER: ((0.0, 0.0, b), (a, a, 0.0)),
        mjtGeom.mjGEOM_BOX: ((a, b, c), none),
    }[mjtGeom(model.geom_type[geom])]
    return np.array(straight), np.array(rounded)


def _mix(colour: Any, other: str = AIR, share: float = 0.0) -> tuple[int, ...]:
    """A colour with a share of another, as PIL takes it."""
    mixed = (1 - share) * np.array(to_rgb(colour)) + share * np.array(to_rgb(other))
    return tuple(np.round(255 * mixed).astype(int).tolist())


class Maze:
    """A path `(n, 2)` on a map, or several of equal length `(paths, n, 2)`."""

    rate = STEPS_A_SECOND

    def __init__(
        self, grid: GridMap, positions: NDArray[Any], goals: Sequence[tuple[float, float]] = ()
    ):
        if positions.ndim not in (2, 3) or positions.shape[-1] != 2 or not positions.size:
            raise UserError(f"states have shape {positions.shape}: the last axis must be (x, y)")
        self.grid, self.goals = grid, goals
        self.paths = positions.reshape(-1, *positions.shape[-2:])

    def __len__(self) -> int:
        return self.paths.shape[1]

    def caption(self, i: int) -> str:
        """How many steps were made."""
        return f"step {i}"

    def picture(self, i: int, trail: Sequence[int] = ()) -> Image.Image:
        rows, columns = self.grid.shape
        zoom = CELL_PIXELS * SMOOTHING
        image = Image.new("RGB", (columns * zoom, rows * zoom), WALL)
        draw = ImageDraw.Draw(image)
        for row, column in self.grid.cells.tolist():
            box = (column * zoom, row * zoom, (column + 1) * zoom - 1, (row + 1) * zoom - 1)
            draw.rectangle(box, fill=FLOOR)

        def disc(place: Any, radius: float, colour: Any) -> None:
            x, y = np.array(place) * zoom
            draw.circle((x, y), radius * zoom, fill=colour)

        for goal in self.goals:
            disc(goal, 0.5, GOAL)
        for path in self.paths:
            disc(path[0], 0.16, _mix(AGENT, FLOOR, 0.75))
            for j in range(i):
                colour = _mix(AGENT, FLOOR, 0.75 * (1 - (j + 1) / i))
                stroke = (path[j : j + 2] * zoom).ravel().tolist()
                draw.line(stroke, fill=colour, width=zoom // 7)
                disc(path[j + 1], 1 / 14, colour)  # rounds the corner
        for place in self.paths[:, i]:
            disc(place, 0.26, CONTOUR)
            disc(place, 0.21, AGENT)
        return image.reduce(SMOOTHING)


class Rendered:
    """Pictures `(n, height, width, 3)` that an environment has made itself."""

    rate = STEPS_A_SECOND

    def __init__(self, pictures: NDArray[Any]):
        if pictures.ndim != 4 or pictures.shape[-1] != 3 or not len(pictures):
            raise UserError(f"states have shape {pictures.shape}: they must be RGB pictures")
        height, width = (length // 2 * 2 for length in pictures.shape[1:3])
        self.pictures = pictures[:, :height, :width]  # video codecs want even numbers

    def __len__(self) -> int:
        return len(self.pictures)

    def caption(self, i: int) -> str:
        """How many steps were made."""
        return f"step {i}"

    def picture(self, i: int, trail: Sequence[int] = ()) -> Image.Image:
        return Image.fromarray(self.pictures[i])
