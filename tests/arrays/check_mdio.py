# SPDX-License-Identifier: Apache-2.0
"""Checks Penstock's MDIO groups against groups that MDIO itself writes. Runs in MDIO's own environment.

`check_mdio.py import FOLDER` converts each NAME.sgy to theirs-NAME.mdio. `check_mdio.py compare FOLDER` checks that
ours-NAME.mdio has the same variables, types, values and attributes, and that MDIO exports it to the same SEG-Y file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

SURVEYS = {
    "stack": ("PostStack3DTime", []),
    "line": ("PostStack2DTime", [("cdp", 21)]),
    "gathers": ("CdpOffsetGathers3DTime", [("offset", 37)]),
}


def specification(fields: list[tuple[str, int]]):
    from segy.schema import HeaderField, ScalarType
    from segy.standards import get_segy_standard

    found = get_segy_standard(1.0)
    found.trace.data.format = ScalarType.FLOAT32
    more = [HeaderField(name=name, byte=byte, format="int32") for name, byte in fields]
    return found.customize(trace_header_fields=more) if more else found


def compare(ours, theirs) -> list[str]:
    problems = [f"attribute {key}" for key in ("name", "attributes") if ours.attrs[key] != theirs.attrs[key]]
    for name in theirs.variables:
        one, other = ours[name], theirs[name]
        is_float = one.dtype.kind == "f"
        if one.dims != other.dims or one.dtype != other.dtype:
            problems.append(f"{name}: {one.dims} {one.dtype}, not {other.dims} {other.dtype}")
        elif not np.array_equal(one.values, other.values, equal_nan=is_float):
            problems.append(f"{name}: values")
    one, other = ours["segy_file_header"].attrs, theirs["segy_file_header"].attrs
    problems += [f"segy_file_header: {key}" for key in ("textHeader", "binaryHeader") if one[key] != other[key]]
    return problems


def main() -> int:
    os.environ |= {
        "MDIO__IMPORT__SAVE_SEGY_FILE_HEADER": "1", "MDIO__IMPORT__CPU_COUNT": "1", "MDIO__EXPORT__CPU_COUNT": "1",
    }  # fmt: skip
    import mdio
    from mdio.builder.template_registry import get_template

    folder, problems = Path(sys.argv[2]), []
    for name, (template, fields) in SURVEYS.items():
        ours, theirs = folder / f"ours-{name}.mdio", folder / f"theirs-{name}.mdio"
        source, back = folder / f"{name}.sgy", folder / f"back-{name}.sgy"
        if sys.argv[1] == "import":
            mdio.segy_to_mdio(specification(fields), get_template(template), source, theirs, overwrite=True)
            continue
        problems += [f"{name}: {each}" for each in compare(mdio.open_mdio(ours), mdio.open_mdio(theirs))]
        mdio.mdio_to_segy(specification(fields), ours, back)
        if back.read_bytes() != source.read_bytes():
            problems.append(f"{name}: MDIO's export differs from the source")
    print("\n".join(problems) or "equal")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
