"""Cheetah, walker and quadruped of dm_control's suite, stepped by MuJoCo's own batch engine.

The models are dm_control's XML files; its Python, which costs more than the physics, is not
imported. Steps, resets, observations and suite rewards are dm_control's (tests/test_dmc.py).

    physics      (qpos, qvel, act), float64: what ExORL stores, enough to restore or relabel a state
    fields       (physics, sensordata): observations and quantities are columns of these
    control step `substeps` MuJoCo steps under one action, then the position and velocity stages
                 of the new state, so that all but the acceleration sensors describe that state
"""

# MuJoCo's compiled modules have no type stubs.
# pyright: reportAttributeAccessIssue=false

import copy
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from mujoco.batch import Batch
from numpy.typing import ArrayLike, NDArray

from laplacian_keyboard.envs import tasks
from laplacian_keyboard.types import UserError

Array = NDArray[np.float64]
Ids = NDArray[np.intp]
Generators = Sequence[np.random.Generator]

_NOTHING = int(mujoco.mjtStage.mjSTAGE_NONE)
_POSITION = int(mujoco.mjtStage.mjSTAGE_POS)
_VELOCITY = int(mujoco.mjtStage.mjSTAGE_VEL)
_LABEL_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Domain:
    """A robot: its model, its clock, and which fields it shows."""

    name: str
    model: mujoco.MjModel
    substeps: int
    observation: Ids
    """Columns of the fields, in the order of dm_control's observation."""
    num_squashed: int
    """How many of the last observation entries are passed through arcsinh."""
    quantities: dict[str, int]
    """Columns of the sensor data, by the names of `tasks.quantities_of`."""
    start: Callable[[Batch, Ids, Generators], None]
    """Draws initial states for some simulations of a batch that has just been reset."""
    camera: str

    @property
    def physics_dim(self) -> int:
        return self.model.nq + self.model.nv + self.model.na


@functools.cache
def load_domain(name: str) -> Domain:
    """The domain of that name; built once, since the model is only read."""
    tasks.tasks_of(name)
    return {"cheetah": _cheetah, "walker": _walker, "quadruped": _quadruped}[name]()


def _cheetah() -> Domain:
    model = _compile(_planar_spec("cheetah"))
    physics_dim = model.nq + model.nv
    return Domain(
        name="cheetah",
        model=model,
        substeps=1,
        observation=np.arange(1, physics_dim),
        num_squashed=0,
        quantities=_planar_quantities(model),
        start=_start_cheetah,
        camera="side",
    )


def _walker() -> Domain:
    spec = _planar_spec("walker")
    bodies = [body.name for body in spec.bodies[1:]]
    for body in bodies:
        _add_sensor(spec, "x_axis", mujoco.mjtSensor.mjSENS_FRAMEXAXIS, body)
        if body != "torso":
            _add_sensor(spec, "z_axis", mujoco.mjtSensor.mjSENS_FRAMEZAXIS, body)
    model = _compile(spec)
    physics_dim = model.nq + model.nv
    sensors = [_sensor(model, f"{body}_{axis}") for body in bodies for axis in ("x_axis", "z_axis")]
    sensors.append(_sensor(model, "torso_position", 2))
    return Domain(
        name="walker",
        model=model,
        substeps=10,
        observation=np.array([physics_dim + s for s in sensors] + [*range(model.nq, physics_dim)]),
        num_squashed=0,
        quantities=_planar_quantities(model),
        start=_start_walker,
        camera="side",
    )


