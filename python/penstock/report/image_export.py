# SPDX-License-Identifier: Apache-2.0
"""Exports charts as PNG or SVG files, in the light colours of the page style."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.report.document import asset, refuse_without_charts

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["export_images", "write_chart"]

_WIDTH = 860
_FONT = "Liberation Sans, Arial, sans-serif"
_SCALE = 2.0


def _print_colours() -> dict[str, str]:
    """Read the colours by name from the first block of the style sheet, which defines the light scheme."""
    light = asset("page.css").partition(":root {")[2].partition("}")[0]
    return {f"@{name}": value.strip() for name, value in re.findall(r"--(\w+):\s*(#[0-9a-fA-F]+)", light)}


def _with_colours(node: Any, colours: dict[str, str]) -> Any:
    if isinstance(node, str):
        return colours.get(node, node)
    if isinstance(node, list):
        return [_with_colours(inner, colours) for inner in node]
    if isinstance(node, dict):
        return {name: _with_colours(inner, colours) for name, inner in node.items()}
    return node


def _standalone_spec(spec: dict[str, Any], colours: dict[str, str]) -> str:
    soft, line = colours["@soft"], colours["@line"]
    axis = {"labelColor": soft, "titleColor": soft, "gridColor": line, "domainColor": line, "tickColor": line}
    whole = {
        **_with_colours(spec, colours),
        "width": _WIDTH,
        "background": colours["@sheet"],
        "padding": 16,
        "config": {
            "font": _FONT,
            "view": {"stroke": None},
            "axis": {**axis, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 400},
            "legend": {"labelColor": soft, "labelFontSize": 12},
            "text": {"fontSize": 12},
        },
    }
    return json.dumps(whole)


def _drawn(spec: str, kind: str) -> bytes:
    """Draw a Vega-Lite spec. `kind` is "svg" or "png"."""
    import vl_convert

    if kind == "svg":
        svg: str = vl_convert.vegalite_to_svg(spec)
        return svg.encode()
    png: bytes = vl_convert.vegalite_to_png(spec, scale=_SCALE)
    return png


def export_images(specs: dict[str, dict[str, Any]], folder: Path, kind: str) -> list[Path]:
    """Write one file per chart, `<name>.png` or `<name>.svg`.

    Raises:
        Unsupported: altair or vl-convert is not installed.
    """
    refuse_without_charts()
    folder.mkdir(parents=True, exist_ok=True)
    colours = _print_colours()
    made = []
    for name, spec in specs.items():
        file = folder / f"{name}.{kind}"
        file.write_bytes(_drawn(_standalone_spec(spec, colours), kind))
        made.append(file)
    return made


def write_chart(spec: dict[str, Any], file: Path) -> None:
    """Write one Vega-Lite chart that has its own sizes and colours; the suffix selects SVG or PNG.

    Raises:
        ConfigError: The suffix is neither .svg nor .png.
        Unsupported: altair or vl-convert is not installed.
        Denied, NoSpace, SystemFault: The file cannot be written.
    """
    if file.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(f"{file}: the suffix of a chart must be .svg or .png", where=str(file))
    refuse_without_charts()
    from penstock.bench.results import whole_file

    content = _drawn(json.dumps({**spec, "background": "white", "padding": 16}), file.suffix.lower().removeprefix("."))
    with whole_file(file) as out:
        out.write(content)
