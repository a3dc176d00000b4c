# SPDX-License-Identifier: Apache-2.0
"""Driver for Penstock's own loader. Uses the public API only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ()

_made: dict[str, Any] = {}


def _field(spec: dict[str, Any]) -> Any:
    import penstock

    if spec["kind"] == "image":
        field: Any = penstock.image(spec["height"], spec["width"], crop=spec["crop"], flip=spec["flip"])
    elif spec["kind"] == "bytes":
        field = penstock.raw()
    else:
        field = penstock.tensor(spec["dtype"], spec["shape"])
    return field.of(";".join(spec["of"])) if spec["of"] else field


def begin(task: dict[str, Any]) -> None:
    """Opens the dataset as a training script would, but without the node cache, because no peer has one. Only the
    participant `planes` uses the cache, and fills it in a first pass.
    """
    import penstock

    known: dict[str, Any] = {}
    if task["records_per_object"]:
        known["records_per_object"] = task["records_per_object"]
    dataset = penstock.open(task["url"], format=_format(task), **known)
    dataset = dataset.fields(**{name: _field(spec) for name, spec in task["fields"].items()})
    transcode = task["options"].get("transcode")
    dataset = dataset.cache(task["work"], transcode=transcode) if transcode else dataset.cache(False)
    kind: Any = penstock.torch.Loader if task["arrays"] == "torch" else penstock.Loader
    _made["loader"] = kind(dataset, batch_size=task["batch"], rank=0, world=1, threads=len(task["cores"]))
    _made["loader"].dataset.counted()
    if transcode:
        for _ in _made["loader"]:
            pass


def _format(task: dict[str, Any]) -> Any:
    """Returns the format's name or, for fixed records, the layout of the columns."""
    import penstock

    if task["format"] != "fixed":
        return task["format"]
    columns: dict[str, Any] = {
        name: penstock.tensor(spec["dtype"], spec["shape"]) for name, spec in task["fields"].items()
    }
    return penstock.formats.fixed(**columns)


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - one of a driver's three functions
    """Runs one epoch. Raw fields are lists of bytes."""
    return iter(_made["loader"])


def report() -> dict[str, Any]:
    """Returns the last pass's time in seconds, by time class."""
    return dict(_made["loader"].report())