def _quadruped() -> Domain:
    spec = _stock_spec("quadruped")
    # The suite's walk and run use the plain floor: no walls, ball, target, terrain, rangefinders.
    spec.geom("floor").size = [10, 10, 0.5]
    scenery = [spec.geom(name) for name in ("wall_px", "wall_py", "wall_nx", "wall_ny", "terrain")]
    rangefinders = [s for s in spec.sensors if s.type == mujoco.mjtSensor.mjSENS_RANGEFINDER]
    for element in (*scenery, spec.body("ball"), spec.site("target"), *rangefinders):
        spec.delete(element)
    model = _compile(spec)
    physics_dim = model.nq + model.nv + model.na
    # A free joint has seven positions and six velocities; the observation leaves it out.
    hinges_and_act = [*range(7, model.nq), *range(model.nq + 6, physics_dim)]
    velocimeter, upright = _sensor(model, "velocimeter"), _sensor(model, "torso_z_axis", 2)
    accelerometer, gyro = _sensor(model, "imu_accel"), _sensor(model, "imu_gyro")
    toes = _sensor(model, "force_toe_front_left")
    sensors = [
        *range(velocimeter, velocimeter + 3),
        upright,
        *range(accelerometer, accelerometer + 3),
        *range(gyro, gyro + 3),
        *range(toes, toes + 24),
    ]
    return Domain(
        name="quadruped",
        model=model,
        substeps=4,
        observation=np.array(hinges_and_act + [physics_dim + s for s in sensors]),
        num_squashed=24,
        quantities={
            "speed": velocimeter,
            "sideways_speed": velocimeter + 1,
            "turning_speed": gyro + 2,
            "height": _sensor(model, "torso_position", 2),
            "upright": upright,
            "com_height": _sensor(model, "center_of_mass", 2),
        },
        start=_start_quadruped,
        camera="y",
    )


def _stock_spec(name: str) -> mujoco.MjSpec:
    """dm_control's model, and sensors for what its Python reads from elsewhere in MuJoCo's data."""
    path = resources.files("dm_control") / "suite" / f"{name}.xml"
    spec = mujoco.MjSpec.from_file(str(path))
    _add_sensor(spec, "position", mujoco.mjtSensor.mjSENS_FRAMEPOS, "torso")
    _add_sensor(spec, "z_axis", mujoco.mjtSensor.mjSENS_FRAMEZAXIS, "torso")
    return spec


def _planar_spec(name: str) -> mujoco.MjSpec:
    spec = _stock_spec(name)
    _add_sensor(spec, "angular_momentum", mujoco.mjtSensor.mjSENS_SUBTREEANGMOM, "torso")
    return spec


def _planar_quantities(model: mujoco.MjModel) -> dict[str, int]:
    return {
        "speed": _sensor(model, "torso_subtreelinvel", 0),
        "height": _sensor(model, "torso_position", 2),
        "upright": _sensor(model, "torso_z_axis", 2),
        "angular_momentum": _sensor(model, "torso_angular_momentum", 1),
    }


def _add_sensor(spec: mujoco.MjSpec, name: str, kind: mujoco.mjtSensor, body: str) -> None:
    of_subtree = kind == mujoco.mjtSensor.mjSENS_SUBTREEANGMOM
    frame = mujoco.mjtObj.mjOBJ_BODY if of_subtree else mujoco.mjtObj.mjOBJ_XBODY
    spec.add_sensor(name=f"{body}_{name}", type=kind, objtype=frame, objname=body)


def _compile(spec: mujoco.MjSpec) -> mujoco.MjModel:
    with warnings.catch_warnings():
        # The stock cheetah sets its total mass in a way that MuJoCo has deprecated.
        warnings.filterwarnings("ignore", message=".*settotalmass")
        return spec.compile()


def _sensor(model: mujoco.MjModel, name: str, component: int = 0) -> int:
    return int(model.sensor(name).adr[0]) + component


def _start_cheetah(batch: Batch, ids: Ids, generators: Generators) -> None:
    """Random joint angles, then 200 MuJoCo steps for the cheetah to come to rest."""
    model = batch.model
    limited = np.flatnonzero(model.jnt_limited)
    lower, upper = model.jnt_range[limited].T
    angles = np.stack([generator.uniform(lower, upper) for generator in generators])
    # dm_control takes the first of these steps with the forces of the default pose, in which the
    # cheetah falls freely and its joints rest: so the new angles come after that step.
    batch.step(ids, nstep=1)
    batch.qpos[np.ix_(ids, limited)] = angles
    batch.step(ids, nstep=199)


def _start_walker(batch: Batch, ids: Ids, generators: Generators) -> None:
    """Limited joints uniform in their range, the free rotation uniform in a full turn."""
    model = batch.model
    hinges = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE)
    limited = model.jnt_limited[hinges].astype(bool)[:, None]
    lower, upper = np.where(limited, model.jnt_range[hinges], (-np.pi, np.pi)).T
    angles = np.stack([generator.uniform(lower, upper) for generator in generators])
    batch.qpos[np.ix_(ids, hinges)] = angles


