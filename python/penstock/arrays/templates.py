# SPDX-License-Identifier: Apache-2.0
"""Saved templates: how the SEG-Y files of a survey are read (geometry, vertical domain, what their headers state wrong), as TOML.

    map = "inline=9:i4,crossline=21:i4"
    vertical = "depth"
    format = 5

Keys are the long flags of `penstock array`. A name stands for a file in the folder `templates` beside the user's settings.
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
    """What a template states; None, and False for `allow_trailing`, leave the choice to the file.

    Attributes:
        map: Header fields that number the dimensions, as `inline=189:i4,crossline=193:i4`.
        vertical: `time` or `depth`.
        format: Sample format of SEG-Y: 1 IBM, 5 IEEE, ...
        byte_order: `big` or `little`.
        samples: Samples of each trace.
        allow_trailing: Bytes after the last whole trace are kept.

    Raises:
        ConfigError: A value is not of its kind.
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
        """What is stated, as arguments of `penstock.arrays.open` and `convert`."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, False)}

    def to_toml(self) -> str:
        """As TOML."""
        return "".join(
            f"{name.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}\n"
            for name, value in self.options().items()
        )


def template_path(environment: Mapping[str, str], name: str) -> Path:
    """File of a template: `name` itself if it has a `/` or ends with `.toml`, else a file of the user's templates.

    Raises:
        ConfigError: The name is not one, or neither HOME nor XDG_CONFIG_HOME is set, which place the user's templates.
    """
    if "/" in name or name.endswith(".toml"):
        return Path(name).expanduser()
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(
            f"template: `{name}` is neither a name nor a file", where="template",
            hint="use letters, digits, `_`, `-` and `.`, or the path of a .toml file",
        )  # fmt: skip
    folder = user_folder(environment)
    if folder is None:
        raise ConfigError(
            "template: HOME and XDG_CONFIG_HOME are not set, so there is no place for templates", where="template",
            hint="pass the path of a .toml file",
        )  # fmt: skip
    return folder / "templates" / f"{name}.toml"


def load_template(environment: Mapping[str, str], name: str) -> Template:
    """Read a template.

    Raises:
        NotFound: There is no such template; the hint lists the user's.
        ConfigError: It is not TOML, or has a key or a value that a template has not.
    """
    path = template_path(environment, name)
    if not path.is_file():
        known = sorted(each.stem for each in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        raise NotFound(
            f"template: {path} does not exist", where=str(path),
            hint=f"use one of {', '.join(known)}" if known else "penstock array info FILE --save-template NAME makes one",
        )  # fmt: skip
    with path.open("rb") as file:
        content = file.read(_LIMIT_BYTES)
    try:
        stated = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", where=str(path)) from None
    kinds = {"map": str, "vertical": str, "format": int, "byte-order": str, "samples": int, "allow-trailing": bool}
    for key, value in stated.items():
        if key not in kinds:
            raise ConfigError(f"{path}: `{key}` is not one of {', '.join(kinds)}", where=str(path))
        if type(value) is not kinds[key]:
            raise ConfigError(f"{path}: {key} is not {_ARTICLES[kinds[key]]}", where=str(path))
    return Template(**{key.replace("-", "_"): value for key, value in stated.items()})


_ARTICLES = {str: "a text", int: "a whole number", bool: "true or false"}


def save_template(environment: Mapping[str, str], name: str, template: Template) -> Path:
    """Write a template; one of this name is replaced. Returns its file."""
    path = template_path(environment, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as out:
        out.write(template.to_toml().encode())
    return path
