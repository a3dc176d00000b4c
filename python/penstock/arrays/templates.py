# SPDX-License-Identifier: Apache-2.0
"""Saved templates, in TOML: settings to read the SEG-Y files of a survey (geometry, vertical domain, header
corrections).

    map = "inline=9:i4,crossline=21:i4"
    vertical = "depth"
    format = 5

Keys have the names of the long flags of `penstock array`. The template NAME is the file `templates/NAME.toml` in the
folder of the user's settings.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.arrays.segy.geometry import parse_map
from penstock.atomic_file import atomic_file
from penstock.config import user_folder
from penstock.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Template", "load_template", "save_template", "template_path"]

_LIMIT_BYTES = 100_000


@dataclass(frozen=True)
class Template:
    """Content of a template. For a value of None (or False for `allow_trailing`), the value in the SEG-Y file is used.

    Attributes:
        map: Header fields that number the dimensions, such as `inline=189:i4,crossline=193:i4`.
        vertical: `time` or `depth`.
        format: Sample format of SEG-Y: 1 IBM, 5 IEEE, ...
        byte_order: `big` or `little`.
        samples: Number of samples of each trace.
        allow_trailing: Accept bytes after the last whole trace.

    Raises:
        ConfigError: A value is invalid.
    """

    map: str | None = None
    vertical: str | None = None
    format: int | None = None
    byte_order: str | None = None
    samples: int | None = None
    allow_trailing: bool = False

    def __post_init__(self) -> None:
        if self.map is not None:
            parse_map(self.map)
        for name, allowed in (("vertical", ("time", "depth")), ("byte_order", ("big", "little"))):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise ConfigError(f"{name.replace('_', '-')}: `{value}` is not one of {', '.join(allowed)}", where=name)

    def options(self) -> dict[str, Any]:
        """Return the values that are set, as arguments of `penstock.arrays.open` and `convert`."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, False)}

    def to_toml(self) -> str:
        """Return the template as TOML."""
        return "".join(
            f"{name.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}\n"
            for name, value in self.options().items()
        )


def template_path(environment: Mapping[str, str], name: str) -> Path:
    """Return the path of a template: `name` itself if it contains `/` or ends with `.toml`, otherwise a file of the
    user's templates.

    Raises:
        ConfigError: The name is invalid, or neither HOME nor XDG_CONFIG_HOME is set, so the user's folder is unknown.
    """
    if "/" in name or name.endswith(".toml"):
        return Path(name).expanduser()
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(
            f"template: `{name}` is neither a valid template name nor a file", where="template",
            hint="use letters, digits, `_`, `-` and `.`, or the path of a .toml file",
        )  # fmt: skip
    folder = user_folder(environment)
    if folder is None:
        raise ConfigError(
            "template: HOME and XDG_CONFIG_HOME are not set, so the folder of templates is unknown", where="template",
            hint="pass the path of a .toml file",
        )  # fmt: skip
    return folder / "templates" / f"{name}.toml"


def load_template(environment: Mapping[str, str], name: str) -> Template:
    """Read a template.

    Raises:
        NotFound: The template does not exist. The hint lists the user's templates.
        ConfigError: The file is not TOML, or has an unknown key or an invalid value.
    """
    path = template_path(environment, name)
    if not path.is_file():
        known = sorted(each.stem for each in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        raise NotFound(
            f"template: {path} does not exist", where=str(path),
            hint=f"use one of {', '.join(known)}" if known else "run penstock array info FILE --save-template NAME",
        )  # fmt: skip
    with path.open("rb") as file:
        content = file.read(_LIMIT_BYTES)
    try:
        stated = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", where=str(path)) from None
    kinds = {"map": str, "vertical": str, "format": int, "byte-order": str, "samples": int, "allow-trailing": bool}
    for key, value in stated.items():
        if key not in kinds:
            raise ConfigError(f"{path}: unknown key `{key}`; the keys are {', '.join(kinds)}", where=str(path))
        if type(value) is not kinds[key]:
            raise ConfigError(f"{path}: {key} must be {_ARTICLES[kinds[key]]}", where=str(path))
    return Template(**{key.replace("-", "_"): value for key, value in stated.items()})


_ARTICLES = {str: "a string", int: "a whole number", bool: "true or false"}


def save_template(environment: Mapping[str, str], name: str, template: Template) -> Path:
    """Write a template. An existing template with this name is replaced. Returns the path of the file."""
    path = template_path(environment, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as out:
        out.write(template.to_toml().encode())
    return path