def _start_quadruped(batch: Batch, ids: Ids, generators: Generators) -> None:
    """Random orientation, lifted centimetre by centimetre until nothing touches the floor."""
    orientation = np.stack([generator.standard_normal(4) for generator in generators])
    batch.qpos[ids, 3:7] = orientation / np.linalg.norm(orientation, axis=1, keepdims=True)
    height, touching = 0.0, ids
    while touching.size:
        batch.qpos[touching, 2] = height
        batch.forward(touching, stage=_POSITION)
        touching = touching[batch.ncon[touching] > 0]
        height += 0.01


class DmcVectorEnv(gymnasium.vector.VectorEnv):
    """`num_envs` robots of one domain, stepped together on `num_threads` threads. All have one
    task, or each its own.

    A robot's trajectory is the same whatever `num_envs` and `num_threads` are. Episodes are cut
    after `episode_length` steps and never terminate. The step that cuts an episode also resets it:
    it returns the new episode's first observation, while `infos["final_obs"]` and
    `infos["final_physics"]` hold the true next observation and physics of every robot, and the
    masks `infos["_final_obs"]` and `infos["_final_physics"]` mark the robots that were cut.
    """

    def __init__(
        self,
        domain: str,
        task: str | Sequence[str] = "run",
        num_envs: int = 1,
        *,
        num_threads: int | None = None,
        episode_length: int = 1000,
    ) -> None:
        if num_envs < 1:
            raise UserError(f"num_envs is {num_envs}: it must be at least 1")
        each = [task] * num_envs if isinstance(task, str) else list(task)
        if len(each) != num_envs:
            raise UserError(f"{len(each)} tasks for {num_envs} environments: give as many")
        self._rewards = [
            (tasks.find_task(domain, name).reward, np.array([own == name for own in each]))
            for name in dict.fromkeys(each)
        ]
        self.domain, self.task = domain, task
        self.num_envs, self.episode_length = num_envs, episode_length
        self._domain = load_domain(domain)
        model, columns = self._domain.model, self._domain.quantities
        fps = round(1 / (self._domain.substeps * model.opt.timestep))
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_fps": fps}
        num_obs = len(self._domain.observation)
        self.single_observation_space = Box(-np.inf, np.inf, (num_obs,), np.float32)
        self.single_action_space = Box(-1.0, 1.0, (model.nu,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        self._batch = _make_batch(model, num_envs, num_threads, persistent=True)
        self._physics = _physics_view(self._domain, self._batch)
        self._sensors = self._batch.bind("sensordata")
        # Views: MuJoCo writes every step into the arrays behind them.
        self._quantities = {name: self._sensors[:, i] for name, i in columns.items()}
        self._control = self._batch.bind("ctrl")
        self._num_warnings = self._batch.warning[:, :, 1]
        low, high = model.actuator_ctrlrange.T
        self._control_center, self._control_scale = (high + low) / 2, (high - low) / 2
        self._steps = np.zeros(num_envs, np.int64)
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._batch.forward()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start new episodes, everywhere or where `options["reset_mask"]` is true.

        Robot i is seeded with `seed + i`, or with `seed[i]`.
        """
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise UserError(f"reset_mask must be {self.num_envs} booleans, at least one true")
        if seed is None:
            seed = [None] * self.num_envs
        seeds = seed if isinstance(seed, Sequence) else range(seed, seed + self.num_envs)
        if len(seeds) != self.num_envs:
            raise UserError(f"{len(seeds)} seeds for {self.num_envs} environments: give as many")
        ids = np.flatnonzero(mask)
        for i in ids.tolist():
            if (own_seed := seeds[i]) is not None:
                self._generators[i] = seeding.np_random(own_seed)[0]
        self.restart(ids, [self._generators[i] for i in ids.tolist()])
        return self.observations64().astype(np.float32), {}

    def step(
        self, actions: ArrayLike
    ) -> tuple[NDArray[np.float32], Array, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        self.advance(actions)
        obs, rewards = self.observations64().astype(np.float32), self.rewards()
        truncated = self._steps >= self.episode_length
        infos: dict[str, Any] = {}
        if np.count_nonzero(truncated):  # a tenth of the time that `any` takes
            infos = {"final_obs": obs, "_final_obs": truncated.copy()}
            infos |= {"final_physics": self.physics_states(), "_final_physics": truncated.copy()}
            ids = np.flatnonzero(truncated)
            self.restart(ids, [self._generators[i] for i in ids.tolist()])
            obs = self.observations64().astype(np.float32)
        return obs, rewards, np.zeros(self.num_envs, bool), truncated, infos

    def advance(self, actions: ArrayLike) -> None:
        """One control step of every robot, without rewards or resets.

        MuJoCo itself limits actions beyond -1 and 1. An action that is not finite it would
        silently replace by 0, and a state that diverges by the default pose: both are errors here.
        """
        actions = np.asarray(actions)
        if actions.shape != self._control.shape:
            raise UserError(f"actions have shape {actions.shape}, not {self._control.shape}")
        if np.count_nonzero(np.isfinite(actions)) < actions.size:
            raise UserError("actions are not finite: check the policy that made them")
        np.multiply(actions, self._control_scale, out=self._control)
        self._control += self._control_center
        self._batch.step(nstep=self._domain.substeps, stage=_VELOCITY)
        self._steps += 1
        if np.count_nonzero(self._num_warnings):
            ids = np.flatnonzero(self._num_warnings.any(axis=1)).tolist()
            raise RuntimeError(f"the {self.domain} simulation failed in environments {ids}: reset")

    def restart(self, ids: Ids, generators: Generators) -> None:
        """Start new episodes of some robots, with random numbers from a generator for each."""
        self._batch.reset(ids)
        self._domain.start(self._batch, ids, generators)
        self._batch.forward(ids)
        self._steps[ids] = 0

    def rewards(self, task: str | None = None) -> Array:
        """Rewards (num_envs,) of the current states, for each robot's or another task."""
        if task is not None:
            return tasks.find_task(self.domain, task).reward(self._quantities)
        (reward, _), *others = self._rewards
        rewards = reward(self._quantities)
        for reward, robots in others:
            rewards = np.where(robots, reward(self._quantities), rewards)
        return rewards

    def __repr__(self) -> str:
        return f"DmcVectorEnv({self.domain}, {self.task}, num_envs={self.num_envs})"

    def quantities(self) -> dict[str, Array]:
        """The named quantities (num_envs,) of the current states; see `tasks.quantities_of`."""
        return {name: values.copy() for name, values in self._quantities.items()}

    def observations64(self) -> Array:
        """The current observations (num_envs, obs) before they are rounded to float32."""
        obs = np.concatenate((self._physics, self._sensors), axis=1)[:, self._domain.observation]
        if squashed := self._domain.num_squashed:
            obs[:, -squashed:] = np.arcsinh(obs[:, -squashed:])
        return obs

    def physics_states(self) -> Array:
        """The current states (num_envs, physics): qpos, qvel, act."""
        return self._physics.copy()

    def set_physics_states(self, states: ArrayLike) -> None:
        """Put the robots into these states, with no memory of what came before.

        Episodes keep the steps they have left. Acceleration sensors are computed anew, with the
        forces of the current `act`.
        """
        states = _checked_physics(self._domain, states)
        if states.shape != self._physics.shape:
            raise UserError(f"states have shape {states.shape}, not {self._physics.shape}")
        self._batch.reset(stage=_NOTHING)
        self._physics[:] = states
        self._batch.forward()

    def data(self, i: int) -> mujoco.MjData:
        """A copy of robot i's MuJoCo data, for rendering."""
        return self._batch.get_data(i)


class DmcEnv(gymnasium.Env):
    """One robot. Episodes are cut after `episode_length` steps and never terminate."""

    def __init__(
        self,
        domain: str,
        task: str = "run",
        *,
        episode_length: int = 1000,
        render_mode: str | None = None,
        width: int = 480,
        height: int = 480,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UserError(f"render_mode is {render_mode!r}: use 'rgb_array' or leave it out")
        self._world = DmcVectorEnv(domain, task, 1, episode_length=episode_length)
        self.domain, self.task = domain, task
        fps = self._world.metadata["render_fps"]
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self.observation_space = self._world.single_observation_space
        self.action_space = self._world.single_action_space
        self.render_mode = render_mode
        self._frame_size = (height, width)
        self._renderer: mujoco.Renderer | None = None
        self._steps_left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._world.restart(np.array([0]), [self.np_random])
        self._steps_left = self._world.episode_length
        return self._observation(), {}

    def step(
        self, action: ArrayLike
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._world.advance(np.asarray(action)[None])
        self._steps_left -= 1
        reward = float(self._world.rewards()[0])
        return self._observation(), reward, False, self._steps_left <= 0, {}

    def quantities(self) -> dict[str, float]:
        """The named quantities of the current state; see `tasks.quantities_of`."""
        return {name: float(value[0]) for name, value in self._world.quantities().items()}

    def physics_state(self) -> Array:
        """The current state: qpos, qvel, act."""
        return self._world.physics_states()[0]

    def set_physics_state(self, state: ArrayLike) -> None:
        """Put the robot into this state; the episode keeps the steps it has left."""
        self._world.set_physics_states(np.asarray(state)[None])

    def render(self) -> NDArray[np.uint8] | None:
        if self.render_mode is None:
            return None
        if self._renderer is None:
            self._renderer = _make_renderer(load_domain(self.domain).model, *self._frame_size)
        self._renderer.update_scene(self._world.data(0), load_domain(self.domain).camera)
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _observation(self) -> NDArray[np.float32]:
        return self._world.observations64()[0].astype(np.float32)


def label(domain: str, task: str, physics: ArrayLike, *, num_threads: int | None = None) -> Array:
    """Rewards (...) of stored physics states (..., physics) for a task of the domain."""
    reward = tasks.find_task(domain, task).reward
    return reward(quantities_from_physics(domain, physics, num_threads=num_threads))


def quantities_from_physics(
    domain: str, physics: ArrayLike, *, num_threads: int | None = None
) -> dict[str, Array]:
    """The named quantities (...) of stored physics states (..., physics)."""
    world = load_domain(domain)
    physics = _checked_physics(world, physics)
    states = physics.reshape(-1, world.physics_dim)
    sensors = np.array(list(world.quantities.values()))
    values = np.empty((len(sensors), len(states)))
    batch = _make_batch(_observer(domain), min(_LABEL_CHUNK, len(states)) or 1, num_threads)
    view, sensordata = _physics_view(world, batch), batch.bind("sensordata")
    for start in range(0, len(states), batch.nsim):
        chunk = states[start : start + batch.nsim]
        view[: len(chunk)] = chunk
        batch.forward(np.arange(len(chunk)), stage=_VELOCITY)
        values[:, start : start + len(chunk)] = sensordata[: len(chunk), sensors].T
    shape = physics.shape[:-1]
    return {
        name: value.reshape(shape) for name, value in zip(world.quantities, values, strict=True)
    }


@functools.cache
def _observer(domain: str) -> mujoco.MjModel:
    """The domain's model without contacts and other constraints, on which no quantity depends."""
    model = copy.copy(load_domain(domain).model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    return model


def _make_batch(
    model: mujoco.MjModel, count: int, num_threads: int | None, *, persistent: bool = False
) -> Batch:
    if num_threads is not None and num_threads < 1:
        raise UserError(f"num_threads is {num_threads}: it must be at least 1")
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Batch(model, count, min(num_threads or available or 1, count), persistent)


def _physics_view(domain: Domain, batch: Batch) -> Array:
    """The batch's qpos, qvel and act as one writable array; states are laid out in that order."""
    start = mujoco.mj_stateSize(domain.model, int(mujoco.mjtState.mjSTATE_TIME))
    return batch.state[:, start : start + domain.physics_dim]


def _checked_physics(domain: Domain, physics: ArrayLike) -> Array:
    physics = np.asarray(physics, np.float64)
    if physics.ndim == 0 or physics.shape[-1] != domain.physics_dim:
        raise UserError(
            f"physics has shape {physics.shape}: a {domain.name} state is {domain.physics_dim} long"
        )
    if not np.isfinite(physics).all():
        raise UserError("physics is not finite: the states are damaged, leave them out")
    return physics


def _make_renderer(model: mujoco.MjModel, height: int, width: int) -> mujoco.Renderer:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mujoco.Renderer(model, height, width)
    except ValueError as error:
        raise UserError(f"cannot render {width} x {height} pixels: at most 640 x 480") from error
    except Exception as error:
        raise UserError(
            "rendering needs OpenGL: set MUJOCO_GL=egl or MUJOCO_GL=osmesa before starting Python"
        ) from error
