# SPDX-License-Identifier: Apache-2.0
"""What is read: the listing of a dataset, its fields, its shuffle and its record counts. Reads no sample itself."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import _native, env
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Dataset", "TensorSpec", "open", "tensor"]

_LOG = logging.getLogger("penstock.feed")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Element type (NumPy's name) and shape of one field of one sample, C order."""

    dtype: str
    shape: tuple[int, ...]


def tensor(dtype: str, shape: Sequence[int]) -> TensorSpec:
    """A field: `tensor("int16", (128, 128, 128, 4))`.

    Raises:
        ConfigError: A side that is no whole number of at least 0. An unknown dtype is refused by the loader.
    """
    sides = tuple(shape)
    if not all(isinstance(side, int) and side >= 0 for side in sides):
        raise ConfigError(f"shape: {sides} has a side that is no whole number", where="shape")
    return TensorSpec(str(dtype), sides)


@dataclass(slots=True)
class _Counts:
    """Found once and shared by everything derived from one `open`."""

    found: _native.Counted | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
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
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed: {seed} is not within 0 to 2^64 - 1", where="seed")
        if window is not None and window < 1:
            raise ConfigError(f"window: {window} objects cannot be mixed", where="window")
        return replace(self, seed=seed, asked_window=window)

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
    def samples(self) -> int:
        """Samples in an epoch."""
        return self.counted().samples

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
        Denied, Unreachable, Throttled: The store refused.
    """
    text = os.fspath(url)
    if "://" not in text:
        tail = "/" if text.endswith("/") else ""
        text = str(Path(text).absolute()) + tail
    if records_per_object is not None and records_per_object < 1:
        raise ConfigError(f"records_per_object: {records_per_object} is less than 1", where="records_per_object")
    listed = Path(manifest).read_bytes() if manifest is not None else None
    source = _native.Source.open(text, listed, dict(env.read()))
    if source.ignored:
        _LOG.warning("%s: %d objects are no .tfrecord by name and are left aside", source.url, source.ignored)
    return Dataset(source, records_per_object=records_per_object)
