"""Stages 1 and 2 on real data: reward-free experience becomes a keyboard."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PRNGKeyArray

from laplacian_keyboard import presets, successor
from laplacian_keyboard.baselines import forward_backward
from laplacian_keyboard.bases import hilp, laplacian, registry
from laplacian_keyboard.checkpoint import RunFolder, fingerprint, load_arrays, save_arrays
from laplacian_keyboard.data.dataset import Dataset
from laplacian_keyboard.data.goals import sample_goals
from laplacian_keyboard.data.labels import sample_states
from laplacian_keyboard.data.replay import (
    Experience,
    draw_starts,
    rows_of,
    sample_pairs,
    transitions_at,
)
from laplacian_keyboard.data.stream import Layout, Stream, layout_of
from laplacian_keyboard.devices import everywhere, line_of, line_of_devices, split
from laplacian_keyboard.envs.domains import ANGLES, WORLDS, make_vector_env
from laplacian_keyboard.envs.host import spec_of
from laplacian_keyboard.inputs import Inputs
from laplacian_keyboard.keyboard import (
    KEYBOARD_FILE,
    Keyboard,
    KeyboardConfig,
    KeyboardParams,
    empty_params,
)
from laplacian_keyboard.successor.weights import sample_weights
from laplacian_keyboard.train import fit
from laplacian_keyboard.types import Metrics, Pairs, UserError

Source: TypeAlias = Experience | Stream
"""What is learned from: all of a dataset, or a window that moves over it."""

MOMENT_BATCH, MOMENT_BATCHES = 8_192, 128
"""A million pairs for the refinement and the report: a few seconds, and its noise is what limits
how well nearly equal eigenvalues are told apart."""
ROWS_AT_ONCE = 1 << 16
"""Rows whose features are computed together."""


@dataclass(frozen=True)
class BasisUpdate:
    """One step of stage 1 on a dataset."""

    config: registry.Config

    def __call__(self, state: Any, data: Experience, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        basis = registry.module_of(self.config)
        return basis.update(self.config, state, _pairs(self.config, data, key))


@dataclass(frozen=True)
class SuccessorUpdate:
    """One step of stage 2 on a dataset and a basis."""

    basis: registry.Config
    config: successor.Config

    def __call__(
        self, state: Any, data: tuple[Experience, registry.Encoder], key: PRNGKeyArray
    ) -> tuple[Any, Metrics]:
        experience, encoder = data
        start, goal, key_w, key_update = _draw(self.config, experience, key)
        phi = partial(self.phi, experience, encoder)
        # One pass over both: two small products would leave the cores idle.
        next_phi, goal_phi = jnp.split(phi(jnp.concatenate([start + 1, goal])), 2)
        if getattr(self.config, "changes", False):
            next_phi = next_phi - phi(start)
        w = sample_weights(goal_phi, goal_fraction=self.config.goal_fraction, key=key_w)
        learner, batch = successor.module_of(self.config), transitions_at(experience, start)
        return learner.update(self.config, state, batch, next_phi, w, key=key_update)

    def phi(self, experience: Experience, encoder: Any, rows: Int[Array, "b"]) -> Any:
        """phi of the states in these rows."""
        if experience.phi is not None:
            return experience.phi[rows]
        module = registry.module_of(self.basis)
        return module.phi(self.basis, encoder, rows_of(experience, rows))


@dataclass(frozen=True)
class ForwardBackwardUpdate:
    """One step of both stages at once."""

    basis: forward_backward.Config
    config: successor.Config

    def __call__(
        self, state: forward_backward.State, data: Experience, key: PRNGKeyArray
    ) -> tuple[forward_backward.State, Metrics]:
        start, goal, key_w, key_update = _draw(self.config, data, key)
        batch, goals = transitions_at(data, start), rows_of(data, goal)
        goal_phi = forward_backward.phi(self.basis, forward_backward.encoder(state), goals)
        w = sample_weights(goal_phi, goal_fraction=self.config.goal_fraction, key=key_w)
        return forward_backward.update(self.basis, self.config, state, batch, w, key=key_update)


def _draw(
    config: successor.Config, experience: Experience, key: PRNGKeyArray
) -> tuple[Any, Any, PRNGKeyArray, PRNGKeyArray]:
    """Rows that transitions start from, rows of as many states to take tasks from, and keys for
    the tasks and the update."""
    key_batch, key_goal, key_w, key_update = jax.random.split(key, 4)
    start = draw_starts(experience, config.batch_size, key=key_batch)
    goal = draw_starts(experience, config.batch_size, key=key_goal) + 1
    return start, goal, key_w, key_update


@dataclass(frozen=True)
class OverSeeds:
    """An update mapped over a leading axis of seeds, in the state, the keys and the parts of the
    data that `data_axes` names."""

    update: Any
    data_axes: Any

    def __call__(self, state: Any, data: Any, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        return jax.vmap(self.update, in_axes=(0, self.data_axes, 0))(state, data, key)


def _pairs(config: Any, data: Experience, key: PRNGKeyArray, count: int = 0) -> Pairs:
    """A batch for a basis: neighbours and other states, or steps with a goal."""
    count = count or config.batch_size
    if isinstance(config, hilp.Config):
        return sample_goals(
            data,
            count,
            future_discount=config.goal_discount,
            random_fraction=config.random_goals,
            key=key,
        )
    return sample_pairs(
        data,
        count,
        discount=config.pair_discount,
        negatives=config.negatives,
        num_negatives=config.num_negatives,
        key=key,
    )


@eqx.filter_jit
def average_moments(
    config: laplacian.Config, encoder: Any, data: Experience, key: PRNGKeyArray
) -> laplacian.Moments:
    """The moments of the encoder's outputs over a million pairs of the data."""

    def one_batch(total: laplacian.Moments, key: PRNGKeyArray):
        moments = laplacian.moments(encoder, _pairs(config, data, key, MOMENT_BATCH))
        return jax.tree.map(jnp.add, total, moments), None

    width = config.k + 1
    zero = laplacian.Moments(jnp.zeros((width, width)), jnp.zeros((width, width)))
    total, _ = jax.lax.scan(one_batch, zero, jax.random.split(key, MOMENT_BATCHES))
    return jax.tree.map(lambda x: x / MOMENT_BATCHES, total)


