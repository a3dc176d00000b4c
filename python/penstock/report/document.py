# SPDX-License-Identifier: Apache-2.0
"""HTML frame of every report: one file that opens offline, sends no requests and draws its charts in the browser.

Owns the frame, the escaping and the shared elements. Each report adds its own parts and charts.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import TYPE_CHECKING

from penstock.atomic_file import atomic_file
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

__all__ = ["asset", "chart_spec", "document", "escape", "figure", "refuse_without_charts", "table", "write_whole"]

# The favicon is inlined, because a browser would otherwise request one.
_ICON = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M8 1C11 6 13 8 13 10.5a5 5 0 0 1-10 0C3 8 5 6 8 1z' fill='%230067ab'/%3E%3C/svg%3E"
# Script that exposes the three chart libraries as globals, as vl-convert's bundler does by default.
_EMBED = "window.vegaEmbed = vegaEmbed; window.vega = vega; window.vegaLite = vegaLite;"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:"


def asset(name: str) -> str:
    """Read the text of a file in the folder `assets` of this package."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def escape(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text))


def _script_json(value: object) -> str:
    # Escape `<`, because `</script>` or `<!--` inside a string would end the script element.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def table(head: Iterable[tuple[str, str]], rows: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Build an HTML table. Head entries are (class, text), cells are (class, html). Class `head` marks a row's name."""
    names = list(head)
    top = "".join(f'<th scope="col" class="{kind}">{escape(text)}</th>' for kind, text in names)
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{cell}</th>' if kind == "head" else f'<td class="{kind}">{cell}</td>'
            for kind, cell in row
        )
        + "</tr>"
        for row in rows
    )
    # Focusable, so that a wide table can be scrolled by keyboard.
    label = escape("table of " + ", ".join(text for _, text in names if text))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(name: str, caption: str) -> str:
    """Build an HTML figure for the chart `name`. The caption is HTML and is not escaped."""
    return f'<figure><div class="chart" id="chart-{name}"><noscript>This chart is drawn by the script in this file.</noscript></div><figcaption>{caption}</figcaption></figure>'


def chart_spec(chart: Any, **more: Any) -> dict[str, Any]:
    """Build the Vega-Lite spec of an altair chart for a page: as wide as its figure, without a background.

    Args:
        more: Further properties of the chart, such as `height` in pixels.
    """
    spec: dict[str, Any] = chart.properties(width="container", background="transparent", **more).to_dict()
    spec.pop("$schema", None)  # remove this URL, so that nothing fetches it
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def document(title: str, parts: Iterable[str], specs: dict[str, Any]) -> str:
    """Return the complete HTML document. Without specs it contains no script and needs neither altair nor vl-convert.

    Args:
        parts: HTML of the body, already escaped.
        specs: Vega-Lite specs by the name of their `figure`.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<title>{escape(title)}</title><link rel="icon" href="{_ICON}">'
        f'<style>{asset("page.css")}</style></head><body><a class="skip" href="#content">Skip to the content</a>'
        f'<main id="content" tabindex="-1">{"".join(parts)}</main>'
        f"{_scripts(specs) if specs else ''}</body></html>\n"
    )


def _scripts(specs: dict[str, Any]) -> str:
    import vl_convert

    return (
        f'<script type="application/json" id="specs">{_script_json(specs)}</script>'
        f"<script>{vl_convert.javascript_bundle(_EMBED)}</script><script>{asset('page.js')}</script>"
    )


def refuse_without_charts() -> None:
    """Raise MissingPackage if altair or vl-convert is not installed. Called before charts are built."""
    require("a report with pictures", "report")


def write_whole(text: str, file: Path) -> None:
    """Write a document atomically."""
    with atomic_file(file, durable=False) as out:
        out.write(text.encode())
