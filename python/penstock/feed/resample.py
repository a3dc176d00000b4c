# SPDX-License-Identifier: Apache-2.0
"""Weighted sampling: computes the weights of all samples from weights per sample or per class, class balance, and
schedules of weights.

Converts weights to integers, and chooses the number of passes of an epoch. The core draws the samples (module
`weighted_draws`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from penstock import _native
from penstock.errors import ConfigError
from penstock.extras import require
from penstock.feed import classes as class_folders
from penstock.feed import sample_value_cache, selection
from penstock.feed.fields import to_json
from penstock.feed.function_values import values_of
from penstock.feed.number_arguments import as_int, as_int_or_none

if TYPE_CHECKING:
    from penstock.feed.dataset import Dataset

__all__ = ["MAX_PASSES", "Labels", "Resample", "WeightSpec", "of"]

MAX_PASSES = 16
"""Default maximum number of passes over the objects in an epoch. The repetitions of a sample are then spread over up to
16 shuffle windows, and an object is read at most 16 times.
"""

_MAX_WEIGHT = 2**32 - 1

_MAX_SHOWN = 5

WeightSpec = Any
"""Weights of one stage of a schedule: an array, a mapping from classes to weights, or "balanced"."""

Labels = Any
"""Name of a field, or an array with the class of each sample."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of all stored samples. `schedule` is a list of (first epoch, uint32 array)."""

    schedule: tuple[tuple[int, Any], ...]
    samples: int
    passes: int
    text: str


