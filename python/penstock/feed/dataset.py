# SPDX-License-Identifier: Apache-2.0
"""What is read: the listing of a dataset, its fields, its shuffle and its record counts. Reads no sample itself."""

from __future__ import annotations

import logging
import operator
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from penstock import _native, env
from penstock.errors import ConfigError, Denied, NotFound, SystemFault
from penstock.feed.shape import Shaped, cut, expected_reads

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Dataset", "TensorSpec", "open", "tensor"]

_LOG = logging.getLogger("penstock.feed")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Element type (NumPy's name) and shape of one field of one sample, C order."""

    dtype: str
    shape: tuple[int, ...]


def tensor(dtype: object, shape: Sequence[SupportsIndex]) -> TensorSpec:
    """A field: `tensor("int16", (128, 128, 128, 4))`. NumPy's and torch's own dtypes are taken too.

    Raises:
        ConfigError: A side that is no whole number of at least 0. An unknown dtype is refused by the loader.
    """
    try:
        sides = tuple(operator.index(side) for side in shape)
    except TypeError:
        sides = (-1,)
    if any(side < 0 for side in sides):
        raise ConfigError(f"shape: {shape!r} is no row of whole numbers (one side: `(4,)`)", where="shape")
    # `numpy.int16` is a class of that name, `torch.int16` prints as itself: neither library is imported here.
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    return TensorSpec(name, sides)


@dataclass(slots=True)
class _Counts:
    """Found once and shared by everything derived from one `open`."""

    found: _native.Counted | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Dataset(Shaped):
    """A listed dataset. Immutable; `fields` and `shuffle` give new ones. Pickles without connections or credentials."""

    source: _native.Source
    specs: tuple[tuple[str, TensorSpec], ...] = ()
    seed: int | None = None
    asked_window: int | None = None
    records_per_object: int | None = None
    _counts: _Counts = field(default_factory=_Counts, repr=False, compare=False)

    def fields(self, **specs: TensorSpec) -> Dataset:
        """The same dataset with these fields: `fields(x=tensor("int16", (128, 128, 128, 4)))`. Names are the records'."""
        for name, spec in specs.items():
            if not isinstance(spec, TensorSpec):
                raise ConfigError(f"fields: {name} is no penstock.tensor(dtype, shape)", where="fields")
        return replace(self, specs=tuple(specs.items()))

    def shuffle(self, seed: int, window: int | None = None) -> Dataset:
        """The same dataset in the order that `seed` names; each epoch has its own.

        Objects are permuted over the whole dataset, then samples within each `window` of objects that follow each other
        there. No buffer is filled and nothing is drawn: position p of epoch e is a pure function.

        Args:
            seed: 0 to 2^64 - 1.
            window: Objects whose samples mix; by default 16, fewer (at least 2) where objects hold over 1,024 records.
        """
        # Plain numbers, so that a state is JSON whatever kind of integer was given.
        seed = operator.index(seed)
        window = None if window is None else operator.index(window)
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed: {seed} is not within 0 to 2^64 - 1", where="seed")
        if window is not None and not 1 <= window < 2**63:
            raise ConfigError(f"window: {window} objects cannot be mixed", where="window")
        if self.mappings:
            raise ConfigError("shuffle: it comes before map()", where="shuffle")
        steps = self.steps
        names = [name for name, _, _ in steps]
        # What stands behind an order cannot come before another one; a shuffle right after a shuffle replaces it.
        is_behind = names[-1:] != ["shuffle"] if "shuffle" in names else self.seed is not None and bool(steps)
        if is_behind or "repeat" in names:
            raise ConfigError(
                "shuffle: it comes before repeat, and is not given again behind other steps",
                where="shuffle",
                hint="ds.shuffle(seed).repeat(n) gives each pass an order of its own",
            )
        if steps and "shuffle" not in names:
            steps = (*steps, ("shuffle", 0, 0))
        return replace(self, seed=seed, asked_window=window, steps=steps)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} {spec.dtype} {list(spec.shape)}" for name, spec in self.specs)
        parts = [self.url, f"{self.source.objects:,} objects"]
        parts += [f"fields {fields}"] if fields else []
        parts += [f"seed {self.seed}"] if self.seed is not None else []
        return f"Dataset({', '.join(parts)}{self._told_steps()})"

    @property
    def url(self) -> str:
        """The folder that was listed."""
        return self.source.url

    def counted(self) -> _native.Counted:
        """Record counts by the ladder (declared, manifest, sizes, scan), found once. A scan is announced first."""
        if self._counts.found is None:
            variables = dict(env.read())
            found = self.source.count(self.records_per_object, scans=False, env=variables)
            if found is None:
                _LOG.warning(
                    "%s: its objects differ in size, so their records are counted by reading all of them once: "
                    "%d objects, %s bytes. Say records_per_object=N, or give a manifest with counts, to spare that.",
                    self.url,
                    self.source.objects,
                    f"{self.source.size_bytes:,}",
                )
                found = self.source.count(None, scans=True, env=variables)
            if found is None:
                raise AssertionError("a scan always finds counts or raises")
            self._counts.found = found
        return self._counts.found

    @property
    def rung(self) -> str:
        """How the records were counted."""
        return self.counted().rung

    def _base(self) -> _native.Course:
        counted = self.counted()
        names = [name for name, _, _ in self.steps]
        start, stop = 0, counted.samples
        if "shuffle" in names:
            for name, a, b in self.steps[: names.index("shuffle")]:
                first, last = cut(stop - start, name, a, b)
                start, stop = start + first, start + last
        return _native.Course.leaf(self.source, counted, seed=self.seed, window=self.window, select=(start, stop))

    def _gets(self, batch: float, world: int) -> float:
        return expected_reads(self.counted().samples, self.source.objects, self.window, batch, world)

    @property
    def fingerprint(self) -> str:
        """Names without codec suffix, and record counts: a staged or inflated copy has the same."""
        return self.counted().fingerprint

    @property
    def window(self) -> int:
        """Objects whose samples mix."""
        if self.seed is None:
            return 1
        return self.counted().window if self.asked_window is None else self.asked_window


