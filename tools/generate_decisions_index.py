# SPDX-License-Identifier: Apache-2.0
"""Write docs/decisions/README.md, the index of decision records; `--check` exits 1 if the page is stale."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs/decisions"
# The first two digits of a record's number name its area.
AREAS = {
    "00": "Process",
    "01": "Stores",
    "02": "Emulator",
    "03": "Codecs, record formats, datasets",
    "04": "Stage",
    "05": "Feed",
    "06": "Train",
    "07": "Demo",
    "08": "Project, settings, environment",
    "09": "Bench",
    "10": "Clusters, pools, jobs",
    "12": "Arrays",
    "13": "Plans and studies",
}


def page(folder: Path = FOLDER) -> str:
    """The index of all records in `folder`.

    Raises:
        ValueError: A record's first line is not `# NNNN. Title`, or its number belongs to no area.
    """
    parts = [
        "<!-- Written by tools/generate_decisions_index.py (`make generate`). Do not edit. -->\n",
        "# Decisions\n",
        "Each record gives the context, the choice and its figures ([template](template.md)).",
    ]
    area = ""
    for path in sorted(folder.glob("[0-9]*.md")):
        first = path.read_text().partition("\n")[0]
        found = re.fullmatch(rf"# {path.name[:4]}\. (.+)", first)
        if not found or path.name[:2] not in AREAS:
            raise ValueError(f"{path.name}: the first line is `{first}`, want `# NNNN. Title` with the file's number")
        if path.name[:2] != area:
            area = path.name[:2]
            parts.append(f"\n## {area}xx: {AREAS[area]}\n")
        parts.append(f"- [{path.name[:4]}]({path.name}) {found[1]}")
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    target, wanted = FOLDER / "README.md", page()
    if not parser.parse_args().check:
        target.write_text(wanted)
    elif not target.exists() or target.read_text() != wanted:
        print(f"{target.relative_to(FOLDER.parent.parent)} is stale: run make generate")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
