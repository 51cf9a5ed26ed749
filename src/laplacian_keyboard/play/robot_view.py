"""A robot in the browser: mjviser turns its model into meshes, and poses move them."""

# MuJoCo's compiled modules have no type stubs.
# pyright: reportAttributeAccessIssue=false

import copy
from typing import TYPE_CHECKING, Any, cast

import mujoco
import numpy as np

from laplacian_keyboard.envs import dmc
from laplacian_keyboard.types import UserError

try:
    from mjviser import ViserMujocoScene
except ImportError as error:
    raise UserError('lk play needs mjviser: pip install "laplacian-keyboard[play]"') from error

if TYPE_CHECKING:
    from laplacian_keyboard.play.page import Page

AZIMUTH, ELEVATION = 90.0, 15.0
DISTANCE = 1.6
"""Of the camera, in sizes of the body."""


class RobotView:
    """The robot of one tab. The camera follows: the world moves so that the body stays put."""

    def __init__(self, page: "Page"):
        self.page = page
        # mjviser writes colours and sizes into the model.
        self._model = copy.copy(dmc.load_domain(page.instrument.domain).model)
        self._data = mujoco.MjData(self._model)
        # It asks of its server only what a client offers too: a scene, and atomic updates.
        self._scene = ViserMujocoScene(cast(Any, page.client), self._model, num_envs=1)
        self._soft = page.client.scene.add_light_ambient("/soft", intensity=1.2)
        self._light(rich=False)
        self._place_camera()
        self.draw()

    def draw(self) -> None:
        """Show the pose."""
        self._data.qpos[:] = self.page.session.body.pose()
        mujoco.mj_kinematics(self._model, self._data)
        self._scene.update_from_mjdata(self._data)

    def controls(self) -> None:
        """Switches for camera and light."""
        follow = self.page.gui.add_checkbox("Camera follows", initial_value=True)

        def switch() -> None:
            self._scene.camera_tracking_enabled = bool(follow.value)
            if follow.value:
                self._place_camera()

        follow.on_update(self.page.hand(switch))
        rich = self.page.gui.add_checkbox(
            "Shadows", initial_value=False, hint="Shadows and reflections; wants a graphics card."
        )
        rich.on_update(self.page.hand(lambda: self._light(rich=bool(rich.value))))

    def refresh(self) -> None:
        """The pose is all there is."""

    def _light(self, *, rich: bool) -> None:
        # Where the processor draws, shadows cost seven frames of eight, reflections two of three.
        scene = self.page.client.scene
        scene.configure_default_lights(cast_shadow=rich)
        scene.configure_environment_map("city" if rich else None)
        self._soft.visible = not rich

    def _place_camera(self) -> None:
        azimuth, elevation = np.deg2rad(AZIMUTH), np.deg2rad(ELEVATION)
        distance = DISTANCE * float(self._model.stat.extent)
        flat = np.cos(elevation)
        offset = (-flat * np.cos(azimuth), -flat * np.sin(azimuth), np.sin(elevation))
        camera = self.page.client.camera
        camera.position = distance * np.array(offset)
        camera.look_at = np.zeros(3)