def open(  # noqa: A001 - the verb is the API
    url: str | os.PathLike[str],
    manifest: str | os.PathLike[str] | None = None,
    *,
    records_per_object: int | None = None,
) -> Dataset:
    """Lists a dataset: one listing, no object opened.

    Args:
        url: A folder, one object, or a pattern (`s3://b/train/*.tfrecord.gz`); a plain path is a local one.
        manifest: A file of `penstock index`, instead of the listing; reads are then pinned to its versions.
        records_per_object: Records in every object, where that is known; else the ladder finds out.
    Raises:
        NotFound: Nothing is there.
        ConfigError: An object lies beside its inflated copy, so that each sample would be read twice.
        Denied, Unreachable, Throttled: The store refused.
    """
    text = os.fsdecode(url)
    if not text:
        raise ConfigError("url: it is empty", where="url", hint="the working directory is `.`")
    if "://" not in text:
        tail = "/" if text.endswith("/") else ""
        text = str(Path(text).absolute()) + tail
    if records_per_object is not None and records_per_object < 1:
        raise ConfigError(f"records_per_object: {records_per_object} is less than 1", where="records_per_object")
    listed = None if manifest is None else _read(Path(manifest))
    source = _native.Source.open(text, listed, dict(env.read()))
    if source.ignored:
        _LOG.warning("%s: %d objects are no .tfrecord by name and are left aside", source.url, source.ignored)
    return Dataset(source, records_per_object=records_per_object)


def _read(manifest: Path) -> bytes:
    try:
        return manifest.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"{manifest} does not exist", where=str(manifest)) from None
    except PermissionError as error:
        raise Denied(f"{manifest} may not be accessed: {error.strerror}", where=str(manifest)) from None
    except OSError as error:
        raise SystemFault(f"{manifest}: {error.strerror}", where=str(manifest)) from None
