# SPDX-License-Identifier: Apache-2.0
"""Tests that the links between documentation pages have a target, including headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_links_lead_somewhere(page):
    lost = []
    for link in _LINK.findall(page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_page_is_reached_from_the_index():
    seen: set[Path] = set()
    todo = [ROOT / "README.md", ROOT / "docs/README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        todo += [
            (page.parent / link.partition("#")[0]).resolve()
            for link in _LINK.findall(page.read_text())
            if "://" not in link
        ]
    loose = [page for page in PAGES if page not in seen and page.parent.name not in {"decisions", "changes"}]
    assert [str(page.relative_to(ROOT)) for page in loose] == []
