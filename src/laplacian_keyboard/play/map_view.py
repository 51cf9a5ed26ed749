"""A map in the browser: colours on its cells, arrows of the behavior, a point and its trail.

The map lies in the plane z = 0 with x to the right and y upwards, so row r and column c are the
square from (c, -r - 1) to (c + 1, -r). Clicking a cell puts a reward there, or takes it away.
"""

import html
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from laplacian_keyboard.envs import domains
from laplacian_keyboard.envs.grid import MOVES
from laplacian_keyboard.play.exact import Oracle, Values

if TYPE_CHECKING:
    from laplacian_keyboard.play.page import Page

PIXELS = 32
"""Of a cell's side in the picture."""
LOW, MIDDLE, HIGH = (58, 90, 170), (250, 249, 246), (217, 130, 43)
WALL, INK, GAIN, LOSS = (58, 62, 70), (60, 64, 72), (30, 140, 80), (190, 50, 50)
HANDS, PLAYER = (58, 90, 170), (217, 130, 43)
CHORD, REWARD, OPTIMAL = "the chord", "the reward", "the optimal value"
BRUSH = {"+1": 1.0, "-1": -1.0}

Array = NDArray[np.float64]


class MapView:
    """The map of one tab."""

    def __init__(self, page: "Page"):
        self.page = page
        instrument = page.instrument
        assert instrument.map is not None
        self.grid = instrument.map
        self._phi = instrument.phi_of_cells()
        self._observations = instrument.observations_of_cells()
        self._oracle: Oracle | None = None
        if domains.is_grid(instrument.domain):
            gamma = instrument.keyboard.config.successor.gamma
            self._oracle = Oracle(self.grid, instrument.k, gamma)
        self._seen: Any = None
        rows, columns = self.grid.shape
        scene = page.client.scene
        self._picture = scene.add_image(
            "/map",
            self._paint(),
            render_width=columns,
            render_height=rows,
            format="png",
            position=(columns / 2, -rows / 2, 0.0),
            cast_shadow=False,
            receive_shadow=False,
        )
        self._point = scene.add_icosphere("/point", radius=0.3, color=HANDS, cast_shadow=False)
        self._trail = scene.add_line_segments(
            "/trail", np.zeros((1, 2, 3)), HANDS, thickness=3.0, thickness_units="screen"
        )
        scene.on_click()(lambda event: page.hand(lambda: self.click(event))(None))
        camera = page.client.camera
        # Above the middle: the keys cover the bottom.
        target = np.array([0.48 * columns, -0.65 * rows, 0.0])
        camera.up_direction = (0.0, 1.0, 0.0)
        camera.fov = np.deg2rad(30.0)
        camera.position = target + np.array([0.0, 0.0, 2.7 * max(rows, columns)])
        camera.look_at = target
        self.draw()

    def controls(self) -> None:
        """What the colours mean, and what a click does."""
        gui, k = self.page.gui, self.page.instrument.k
        names = [CHORD, *(f"e_{i + 1}" for i in range(k)), REWARD]
        if self._oracle is not None:
            names.append(OPTIMAL)
        self._colours = gui.add_dropdown("Colours", names)
        self._brush = gui.add_dropdown("A click gives", tuple(BRUSH))
        self._values = gui.add_html("")

    def draw(self) -> None:
        """Show where the point is."""
        x, y = self.page.session.body.pose()
        self._point.position = (x, -y, 0.15)

    def refresh(self) -> None:
        """Show the trail, and the picture where it has changed."""
        session = self.page.session
        with session.lock:
            trail = np.array(session.trail)
            wanted = (session.version, id(session.aim), self._colours.value)
        places = np.column_stack([trail[:, 0], -trail[:, 1], np.full(len(trail), 0.1)])
        if len(places) > 1:
            self._trail.points = np.stack([places[:-1], places[1:]], axis=1).astype(np.float32)
        if wanted == self._seen:
            return
        self._seen = wanted
        colour = HANDS if session.player is None else PLAYER
        self._point.color = colour
        self._trail.colors = np.array(colour, np.uint8)
        self._picture.image = self._paint()

    def click(self, event: Any) -> None:
        """Put a reward on the cell under the mouse, or take it away."""
        origin, direction = np.array(event.ray_origin), np.array(event.ray_direction)
        if abs(direction[2]) < 1e-9:
            return
        x, y, _ = origin - direction * origin[2] / direction[2]
        self.toggle(int(np.floor(-y)), int(np.floor(x)))

    def toggle(self, row: int, column: int) -> None:
        """Change the reward of a cell, and play for the new rewards."""
        session = self.page.session
        found = np.flatnonzero((self.grid.cells == (row, column)).all(axis=1))
        if not len(found):
            return
        cells = dict((session.aim.cells if session.aim is not None else None) or {})
        cell, value = int(found[0]), BRUSH.get(self._brush.value, 1.0)
        if cells.get(cell) == value:
            del cells[cell]
        else:
            cells[cell] = value
        if cells:
            self.page.pursue(self.page.instrument.aim_at_cells(cells))
        else:
            session.silence()
            session.aim = None

    def _paint(self) -> NDArray[np.uint8]:
        session, instrument = self.page.session, self.page.instrument
        w, aim = session.w, session.aim
        rewards = None if aim is None else instrument.rewards_of_cells(aim)
        actions = instrument.keyboard.act(self._observations, w) if w.any() else None
        values = None
        if self._oracle is not None and rewards is not None and actions is not None:
            values = self._oracle.values(rewards, np.asarray(actions))
        self._describe(values)
        rows, columns = self.grid.shape
        shown = self.grid.paint(self._shown(w, rewards, values))
        picture = np.full((rows, columns, 3), WALL, np.uint8)
        free = ~np.isnan(shown)
        picture[free] = colours(shown[free])
        image = Image.fromarray(picture).resize((columns * PIXELS, rows * PIXELS), 0)
        pen = ImageDraw.Draw(image)
        if actions is not None:
            self._arrows(pen, np.asarray(actions))
        for cell, value in (aim.cells or {}).items() if aim is not None else ():
            row, column = (self.grid.cells[cell] * PIXELS).tolist()
            box = (column + 2, row + 2, column + PIXELS - 3, row + PIXELS - 3)
            pen.rectangle(box, outline=GAIN if value > 0 else LOSS, width=4)
        return np.asarray(image)[::-1]  # viser's first row is the lowest

    def _shown(self, w: Array, rewards: Array | None, values: Values | None) -> Array:
        """The number behind every cell's colour."""
        choice = self._colours.value if hasattr(self, "_colours") else CHORD
        if choice == REWARD:
            return np.zeros(len(self._phi)) if rewards is None else rewards
        if choice == OPTIMAL:
            return np.zeros(len(self._phi)) if values is None else values.optimal
        if choice == CHORD:
            return self._phi @ w if w.any() else self._phi[:, 0]
        return self._phi[:, int(choice.removeprefix("e_")) - 1]

    def _arrows(self, pen: ImageDraw.ImageDraw, actions: NDArray[Any]) -> None:
        """A line from the middle of each cell to where the behavior goes."""
        for (row, column), action in zip(self.grid.cells, actions, strict=True):
            if np.ndim(action):
                right, down = np.clip(action, -1.0, 1.0)
            else:
                down, right = MOVES[int(action)]
            x, y = (column + 0.5) * PIXELS, (row + 0.5) * PIXELS
            end = (x + 0.4 * PIXELS * right, y + 0.4 * PIXELS * down)
            pen.line((x, y, *end), fill=INK, width=2)
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=INK)

    def _describe(self, values: Values | None) -> None:
        if not hasattr(self, "_values"):
            return
        text = ""
        if values is not None:
            best, own = float(values.optimal.mean()), float(values.chord.mean())
            share = f" ({100 * own / best:.0f} %)" if best > 0 else ""
            text = (
                f"value, mean over cells: optimal {best:.3g}, this chord {own:.3g}{share}; "
                f"|v* - v*_k| ≤ {values.tight:.3g} (by the theorem {values.theorem:.3g})"
            )
        self._values.content = (
            f'<div data-values style="padding:0 0.9em 0.4em;font-size:0.85em">'
            f"{html.escape(text)}</div>"
        )


def colours(values: Array) -> NDArray[np.uint8]:
    """Blue for the lowest, through white at zero, to orange; as bright as the largest magnitude."""
    scaled = values / max(float(np.abs(values).max(initial=0.0)), 1e-12)
    channels = zip(LOW, MIDDLE, HIGH, strict=True)
    mixed = [np.interp(scaled, (-1.0, 0.0, 1.0), channel) for channel in channels]
    return np.stack(mixed, axis=-1).round().astype(np.uint8)