def _moments(config: Any, encoder: Any, experience: Source, key: PRNGKeyArray) -> laplacian.Moments:
    # A window is a random part of the episodes; the first is where the next stage begins.
    some = experience.at(0) if isinstance(experience, Stream) else experience
    return average_moments(config, encoder, some, key)


def learn_basis(
    config: registry.Config,
    experience: Source,
    *,
    num_steps: int,
    key: PRNGKeyArray,
    run: RunFolder | None = None,
    quiet: bool = True,
) -> tuple[Any, laplacian.Report | None]:
    """Stage 1: the encoder, and of a Laplacian basis, which is refined if the config says so, how
    good it is.

    `key` may be an array of keys, one a seed; the results then have a leading seed axis.
    """
    key_init, key_train, key_moments = _split(key, 3)
    update, basis = BasisUpdate(config), registry.module_of(config)
    state = _map(lambda key: basis.init(config, experience.spec, key=key), key_init)
    if num_steps:
        state = fit(
            update if key.ndim == 0 else OverSeeds(update, None),
            state,
            experience,
            num_steps=num_steps,
            key=key_train,
            stage="basis",
            run=run,
            quiet=quiet,
        )
    if not isinstance(config, laplacian.Config):
        return basis.encoder(state), None

    def finish(encoder: Any, key: PRNGKeyArray) -> tuple[Any, laplacian.Report]:
        if config.refine:
            encoder = laplacian.refine(encoder, _moments(config, encoder, experience, key))
        return encoder, laplacian.report(_moments(config, encoder, experience, key))

    if key.ndim == 0:
        return finish(state.encoder.params, key_moments)
    each = [finish(seed_of(state.encoder.params, i), k) for i, k in enumerate(key_moments)]
    return stack_seeds(each)


