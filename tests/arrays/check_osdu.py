# SPDX-License-Identifier: Apache-2.0
"""Checks OSDU manifests with OSDU's record models: `check_osdu.py MANIFEST..`. Runs in the models' own environment.

The model of a record's kind parses the record's data. The models (osdu-python-models) are generated from the published
schemas.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

MODULES = {
    "work-product-component--SeismicTraceData": "workproductcomponent.seismic_trace_data",
    "dataset--FileCollection.SEGY": "dataset.file_collection_segy",
    "dataset--FileCollection.TGS.MDIO": "dataset.file_collection_tgs_mdio",
    "dataset--FileCollection.Generic": "dataset.file_collection_generic",
    "dataset--File.HDF5": "dataset.file_hdf5",
}


def main() -> None:
    for path in sys.argv[1:]:
        manifest = json.loads(Path(path).read_text())["Data"]
        for record in [*manifest["Datasets"], *manifest["WorkProductComponents"]]:
            _, _, kind, version = record["kind"].split(":")
            module = import_module(f"osdu_models.{MODULES[kind]}.v{version.replace('.', '_')}")
            data = module.Data.model_validate(record["data"])
            unknown = {*record["data"]} - {field.alias or name for name, field in type(data).model_fields.items()}
            if hasattr(module, "DatasetProperties"):
                # In osdu-python-models 0.8.0, `Data` of FileCollection.SEGY 1.3.0 lacks these fields of
                # AbstractDataset.
                module.DatasetProperties.model_validate(record["data"]["DatasetProperties"])
                unknown -= {"DatasetProperties", "Endian"}
            if unknown:
                sys.exit(f"{path}: {kind} has no {sorted(unknown)}")
            print(kind, version)


if __name__ == "__main__":
    main()
