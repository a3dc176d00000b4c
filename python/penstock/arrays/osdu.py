# SPDX-License-Identifier: Apache-2.0
"""Builds the OSDU load manifest of a volume: a seismic trace data record, and a dataset record of the files.

Source: the schemas that the OSDU Data Definition Group publishes: Manifest 1.0.0,
work-product-component--SeismicTraceData 1.6.0, and dataset--FileCollection.SEGY 1.3.0, --FileCollection.TGS.MDIO 1.0.0,
--File.HDF5 1.1.0 and --FileCollection.Generic 1.1.0. FileCollection.Generic describes Zarr groups, for which OSDU has
no specific kind. This module sends nothing to an OSDU instance. The manifest leaves out facts that the volume does not
contain (coordinate reference system, survey, processing).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.convert.zarr_destination import STATE
from penstock.arrays.convert.zfp import lossy_of
from penstock.arrays.location import Location
from penstock.arrays.opening import open as open_array
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.arrays.array import Array

__all__ = ["OsduSettings", "osdu_manifest", "parse_settings"]

MANIFEST_KIND = "osdu:wks:Manifest:1.0.0"
TRACE_DATA_KIND = "osdu:wks:work-product-component--SeismicTraceData:1.6.0"
DATASET_KINDS = {
    "segy": "osdu:wks:dataset--FileCollection.SEGY:1.3.0",
    "mdio": "osdu:wks:dataset--FileCollection.TGS.MDIO:1.0.0",
    "hdf5": "osdu:wks:dataset--File.HDF5:1.1.0",
    "zarr": "osdu:wks:dataset--FileCollection.Generic:1.1.0",
}

_PARTITION = r"[\w\-.]+"
# Patterns from AbstractAccessControlList and AbstractLegalTags 1.0.0.
_GROUP = r"[a-zA-Z0-9_+&*-]+(?:\.[a-zA-Z0-9_+&*-]+)*@(?:[a-zA-Z0-9-]+\.)+[a-zA-Z]{2,7}"
_COUNTRY = "[A-Z]{2}"

_PRE_STACK = ("offset", "channel", "trace_in_cdp")
_WORDS = {"f": "FLOAT", "i": "INT", "u": "UINT"}


@dataclass(frozen=True)
class OsduSettings:
    """Settings that every record of an OSDU instance needs.

    Attributes:
        partition: Name of the data partition, with which the ids of the records begin.
        owners, viewers: E-mail addresses of the groups that own the records, and of the groups that can view them.
        legal_tags: Legal tags.
        countries: Two-letter codes of the relevant countries.

    Raises:
        ConfigError: A setting is missing or malformed.
    """

    partition: str
    owners: tuple[str, ...]
    viewers: tuple[str, ...]
    legal_tags: tuple[str, ...]
    countries: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, values, form in (
            ("partition", (self.partition,), _PARTITION),
            ("owners", self.owners, _GROUP),
            ("viewers", self.viewers, _GROUP),
            ("legal-tags", self.legal_tags, ".+"),
            ("countries", self.countries, _COUNTRY),
        ):
            wrong = [value for value in values if not re.fullmatch(form, value)]
            if wrong or not values:
                problem = f"`{wrong[0]}` is not of the form {form}" if wrong else "missing"
                raise ConfigError(f"osdu-set: {name}: {problem}", where="osdu-set", hint=_EXAMPLE)


_NAMES = ("partition", "owners", "viewers", "legal-tags", "countries")
_EXAMPLE = (
    "pass --osdu-set partition=opendes --osdu-set owners=data.default.owners@opendes.example.com --osdu-set "
    "viewers=data.default.viewers@opendes.example.com --osdu-set legal-tags=opendes-public --osdu-set countries=NO"
)


def parse_settings(texts: Iterable[str]) -> OsduSettings:
    """Parse settings from texts of the form `NAME=VALUE,..`. A name can be repeated.

    Raises:
        ConfigError: A name is unknown or missing, or OSDU does not accept the form of a value.
    """
    found: dict[str, list[str]] = {name: [] for name in _NAMES}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name not in found:
            raise ConfigError(
                f"osdu-set: `{text}` is not NAME=VALUE, where NAME is one of {', '.join(_NAMES)}",
                where="osdu-set",
                hint=_EXAMPLE,
            )
        found[name] += [value.strip() for value in values.split(",")]
    if len(found["partition"]) > 1:
        raise ConfigError("osdu-set: partition must be given only once", where="osdu-set")
    lists = [tuple(found[name]) for name in _NAMES[1:]]
    return OsduSettings("".join(found["partition"]), *lists)


def osdu_manifest(
    url: str | os.PathLike[str], settings: OsduSettings, *, timeout_s: float = 600.0, **options: Any
) -> dict[str, Any]:
    """Build the manifest of a volume: `osdu:wks:Manifest:1.0.0` with one component and one dataset.

    The volume is opened, but its samples are not read. The ids are derived from the partition and the URL. Therefore, a
    later manifest of the same volume updates the same records.

    Args:
        options: Arguments of `penstock.arrays.open`, such as `map` for a SEG-Y file.

    Raises:
        NotFound, Unsupported, Corrupt: As in `penstock.arrays.open`.
    """
    location = Location(os.fspath(url), timeout_s)
    array = open_array(location.url, timeout_s=timeout_s, **options)
    kind = array.attrs["kind"]
    facts = array.attrs.get("penstock_segy", {})
    facts = json.loads(facts) if isinstance(facts, str) else facts
    form = "mdio" if kind == "zarr" and _is_mdio(location) else kind
    dataset_kind = DATASET_KINDS[form]
    key = hashlib.sha256(location.url.encode(errors="surrogateescape")).hexdigest()[:32]
    dataset_id = f"{settings.partition}:{dataset_kind.split(':')[2]}:{key}"
    dataset = _record(settings, dataset_id, dataset_kind, _dataset(location, array, form))
    component = _record(
        settings, f"{settings.partition}:work-product-component--SeismicTraceData:{key}", TRACE_DATA_KIND,
        {**_component(location, array, facts, settings.partition), "Datasets": [f"{dataset_id}:"]},
    )  # fmt: skip
    return {
        "kind": MANIFEST_KIND,
        "ReferenceData": [],
        "MasterData": [],
        "Data": {"Datasets": [dataset], "WorkProductComponents": [component]},
    }


def _record(settings: OsduSettings, record_id: str, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": record_id,
        "kind": kind,
        "acl": {"owners": list(settings.owners), "viewers": list(settings.viewers)},
        "legal": {"legaltags": list(settings.legal_tags), "otherRelevantDataCountries": list(settings.countries)},
        "data": data,
    }


def _is_mdio(location: Location) -> bool:
    found = json.loads(location.read("zarr.json") or b"{}")
    return "apiVersion" in found.get("attributes", {})


def _dataset(location: Location, array: Array, form: str) -> dict[str, Any]:
    entry = location.entry()
    objects = [entry] if entry is not None else [e for e in location.list() if STATE not in e.name.split("/")]
    size = str(sum(each.size for each in objects))
    name = os.fsdecode(location.name)
    data: dict[str, Any] = {"Name": name, "TotalSize": size}
    lossy = lossy_of(array.attrs)
    if form == "hdf5":
        data["DatasetProperties"] = {"FileSourceInfo": {"FileSource": location.url, "Name": name, "FileSize": size}}
    elif form == "segy":
        data["DatasetProperties"] = {
            "FileCollectionPath": location.folder,
            "FileSourceInfos": [{"FileSource": name, "Name": name, "FileSize": size}],
        }
        data["Endian"] = array.attrs["byte_order"].upper()
        data["SEGYRevision"] = ".".join(map(str, array.attrs["revision"]))
        data["Is3D"] = {"inline", "crossline"} <= set(array.dims)
    else:
        data["DatasetProperties"] = {"FileCollectionPath": f"{location.url}/"}
        data["Endian"] = "LITTLE"
    if form == "mdio":
        data |= {"ChunkSize": list(array.chunks), "IsLossless": lossy is None}
        if lossy is not None and "tolerance" in lossy:
            data["CompressionTolerance"] = lossy["tolerance"]
    if lossy is not None:
        data["ExtensionProperties"] = {"penstock_lossy": lossy}
    return data


def _component(location: Location, array: Array, facts: dict[str, Any], partition: str) -> dict[str, Any]:
    vertical = array.dims[-1]
    data: dict[str, Any] = {"Name": os.path.splitext(os.fsdecode(location.name))[0]}  # noqa: PTH122 - of a URL

    def reference(kind: str, code: str) -> str:
        return f"{partition}:reference-data--{kind}:{code}:"

    if {"inline", "crossline"} <= set(array.dims):
        data["SeismicTraceDataDimensionalityTypeID"] = reference("SeismicTraceDataDimensionalityType", "3D")
    elif array.dims[0] == "cdp":
        data["SeismicTraceDataDimensionalityTypeID"] = reference("SeismicTraceDataDimensionalityType", "2D")
    if set(array.dims) & set(_PRE_STACK):
        data["IsPreStack"] = True
    elif array.dims[:-1] in (("inline", "crossline"), ("cdp",)):
        data["IsPreStack"] = False
    data["SampleCount"] = array.shape[-1]
    data["TraceCount"] = int(facts.get("traces", array.attrs.get("traces", prod(array.shape[:-1]))))
    data["Precision"] = {
        "WordFormat": reference("WordFormatType", _WORDS.get(array.dtype.kind, "FLOAT")), "WordWidth": array.dtype.itemsize,
    }  # fmt: skip
    if array.attrs.get("kind") == "segy" and array.attrs.get("format") == 1:
        data["Precision"]["WordFormat"] = reference("WordFormatType", "IBM_FLOAT")
    if vertical in ("time", "depth"):
        data["SeismicDomainTypeID"] = reference("SeismicDomainType", vertical.capitalize())
        data |= _vertical(array, vertical, reference)
    for dim, first, last in (
        ("inline", "InlineMin", "InlineMax"), ("crossline", "CrosslineMin", "CrosslineMax"), ("cdp", "FirstCMP", "LastCMP"),
        ("shot", "FirstShotPoint", "LastShotPoint"), ("shot_point", "FirstShotPoint", "LastShotPoint"),
    ):  # fmt: skip
        if dim not in array.dims or dim not in array.coords:
            continue
        numbers = np.asarray(array.coords[dim].values)
        data |= {first: float(numbers.min()), last: float(numbers.max())}
        steps = np.unique(np.diff(numbers))
        if dim in ("inline", "crossline") and len(steps) == 1:
            data[f"{dim.capitalize()}Increment"] = float(steps[0])
    return data


def _vertical(array: Array, vertical: str, reference: Any) -> dict[str, Any]:
    """Return the interval, start, end and length of the traces, in the unit that `TraceDomainUOM` names."""
    found = array.coords.get(vertical)
    unit = None if found is None else found.attrs.get("units")
    if found is None or unit not in ("ms", "s", "m", "ft", "km"):
        return {}
    values = np.asarray(found.values, dtype=np.float64)
    name = vertical.capitalize()
    data: dict[str, Any] = {f"Start{name}": float(values[0]), f"End{name}": float(values[-1])}
    if len(values) > 1:
        data["SampleInterval"] = float(values[-1] - values[0]) / (len(values) - 1)
        data["TraceLength"] = float(values[-1] - values[0])
    return {**data, "TraceDomainUOM": reference("UnitOfMeasure", unit)}
