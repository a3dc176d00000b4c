# SPDX-License-Identifier: Apache-2.0
"""Tests that OSDU manifests have the required properties and match the patterns of the published schemas.

Issue 15, point 2.

The patterns below are from Manifest 1.0.0, AbstractAccessControlList 1.0.0, AbstractLegalTags 1.0.0,
AbstractDataset 1.0.1, AbstractFileCollection 1.0.1, AbstractFileSourceInfo 1.0.1, AbstractFile 1.0.1,
AbstractWPCGroupType 1.2.0 and SeismicTraceData 1.6.0, as the OSDU Data Definition Group publishes them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrays.convert.run import convert
from penstock.arrays.osdu import OsduSettings, osdu_manifest, parse_settings
from penstock.errors import ConfigError
from tests.arrays.segy_files import grid_numbers, noise, write_segy

_ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "partition=opendes", "owners=data.default.owners@opendes.example.com", "viewers=a@b.example.com,c@d.example.com",
    "legal-tags=opendes-public", "countries=NO,US",
]  # fmt: skip
SETTINGS = parse_settings(FLAGS)
KINDS = {
    "a.sgy": "osdu:wks:dataset--FileCollection.SEGY:1.3.0",
    "a.zarr": "osdu:wks:dataset--FileCollection.Generic:1.1.0",
    "a.mdio": "osdu:wks:dataset--FileCollection.TGS.MDIO:1.0.0",
    "a.h5": "osdu:wks:dataset--File.HDF5:1.1.0",
}


def check(manifest: dict) -> tuple[dict, dict]:
    """Check a manifest against the schemas. Returns the data of its dataset and of its component."""
    assert set(manifest) == {"kind", "ReferenceData", "MasterData", "Data"}
    assert re.fullmatch(r"[\w\-\.]+:[\w\-\.]+:[\w\-\.]+:[0-9]+.[0-9]+.[0-9]+", manifest["kind"])
    (dataset,), (component,) = manifest["Data"]["Datasets"], manifest["Data"]["WorkProductComponents"]
    for record in (dataset, component):
        assert set(record) == {"id", "kind", "acl", "legal", "data"}
        kind = record["kind"].split(":")[2]
        assert re.fullmatch(rf"[\w\-\.]+:{re.escape(kind)}:[\w\-\.\:\%]+", record["id"])
        assert set(record["acl"]) == {"owners", "viewers"}
        assert set(record["legal"]) == {"legaltags", "otherRelevantDataCountries"}
        group = r"[a-zA-Z0-9_+&*-]+(?:\.[a-zA-Z0-9_+&*-]+)*@(?:[a-zA-Z0-9-]+\.)+[a-zA-Z]{2,7}"
        assert all(re.fullmatch(group, each) for each in record["acl"]["owners"] + record["acl"]["viewers"])
        assert all(re.fullmatch("[A-Z]{2}", each) for each in record["legal"]["otherRelevantDataCountries"])
    data, facts = dataset["data"], component["data"]
    assert re.fullmatch("[0-9]+", data["TotalSize"])
    properties = data["DatasetProperties"]
    if dataset["kind"].startswith("osdu:wks:dataset--FileCollection"):
        assert properties["FileCollectionPath"].endswith("/")
    sources = [
        *properties.get("FileSourceInfos", []),
        *([properties["FileSourceInfo"]] if "FileSourceInfo" in properties else []),
    ]
    assert all(each["FileSource"] and re.fullmatch("[0-9]+", each["FileSize"]) for each in sources)
    assert data.get("Endian", "BIG") in ("BIG", "LITTLE")
    assert facts["Datasets"] == [f"{dataset['id']}:"]
    assert re.fullmatch(r"[\w\-\.]+:dataset\-\-[\w\-\.]+:[\w\-\.\:\%]+:[0-9]*", facts["Datasets"][0])
    for name, kind in (("SeismicDomainTypeID", "SeismicDomainType"), ("TraceDomainUOM", "UnitOfMeasure"),
                       ("SeismicTraceDataDimensionalityTypeID", "SeismicTraceDataDimensionalityType")):  # fmt: skip
        if name in facts:
            assert re.fullmatch(rf"[\w\-\.]+:reference-data\-\-{kind}:[\w\-\.\:\%]+:[0-9]*", facts[name])
    assert re.fullmatch(
        r"[\w\-\.]+:reference-data\-\-WordFormatType:[\w\-\.\:\%]+:[0-9]*", facts["Precision"]["WordFormat"]
    )
    return data, facts


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    """A 3-D volume with 41 of 42 traces, from 0 to 196 ms, converted to each format."""
    folder = tmp_path_factory.mktemp("osdu")
    inlines, crosslines = grid_numbers(6, 7)
    write_segy(folder / "a.sgy", noise((41, 50)), inlines=inlines[:41], crosslines=crosslines[:41])
    for name in KINDS:
        if name != "a.sgy":
            convert(folder / "a.sgy", folder / name)
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_manifest_of_each_format_holds_to_the_schemas(name, survey):
    manifest = osdu_manifest(survey / name, SETTINGS)
    data, facts = check(manifest)
    assert manifest["kind"] == "osdu:wks:Manifest:1.0.0"
    assert manifest["Data"]["Datasets"][0]["kind"] == KINDS[name]
    assert facts == {
        "Name": "a", "Datasets": facts["Datasets"], "SampleCount": 50, "TraceCount": 41, "SampleInterval": 4.0,
        "StartTime": 0.0, "EndTime": 196.0, "TraceLength": 196.0, "IsPreStack": False,
        "SeismicDomainTypeID": "opendes:reference-data--SeismicDomainType:Time:",
        "SeismicTraceDataDimensionalityTypeID": "opendes:reference-data--SeismicTraceDataDimensionalityType:3D:",
        "TraceDomainUOM": "opendes:reference-data--UnitOfMeasure:ms:", "InlineMin": 100.0, "InlineMax": 105.0,
        "CrosslineMin": 300.0, "CrosslineMax": 306.0, "InlineIncrement": 1.0, "CrosslineIncrement": 1.0,
        "Precision": {"WordFormat": "opendes:reference-data--WordFormatType:FLOAT:", "WordWidth": 4},
    }  # fmt: skip
    if name == "a.sgy":
        size = str((survey / name).stat().st_size)
        assert data["DatasetProperties"] == {
            "FileCollectionPath": f"{survey}/", "FileSourceInfos": [{"FileSource": name, "Name": name, "FileSize": size}],
        }  # fmt: skip
        assert (data["SEGYRevision"], data["Is3D"], data["Endian"]) == ("1.0", True, "BIG")
    if name == "a.mdio":
        assert data["ChunkSize"] == [6, 7, 50]
        assert data["IsLossless"] is True
    assert osdu_manifest(survey / name, SETTINGS) == manifest


def test_manifest_of_gathers_in_depth_and_of_a_lossy_volume(tmp_path):
    cdp, offset = np.repeat(np.arange(10, 22), 5), np.tile(np.arange(100, 600, 100), 12)
    source = write_segy(tmp_path / "a.sgy", noise((60, 50)), fields={21: ("i4", cdp), 37: ("i4", offset)})
    convert(source, tmp_path / "a.mdio", map="cdp=21:i4,offset=37:i4", vertical="depth", codec="zfp:tolerance=0.5")
    data, facts = check(osdu_manifest(tmp_path / "a.mdio", SETTINGS))
    assert facts["IsPreStack"] is True
    assert (facts["FirstCMP"], facts["LastCMP"]) == (10.0, 21.0)
    assert (facts["StartDepth"], facts["EndDepth"]) == (0.0, 196.0)
    assert facts["TraceDomainUOM"] == "opendes:reference-data--UnitOfMeasure:m:"
    assert facts["SeismicTraceDataDimensionalityTypeID"].endswith(":2D:")
    assert data["IsLossless"] is False
    assert data["CompressionTolerance"] == 0.5
    assert data["ExtensionProperties"]["penstock_lossy"]["max_error"] <= 0.5


def test_convert_writes_the_manifest_of_what_it_wrote(survey, tmp_path, run_cli):
    flags = [part for text in FLAGS for part in ("--osdu-set", text)]
    for name in ("b.zarr", "b.sgy"):
        source = survey / ("a.sgy" if name == "b.zarr" else "a.mdio")
        found = run_cli(
            "array", "convert", str(source), str(tmp_path / name), "--osdu", str(tmp_path / "m.json"), *flags
        )
        assert found.code == 0, found
        _, facts = check(json.loads((tmp_path / "m.json").read_text()))
        assert facts["TraceCount"] == 41
    refused = run_cli(
        "array", "convert", str(survey / "a.sgy"), str(tmp_path / "c.zarr"), "--osdu", str(tmp_path / "n.json")
    )
    assert refused.code != 0
    assert "partition: `` is not of the form" in refused.err
    assert not (tmp_path / "c.zarr").exists()
    alone = run_cli("array", "convert", str(survey / "a.sgy"), str(tmp_path / "c.zarr"), "--osdu-set", "partition=a")
    assert "requires --osdu" in alone.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("owners=somebody", "owners: `somebody` is not of the form"),
        ("countries=Norway", "countries: `Norway`"),
        ("partition=a b", "partition: `a b`"),
        ("colour=red", "is not NAME=VALUE"),
        ("owners", "is not NAME=VALUE"),
    ],
)  # fmt: skip
def test_settings_that_osdu_does_not_take_are_refused(text, words):
    name = text.partition("=")[0]
    with pytest.raises(ConfigError, match=words) as found:
        parse_settings([*[each for each in FLAGS if not each.startswith(f"{name}=")], text])
    assert "--osdu-set partition=opendes" in (found.value.hint or "")
    with pytest.raises(ConfigError, match="viewers: missing"):
        OsduSettings("a", ("a@b.com",), (), ("x",), ("NO",))


@given(st.lists(st.from_regex(r"[A-Za-z0-9]{1,9}@[a-z]{1,9}\.[a-z]{2,7}", fullmatch=True), min_size=1, max_size=5))
def test_prop_lists_of_groups_come_back(groups):
    found = parse_settings([*[each for each in FLAGS if not each.startswith("owners=")], f"owners={','.join(groups)}"])
    assert found.owners == tuple(groups)


@pytest.mark.needs_array_peers
def test_records_are_what_models_generated_from_the_schemas_take(survey, tmp_path):
    paths = []
    for name in KINDS:
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(osdu_manifest(survey / name, SETTINGS)))
    python, script = _ROOT / ".tools/array-peers/bin/python", Path(__file__).with_name("check_osdu.py")

    def check_models(*files: Path) -> subprocess.CompletedProcess[str]:
        home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        return subprocess.run(
            [python, script, *files], env=home, capture_output=True, text=True, timeout=100, check=False
        )

    found = check_models(*paths)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.count("SeismicTraceData 1.6.0") == len(KINDS)
    # The models reject wrong manifests, so the check above is meaningful.
    for old, new in (
        ('"SampleCount": 50', '"SampleCount": "fifty"'), ("--UnitOfMeasure:", "--Unit:"), ("FileCollectionPath", "Path"),
    ):  # fmt: skip
        text = paths[0].read_text()
        assert old in text
        (tmp_path / "wrong.json").write_text(text.replace(old, new))
        assert check_models(tmp_path / "wrong.json").returncode != 0, old