def learn_forward_backward(
    basis: forward_backward.Config,
    config: successor.Config,
    experience: Source,
    *,
    num_steps: int,
    key: PRNGKeyArray,
    run: RunFolder | None = None,
    evaluate: Callable[[Any, successor.Behaviors], dict[str, Any]] | None = None,
    evaluate_every: int = 1,
    quiet: bool = True,
) -> tuple[Any, successor.Behaviors]:
    """Stages 1 and 2 in one: B and its behaviors. `evaluate(encoder, behaviors)` gives figures to
    log every so many updates. With an array of keys the results have a leading seed axis."""
    key_init, key_train = _split(key, 2)
    update = ForwardBackwardUpdate(basis, config)
    both = lambda state: (forward_backward.encoder(state), forward_backward.behaviors(state))  # noqa: E731
    init = lambda key: forward_backward.init(basis, config, experience.spec, key=key)  # noqa: E731
    state = fit(
        update if key.ndim == 0 else OverSeeds(update, None),
        _map(init, key_init),
        experience,
        num_steps=num_steps,
        key=key_train,
        stage="behaviors",
        run=run,
        evaluate=None if evaluate is None else lambda state: evaluate(*both(state)),
        evaluate_every=evaluate_every,
        quiet=quiet,
    )
    return both(state)


def tabulate(basis: registry.Config, encoder: Any, experience: Source) -> Source:
    """The data with phi of every row. The basis does not change in stage 2, so its network, a fifth
    of the arithmetic of an update, need not run in each. Not done where phi would take more memory
    than the observations do."""
    phi = lambda rows: np.asarray(_phi(basis, encoder, rows))  # noqa: E731
    if isinstance(experience, Stream):
        experience.tabulate(phi, basis.k)
        return experience
    rows = len(experience.obs)
    if 4 * basis.k * rows > experience.obs.nbytes:
        return experience
    table = np.empty((rows, basis.k), np.float32)
    for begin in range(0, rows, ROWS_AT_ONCE):  # in parts: no copy of the data is made
        part = slice(begin, begin + ROWS_AT_ONCE)
        table[part] = phi(experience.obs[part])
    return dataclasses.replace(experience, phi=jax.device_put(table, experience.obs.sharding))


@partial(jax.jit, static_argnums=0)
def _phi(basis: registry.Config, encoder: Any, obs: Any) -> Array:
    return registry.module_of(basis).phi(basis, encoder, obs.astype(jnp.float32))


def learn_behaviors(
    basis: registry.Config,
    config: successor.Config,
    encoder: Any,
    experience: Source,
    *,
    num_steps: int,
    key: PRNGKeyArray,
    run: RunFolder | None = None,
    evaluate: Callable[[successor.Behaviors], dict[str, Any]] | None = None,
    evaluate_every: int = 1,
    quiet: bool = True,
) -> successor.Behaviors:
    """Stage 2: the behaviors over a basis (their slow average). `evaluate(behaviors)` gives figures
    to log every so many updates.

    With an array of keys, `encoder` and the result have a leading seed axis.
    """
    key_init, key_train = _split(key, 2)
    update, learner = SuccessorUpdate(basis, config), successor.module_of(config)
    if key.ndim == 0:
        experience = tabulate(basis, encoder, experience)
    state = fit(
        update if key.ndim == 0 else OverSeeds(update, (None, 0)),
        _map(lambda key: learner.init(config, experience.spec, basis.k, key=key), key_init),
        (experience, encoder),
        num_steps=num_steps,
        key=key_train,
        stage="behaviors",
        run=run,
        evaluate=None if evaluate is None else lambda state: evaluate(learner.behaviors(state)),
        evaluate_every=evaluate_every,
        quiet=quiet,
    )
    return learner.behaviors(state)


def _map(function: Any, key: PRNGKeyArray) -> Any:
    return function(key) if key.ndim == 0 else jax.vmap(function)(key)


def _split(key: PRNGKeyArray, count: int) -> tuple[PRNGKeyArray, ...]:
    """`count` keys, or `count` arrays of keys from an array of keys."""
    if key.ndim == 0:
        return tuple(jax.random.split(key, count))
    return tuple(jax.vmap(lambda k: jax.random.split(k, count), out_axes=1)(key))


def seed_of(tree: Any, index: int) -> Any:
    """One seed of a tree with a leading seed axis."""
    return jax.tree.map(lambda x: x[index], tree)


