# SPDX-License-Identifier: Apache-2.0
"""Reader of DLIO workload files (of argonne-lcf/dlio_benchmark, and of MLPerf Storage, which builds on DLIO).

Converts the settings that apply to a Penstock run, and reports all other settings. Rejects a file if a setting that is
not supported would change the figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["DlioWorkload", "is_file", "model_settings", "read"]

_OF_NO_MEANING = {
    "dataset": {"num_files_eval", "num_subfolders_train", "num_subfolders_eval", "generation_buffer_size", "keep_files"},
    "reader": {
        "data_loader", "read_threads", "computation_threads", "file_shuffle", "sample_shuffle", "shuffle_size",
        "prefetch_size", "transfer_size", "multiprocessing_context", "file_access", "read_type", "dont_use_mmap",
        "batch_size_eval",
    },
    "train": {"seed_change_epoch"},
}  # fmt: skip
"""Settings of DLIO's own reader, which do not apply, because Penstock's reader is measured."""

_REFUSED = {
    ("reader", "preprocess_time"): "a preprocessing time",
    ("reader", "data_loader_classname"): "a custom loader class",
    ("reader", "reader_classname"): "a custom reader class",
    ("dataset", "compression"): "a custom compression",
    ("dataset", "enable_chunking"): "chunks",
}


@dataclass(frozen=True)
class DlioWorkload:
    """Content of a workload file, as Penstock settings.

    Attributes:
        settings: Settings of the workload `emulated`. The step times are stored under the name "dlio".
        epochs, steps, seed: Settings of the run. `steps` limits the length of an epoch; None means all data.
        data: Folder of the training files, as written in the file; None if the file does not name one.
        checkpoint_bytes: Size of one checkpoint; None if the workload does not write checkpoints.
        passed_over: Settings in the file that do not apply to Penstock, as `section.name`.
    """

    settings: dict[str, Any]
    epochs: int
    steps: int | None
    seed: int
    data: str | None
    checkpoint_bytes: int | None
    passed_over: tuple[str, ...] = field(default_factory=tuple)


def read(path: Path) -> DlioWorkload:
    """Read one workload file.

    Raises:
        ConfigError: The file is not a DLIO workload in YAML, or has an unsupported setting that would change the
            figures.
    """
    require("reading DLIO's files", "dlio")
    import yaml

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if isinstance(config, dict) and isinstance(config.get("workload"), dict):
        config = config["workload"]  # a whole configuration, as hydra writes it to the output folder
    if not isinstance(config, dict) or not isinstance(config.get("dataset"), dict):
        raise ConfigError(f"{path} is not a DLIO workload: the section `dataset` is missing")
    reader = "data_reader" if "data_reader" in config else "reader"  # `reader` is the older name
    sections = {
        name: config.get(key) or {} for name, key in (("dataset", "dataset"), ("reader", reader), ("train", "train"))
    }
    sections["checkpoint"], sections["metric"] = config.get("checkpoint") or {}, config.get("metric") or {}
    if wrong := [name for name, section in sections.items() if not isinstance(section, dict)]:
        raise ConfigError(f"{path}: `{wrong[0]}` is not a table of settings")
    for (section, name), what in _REFUSED.items():
        if sections[section].get(name):
            raise ConfigError(f"{path}: {section}.{name} sets {what}, which the emulation does not support")
    dataset, train = sections["dataset"], sections["train"]

    def real(section: Mapping[str, Any], name: str, default: float | None = None) -> float:
        return float(_number(path, section, name, default))

    def whole(section: Mapping[str, Any], name: str, default: int | None = None) -> int:
        return int(_number(path, section, name, default))

    record_bytes = whole(dataset, "record_length")
    side = max(1, int(real(dataset, "record_length_resize", record_bytes) ** 0.5))
    takes_checkpoints = bool((config.get("workflow") or {}).get("checkpoint"))
    settings = {
        "name": str(config.get("model", path.stem)),
        "format": str(dataset.get("format", "tfrecord")),
        "record_bytes": record_bytes,
        "record_deviation_bytes": whole(dataset, "record_length_stdev", 0),
        "records_per_file": whole(dataset, "num_samples_per_file", 1),
        "files": whole(dataset, "num_files_train", 8),
        "batch": whole(sections["reader"], "batch_size", 1),
        "step_s": {"dlio": real(train, "computation_time", 0.0)},
        "step_deviation_s": real(train, "computation_time_stdev", 0.0),
        "au": real(sections["metric"], "au", 0.9),
        "side": side,
    }
    folder = dataset.get("data_folder")
    steps = whole(train, "total_training_steps", -1)
    return DlioWorkload(
        settings=settings,
        epochs=whole(train, "epochs", 1),
        steps=steps if steps > 0 else None,
        seed=whole(train, "seed", 123),
        data=f"{str(folder).rstrip('/')}/train" if folder else None,
        checkpoint_bytes=whole(sections["checkpoint"], "model_size", 10240) if takes_checkpoints else None,
        passed_over=tuple(
            f"{name}.{key}" for name, keys in _OF_NO_MEANING.items() for key in sections[name] if key in keys
        ),
    )


def model_settings(model: str) -> dict[str, Any]:
    """Settings of the workload `emulated`, for a model from its catalogue or for a workload file (*.yaml)."""
    from pathlib import Path

    return read(Path(model)).settings if is_file(model) else {"model": model}


def is_file(model: str) -> bool:
    """Whether `model` is the path of a workload file."""
    return model.endswith((".yaml", ".yml"))


def _number(path: Path, section: Mapping[str, Any], name: str, default: float | None) -> float:
    value = section.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{path}: {name} must be a number (got {value!r})")
    return value