@dataclass(slots=True, eq=False)
class Resample:
    """Arguments of `resample`, and the weights of all stored samples after they are computed."""

    dataset: Dataset
    stages: tuple[tuple[int, WeightSpec], ...]
    labels: Labels
    samples: int | None
    replacement: bool
    passes: int | None
    _weights: list[_Weights] = field(default_factory=list)

    def __reduce__(self) -> Any:
        # Pickle the weights, so that another process does not scan the labels again.
        return (_restored, (self.dataset, self.weights()))

    def __repr__(self) -> str:
        spec = self.stages[0][1]
        name = repr(spec) if isinstance(spec, str) else "by class" if isinstance(spec, Mapping) else "by weights"
        return name + (f" and {len(self.stages) - 1} later weights" if len(self.stages) > 1 else "")

    def __str__(self) -> str:
        return self.weights().text

    def sampler(self, dataset: Dataset) -> _native.Sampler:
        """Return the sampler of a shuffled dataset.

        Raises:
            ConfigError: The dataset is not shuffled, or the weights are invalid.
        """
        if dataset.seed is None:
            raise ConfigError(
                "resample: requires a shuffled dataset, because its draws differ between epochs",
                where="resample",
                hint="give resample(seed=...), or call shuffle(seed)",
            )
        weights = self.weights()
        return _native.Sampler.weighted(
            dataset.source,
            dataset.counted(),
            weights.schedule,
            samples=weights.samples,
            passes=weights.passes,
            seed=dataset.seed,
            window=dataset.window,
        )

    def weights(self) -> _Weights:
        """Return the weights of all stored samples, which are computed once.

        Raises:
            ConfigError: A weight is negative, NaN or infinite, all weights are 0, or there is not one weight per
                sample.
        """
        if not self._weights:
            self._weights.append(self._computed())
        return self._weights[0]

    def _computed(self) -> _Weights:
        import numpy as np

        stored, steps = self.dataset.counted().samples, self.dataset.steps
        chosen = np.asarray(selection.positions(steps, stored), dtype=np.int64)
        if len(chosen) == 0:
            raise ConfigError("resample: the dataset has no samples", where="resample")
        if len(np.unique(chosen)) < len(chosen):
            raise ConfigError("resample: cannot follow a selection that repeats samples", where="resample")
        labels: list[_Classes] = []

        def classes() -> _Classes:
            if not labels:
                labels.append(_classes(self.dataset, self.labels, len(chosen)))
            return labels[0]

        floats = [(epoch, _floats(spec, len(chosen), classes)) for epoch, spec in self.stages]
        samples = self._length(len(chosen), min(int((each > 0).sum()) for _, each in floats))
        passes = self._passes([each for _, each in floats], samples)
        schedule = []
        for epoch, each in floats:
            whole = np.zeros(stored, dtype=np.uint32)
            whole[chosen] = _with_replacement(each) if self.replacement else _without_replacement(each, samples)
            schedule.append((epoch, whole))
        digest = selection.digest_of(*(data for epoch, whole in schedule for data in (b"%d" % epoch, whole.data)))
        return _Weights(tuple(schedule), samples, passes, f"{samples}x{passes}@{digest}")

    def _length(self, count: int, positive: int) -> int:
        if self.samples is not None and not self.replacement and self.samples > positive:
            raise ConfigError(
                f"samples: {self.samples:,} samples cannot be drawn without replacement from {positive:,} samples with "
                "a weight above 0",
                where="samples",
            )
        return count if self.samples is None else self.samples

    def _passes(self, floats: list[Any], samples: int) -> int:
        if not self.replacement:
            return 1
        passes = self.passes
        if passes is None:
            most = max(float(each.max() / each.sum()) * samples for each in floats)
            passes = min(max(1, math.ceil(most - 1e-9)), MAX_PASSES)
        # Draws are equally spaced over all passes, so only the last pass can be incomplete.
        return -(-samples // -(-samples // min(passes, samples)))


def _restored(dataset: Dataset, weights: _Weights) -> Resample:
    return Resample(dataset, ((0, None),), None, None, True, None, [weights])


def of(
    dataset: Dataset,
    weights: WeightSpec | None,
    labels: Labels | None,
    samples: int | None,
    *,
    replacement: bool,
    passes: int | None,
    schedule: Sequence[tuple[int, WeightSpec]] | None,
) -> Resample:
    """Check the arguments of `resample` for a dataset in stored order.

    Raises:
        ConfigError: An argument is invalid.
    """
    require("resample", "numpy")
    stages = [] if weights is None else [(0, weights)]
    stages += [(as_int("schedule", epoch), spec) for epoch, spec in schedule or ()]
    epochs = [epoch for epoch, _ in stages]
    if not stages or epochs[0] != 0:
        raise ConfigError("resample: give weights, or a schedule that starts at epoch 0", where="resample")
    if any(later <= earlier for earlier, later in pairwise(epochs)) or epochs[-1] >= 2**40:
        raise ConfigError(f"schedule: the epochs must increase (got {epochs})", where="schedule")
    for name, value in (("samples", samples), ("passes", passes)):
        if value is not None and not 1 <= as_int(name, value) < 2**40:
            raise ConfigError(f"{name}: must be at least 1 (got {value})", where=name)
    if not replacement and samples is None:
        raise ConfigError(
            "samples: required with replacement=False; otherwise, every sample would be drawn once, and weights would "
            "have no effect",
            where="samples",
        )
    if not replacement and passes not in (None, 1):
        raise ConfigError(
            "passes: must be 1 with replacement=False, because an epoch then has one pass", where="passes"
        )
    return Resample(
        dataset,
        tuple((epoch, _checked(spec)) for epoch, spec in stages),
        labels,
        as_int_or_none("samples", samples),
        bool(replacement),
        as_int_or_none("passes", passes),
    )


def _checked(spec: WeightSpec) -> Literal["balanced"] | Mapping[Any, float] | Any:
    import numpy as np

    if isinstance(spec, str):
        if spec != "balanced":
            raise ConfigError(f'weights: "{spec}" is neither "balanced" nor an array', where="weights")
        return spec
    if isinstance(spec, Mapping):
        return dict(spec)
    try:
        array = np.array(spec, dtype=np.float64)  # a copy, so that the caller cannot change it later
    except (TypeError, ValueError) as error:
        raise ConfigError(f"weights: must be an array of numbers ({error})", where="weights") from None
    if array.ndim != 1:
        raise ConfigError(f"weights: must have one dimension (got shape {array.shape})", where="weights")
    return array


@dataclass(frozen=True, slots=True)
class _Classes:
    """Distinct classes, and for each sample the number of its class. `names` are the names of the class folders, if the
    dataset has class folders.
    """

    values: list[Any]
    codes: Any
    names: tuple[str, ...] = ()


def _classes(dataset: Dataset, labels: Labels | None, samples: int) -> _Classes:
    import numpy as np

    names: tuple[str, ...] = ()
    values: Any
    if labels is None:
        if not class_folders.has_folder_labels(dataset.source):
            raise ConfigError(
                "labels: required for weights by class",
                where="labels",
                hint='name the field of the labels: resample("balanced", labels="label")',
            )
        names = dataset.classes
        numbers = {name: number for number, name in enumerate(names)}
        source = dataset.source
        folders = [source.key(number).partition("/")[0] for number in range(source.objects)]
        values = np.array([numbers[name] for name in folders], dtype=np.int64)
        # In a folder of images, each object is one sample.
        values = values[np.asarray(selection.positions(dataset.steps, len(values)), dtype=np.int64)]
    elif isinstance(labels, str):
        values = _read(dataset, labels)
    else:
        try:
            values = np.asarray(labels)
        except ValueError as error:
            raise ConfigError(
                f"labels: must be one integer or text for each sample ({error})", where="labels"
            ) from None
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"labels: must be UTF-8 ({error})", where="labels") from None
    if values.shape != (samples,) or values.dtype.kind not in "biuU":
        raise ConfigError(
            f"labels: must be one integer or text for each of {samples:,} samples (got {values.dtype} of shape "
            f"{values.shape})",
            where="labels",
        )
    distinct, codes = np.unique(values, return_inverse=True)
    return _Classes(distinct.tolist(), codes, names)