def stack_seeds(trees: list[Any]) -> Any:
    """Trees of single seeds as one tree with a leading seed axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def pretrain(
    dataset: Dataset,
    *,
    k: int,
    basis: str = "laplacian",
    preset: str = "cpu",
    seed: int = 0,
    out: str | Path | None = None,
    memory: float | None = None,
    shard_batch: bool = False,
    first_of: Keyboard | None = None,
    evaluate: Callable[[Keyboard], dict[str, Any]] | None = None,
    evaluations: int = 10,
    quiet: bool = True,
) -> Keyboard:
    """Stages 1 and 2: a keyboard of k keys from reward-free data, over the Laplacian basis or
    another: lap, fb, hilp or random.

    With a folder `out`, an interrupted call continues there and a finished one loads. A dataset
    that takes more than `memory` gigabytes (by default a quarter of the machine's) is learned from
    through a window that moves over it. `shard_batch` splits every batch over all devices.

    With `first_of`, a larger Laplacian keyboard of the same data, stage 1 is left out: eigenvectors
    are ordered, so its first k are the basis. `evaluate(keyboard)` gives figures to log so many
    times along stage 2.
    """
    return pretrain_seeds(
        dataset,
        k=k,
        seeds=[seed],
        basis=basis,
        preset=preset,
        out=out,
        memory=memory,
        shard_batch=shard_batch,
        first_of=first_of,
        evaluate=evaluate,
        evaluations=evaluations,
        quiet=quiet,
    )[0]


def pretrain_seeds(
    dataset: Dataset,
    *,
    k: int,
    seeds: list[int],
    basis: str = "laplacian",
    preset: str = "cpu",
    out: str | Path | None = None,
    memory: float | None = None,
    shard_batch: bool = False,
    first_of: Keyboard | None = None,
    evaluate: Callable[[Keyboard], dict[str, Any]] | None = None,
    evaluations: int = 10,
    quiet: bool = True,
) -> list[Keyboard]:
    """The same for several seeds at once, trained together and split over as many devices as share
    them evenly. Their keyboards go to the folders `out/seed-N`; a single seed's goes to `out`
    itself. `first_of` and `evaluate` are for a single one."""
    many = len(seeds) > 1
    if many and (first_of is not None or evaluate is not None):
        raise UserError("first_of and evaluate are for one seed at a time")
    if shard_batch and (many or len(jax.devices()) == 1):
        reason = "several seeds are split over devices as it is" if many else "JAX sees only one"
        raise UserError(f"shard_batch is for one seed on several devices, but {reason}")
    domain, discrete = dataset.domain or "", dataset.spec.discrete
    settings = presets.settings(preset, k, discrete=discrete, basis=basis, domain=domain)
    _require_enough_states(dataset, k)
    _require_own_world(dataset)
    config = KeyboardConfig(
        dataset.spec, settings.basis, settings.successor, domain, ANGLES.get(domain, ())
    )
    _require_wide_enough(config)
    layout = find_layout(dataset, k, config.angles, settings.normalise, memory)
    described = {
        "kind": "keyboard",
        "seeds": seeds,
        "preset": preset,
        "basis_name": basis,
        "dataset_steps": dataset.num_transitions,
        "dataset": _name_of(dataset),
        "basis_steps": settings.basis_steps,
        "successor_steps": settings.successor_steps,
        **({} if layout is None else {"window": dataclasses.asdict(layout)}),
        **({} if first_of is None else {"first_of": fingerprint(first_of.params.basis)}),
        **dataclasses.asdict(config),
    }
    origin = {"dataset": str(dataset.path)}
    run = None
    if out is not None:
        run = RunFolder(out, described, origin)
        folders = _seed_folders(run.path, seeds)
        if run.is_whole(*(folder / KEYBOARD_FILE for folder in folders)):
            return [Keyboard.load(folder) for folder in folders]
    keys = jnp.stack([jax.random.key(seed) for seed in seeds]) if many else jax.random.key(seeds[0])
    inputs, experience = prepare_experience(
        dataset,
        config.angles,
        settings.normalise,
        layout=layout,
        seeds=len(seeds),
        shard_batch=shard_batch,
    )
    states = sample_states(dataset, settings.inference_states)

    def keyboard_of(encoder: Any, behaviors: Any) -> Keyboard:
        return Keyboard(config, KeyboardParams(inputs, encoder, behaviors), states)

    encoder, behaviors, report = _both_stages(
        config,
        settings,
        experience,
        keys,
        given=None if first_of is None else _first_keys(first_of, config, inputs),
        run=run,
        evaluate=None if evaluate is None else lambda *trained: evaluate(keyboard_of(*trained)),
        evaluate_every=max(settings.successor_steps // evaluations, 1),
        quiet=quiet,
    )
    trained = (encoder, behaviors)
    if line_of(trained) is not None:
        trained = jax.device_put(trained, jax.devices()[0])
    each = [seed_of(trained, i) for i in range(len(seeds))] if many else [trained]
    keyboards = [keyboard_of(*one) for one in each]
    if run is not None:
        result = {name: value.tolist() for name, value in vars(report).items()} if report else {}
        for i, (seed, folder) in enumerate(zip(seeds, _seed_folders(run.path, seeds), strict=True)):
            own = RunFolder(folder, {**described, "seeds": [seed]}, origin) if many else run
            keyboards[i].save(folder)
            if many:
                own.finish({name: value[i] for name, value in result.items()})
        run.finish(result)
    return keyboards


def _both_stages(
    config: KeyboardConfig,
    settings: presets.Settings,
    experience: Source,
    keys: PRNGKeyArray,
    *,
    given: Any,
    run: RunFolder | None,
    evaluate: Callable[[Any, successor.Behaviors], dict[str, Any]] | None,
    evaluate_every: int,
    quiet: bool,
) -> tuple[Any, Any, laplacian.Report | None]:
    """Encoder, behaviors and, of a Laplacian basis, how good it is; for one key or several. An
    encoder that is `given` is only measured."""
    key_basis, key_behaviors = _split(keys, 2)
    if isinstance(config.basis, forward_backward.Config):
        encoder, behaviors = learn_forward_backward(
            config.basis,
            config.successor,
            experience,
            num_steps=settings.successor_steps,
            key=key_behaviors,
            run=run,
            evaluate=evaluate,
            evaluate_every=evaluate_every,
            quiet=quiet,
        )
        return encoder, behaviors, None

    def stage_1() -> tuple[Any, laplacian.Report | None]:
        if given is not None:
            moments = _moments(config.basis, given, experience, key_basis)
            return given, laplacian.report(moments)
        steps = settings.basis_steps
        return learn_basis(
            config.basis, experience, num_steps=steps, key=key_basis, run=run, quiet=quiet
        )

    is_laplacian = isinstance(config.basis, laplacian.Config)
    empty = empty_params(config).basis, laplacian.empty_report(config.k) if is_laplacian else None
    like = stack_seeds([empty] * len(keys)) if keys.ndim else empty
    encoder, report = kept(run, "basis.safetensors", like, stage_1)
    behaviors = learn_behaviors(
        config.basis,
        config.successor,
        encoder,
        experience,
        num_steps=settings.successor_steps,
        key=key_behaviors,
        run=run,
        evaluate=None if evaluate is None else lambda trained: evaluate(encoder, trained),
        evaluate_every=evaluate_every,
        quiet=quiet,
    )
    return encoder, behaviors, report


def _first_keys(larger: Keyboard, config: KeyboardConfig, inputs: Inputs) -> Any:
    """The first eigenvectors of a larger keyboard, which has to be of the same kind and data."""
    basis, wanted = larger.config.basis, config.basis
    if not isinstance(basis, laplacian.Config) or dataclasses.replace(basis, k=wanted.k) != wanted:
        raise UserError("first_of needs a Laplacian keyboard with the settings of this preset")
    if basis.k < wanted.k:
        raise UserError(f"first_of has {basis.k} keys, which is fewer than k = {wanted.k}")
    if fingerprint(larger.params.inputs) != fingerprint(inputs):
        raise UserError("first_of was trained on other data")
    encoder: Any = larger.params.basis
    return laplacian.truncate(encoder, wanted.k)


def find_layout(
    dataset: Dataset,
    k: int,
    angles: tuple[int, ...],
    normalise: bool,
    memory: float | None = None,
) -> Layout | None:
    """The window on a dataset that takes more than `memory` gigabytes as the networks see it, with
    k features."""
    if memory is not None and not memory > 0:
        raise UserError(f"memory must be a positive number of gigabytes, not {memory}")
    observation = dataset.observation
    prepared, plain = 4 * (observation.shape[1] + len(angles)), observation.dtype.itemsize
    return layout_of(
        dataset,
        obs_bytes=(prepared if normalise else plain * observation.shape[1]) + 4 * k,
        memory=None if memory is None else 1e9 * memory,
    )


def prepare_experience(
    dataset: Dataset,
    angles: tuple[int, ...],
    normalise: bool,
    *,
    layout: Layout | None = None,
    seeds: int = 1,
    shard_batch: bool = False,
) -> tuple[Inputs, Source]:
    """The dataset's rows as the networks see them, and how they were made; through a window if
    there is a layout for it. They are on all devices that the seeds or the batches are split over.
    """
    line = line_of_devices(len(jax.devices()) if shard_batch else seeds)
    batch = split(line) if shard_batch and line else None
    if normalise:
        inputs = Inputs.of_data(dataset.observation, angles)
    else:
        inputs = Inputs.plain(dataset.spec.obs_dim, angles)
    if layout is not None:
        prepare = inputs if normalise else None
        place = everywhere(line)
        return inputs, Stream(dataset, layout, prepare, angles, everywhere=place, batch=batch)
    if normalise:
        prepared = inputs.of_rows(dataset.observation, angles)
        dataset = dataclasses.replace(dataset, observation=prepared)
    experience = dataclasses.replace(dataset.experience(), batch=batch)
    return inputs, experience if line is None else jax.device_put(experience, everywhere(line))


def _name_of(dataset: Dataset) -> str:
    """A short name for the contents of a dataset, from its lengths and a thousand states."""
    rows = dataset.sample_next_rows(1_000, seed=0)
    return fingerprint((dataset.lengths, dataset.observation[rows], dataset.action[rows]))


def _seed_folders(path: Path, seeds: list[int]) -> list[Path]:
    return [path] if len(seeds) == 1 else [path / f"seed-{seed}" for seed in seeds]


def kept(run: RunFolder | None, name: str, like: Any, make: Callable[[], Any]) -> Any:
    """What `make` returns, from the run folder's file if an earlier call left it there."""
    if run is None:
        return make()
    path = run.path / name
    if not path.exists():
        save_arrays(path, make())
    return load_arrays(path, like)[0]


def _require_own_world(dataset: Dataset) -> None:
    """Refuse data that cannot be of the world they name. Gymnasium's may not be installed where a
    keyboard is learned, so they are not asked for."""
    domain = dataset.domain or ""
    if domain.partition(":")[0] not in WORLDS:
        return
    spec = spec_of(make_vector_env(domain, None, 1))
    if spec != dataset.spec:
        raise UserError(
            f"{dataset.path or 'the dataset'}: its domain is {domain}, which has {spec}, but it "
            f"holds {dataset.spec}; name the domain that the data are of"
        )


def _require_wide_enough(config: KeyboardConfig) -> None:
    """Eigenvectors have to be independent, so a linear layer makes no more than it is wide."""
    basis = config.basis
    if isinstance(basis, laplacian.Config):
        width = basis.hidden[-1] if basis.hidden else config.input_spec.obs_dim
        if basis.k > width:
            raise UserError(
                f"k = {basis.k} is too large: the last layer of the preset's basis is {width} "
                f"wide, so k can be at most {width}"
            )


def _require_enough_states(dataset: Dataset, k: int) -> None:
    """k eigenvectors besides the constant one need more than k different states."""
    if k < 1:
        raise UserError(f"k must be at least 1, not {k}")
    count = 64 * (k + 1)
    states = dataset.observation[:0]
    for start in range(0, len(dataset.observation), count):
        rows = dataset.observation[start : start + count]
        states = np.unique(np.concatenate([states, rows]), axis=0)
        if len(states) > k:
            return
    raise UserError(
        f"k = {k} is too large: the dataset has {len(states)} different observations, so k can be "
        f"at most {len(states) - 1}"
    )