def _read(dataset: Dataset, name: str) -> Any:
    specs = dataset.batch_fields()
    if name not in specs:
        raise ConfigError(f"labels: no field `{name}` (fields: {', '.join(specs)})", where="labels")
    only = dataset.fields(**{name: specs[name]})
    key = f"values:{name}:{to_json(only.batch_fields().items())}"
    with sample_value_cache.advice_about_damage(
        "labels", 'ds.filter(lambda sample: True, on_error="skip").resample(...)'
    ):
        return sample_value_cache.scanned(
            only, f"resample by `{name}`", key, lambda: values_of(only, _Label(name), workers=0)
        )


@dataclass(frozen=True, slots=True)
class _Label:
    name: str

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"value": sample[self.name]}


def _floats(spec: WeightSpec, samples: int, classes: Any) -> Any:
    """Return the weights of all samples as float64."""
    import numpy as np

    if isinstance(spec, str):
        codes = classes().codes
        counts = np.bincount(codes)
        return (1.0 / counts)[codes]
    if isinstance(spec, Mapping):
        return _by_class(spec, classes())
    if len(spec) != samples:
        raise ConfigError(f"weights: {len(spec):,} weights were given for {samples:,} samples", where="weights")
    for problem, is_bad in (("NaN", np.isnan(spec)), ("infinite", np.isinf(spec)), ("negative", spec < 0)):
        if is_bad.any():
            raise ConfigError(
                f"weights: {int(is_bad.sum()):,} of {samples:,} weights are {problem} (first: sample "
                f"{int(is_bad.argmax()):,})",
                where="weights",
            )
    if not spec.any():
        raise ConfigError(f"weights: all {samples:,} weights are 0", where="weights")
    return spec


def _by_class(spec: Mapping[Any, float], classes: _Classes) -> Any:
    import numpy as np

    given = {(classes.names.index(name) if name in classes.names else name): float(w) for name, w in spec.items()}
    missing = [value for value in classes.values if value not in given]
    unknown = [value for value in given if value not in classes.values]
    for problem, values in (("no weight for class", missing), ("no sample of class", unknown)):
        if values:
            shown = ", ".join(f"{value!r}" for value in values[:_MAX_SHOWN])
            more = f" and {len(values) - _MAX_SHOWN:,} more" if len(values) > _MAX_SHOWN else ""
            raise ConfigError(f"weights: {problem} {shown}{more}", where="weights")
    for value, weight in given.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(
                f"weights: the weight of class {value!r} must be finite and at least 0 (got {weight})", where="weights"
            )
    weights = np.array([given[value] for value in classes.values])
    if not weights.any():
        raise ConfigError(f"weights: the weights of all {len(weights):,} classes are 0", where="weights")
    return weights[classes.codes]


def _scale(samples: int) -> int:
    """Return the largest integer weight for which the sum of all weights stays below 2^63."""
    return min(_MAX_WEIGHT, 2**62 // samples)


def _with_replacement(weights: Any) -> Any:
    """Return integer weights that are proportional to `weights`. A weight above 0 becomes at least 1."""
    import numpy as np

    whole = np.rint(weights / weights.max() * _scale(len(weights)))
    return np.where((weights > 0) & (whole < 1), 1, whole).astype(np.uint32)


def _without_replacement(weights: Any, samples: int) -> Any:
    """Return integer weights with which `samples` draws select no sample more than once.

    Samples that would get more than one draw are drawn once in every epoch. The other samples share the remaining
    draws.
    """
    import numpy as np

    ordered = np.sort(weights)[::-1]
    left = np.cumsum(ordered[::-1])[::-1]  # sum of this weight and all smaller ones
    certain = int(np.argmax((samples - np.arange(len(ordered))) * ordered <= left * (1 + 1e-12)))
    share = (samples - certain) / left[certain] if samples > certain else 0.0
    scale = _scale(len(weights))
    is_certain = weights >= (ordered[certain - 1] if certain else math.inf)
    whole = np.where(is_certain, scale, np.minimum(np.floor(weights * share * scale) + 1, scale))
    whole = np.where(weights > 0, whole, 0).astype(np.int64)
    # After rounding, a sample can still have slightly more than one draw.
    while int(whole.max()) * samples > int(whole.sum()):
        whole = np.minimum(whole, int(whole.sum()) // samples)
    return whole.astype(np.uint32)
