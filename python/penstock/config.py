# SPDX-License-Identifier: Apache-2.0
"""Settings files: which there are, and what they say. Flag > environment > file > default.

Owns reading `penstock.toml` into frozen layers. Refuses to know any verb: a table is named for a verb and a key for its
long flag, and the CLI, which knows them, says what is unknown. Nothing below the CLI ever sees a whole configuration.

    [stage]
    max-in-flight = 32
    [dataset.cosmoflow]
    voxels = 64
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Config", "Layer", "load", "places", "store_variables"]

# A settings file is a page of text; a larger one is something else (a dataset given by mistake).
_LIMIT_BYTES = 1_000_000


class Layer(msgspec.Struct, frozen=True):
    """One file: its place, and its tables as TOML gives them."""

    path: str
    tables: dict[str, Any]


class Config(msgspec.Struct, frozen=True):
    """The files that were found, the strongest first."""

    layers: tuple[Layer, ...] = ()

    def table(self, verb: tuple[str, ...]) -> dict[str, tuple[Any, str]]:
        """Key -> (value, path of the file that set it), for a verb such as `("dataset", "cosmoflow")`."""
        found: dict[str, tuple[Any, str]] = {}
        for layer in reversed(self.layers):
            table: Any = layer.tables
            for name in verb:
                table = table.get(name, {})
                if not isinstance(table, dict):
                    raise ConfigError(f"{layer.path}: `{'.'.join(verb)}` is not a table of settings")
            found |= {key: (value, layer.path) for key, value in table.items() if not isinstance(value, dict)}
        return found

    def speaks_of(self, verb: tuple[str, ...]) -> bool:
        """Whether any file has something under a verb's name, be it a table or not."""
        for layer in self.layers:
            found: Any = layer.tables
            for name in verb:
                found = found.get(name) if isinstance(found, dict) else None
            if found is not None:
                return True
        return False


def store_variables(config: Config) -> dict[str, str]:
    """What `[stores."s3://bucket"]` tables say, as the variables that the stores read.

    Raises:
        ConfigError: A table that is none of variables.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    number = 0
    for layer in config.layers:  # the first that names a store is the strongest
        stores = layer.tables.get("stores", {})
        if not isinstance(stores, dict):
            raise ConfigError(f"{layer.path}: `stores` is not a table of stores")
        for url, table in stores.items():
            if not isinstance(table, dict):
                raise ConfigError(f'{layer.path}: stores."{url}" is not a table of variables')
            if url in seen:
                continue
            seen.add(url)
            prefix = f"PENSTOCK_STORE_0FILE{number}_"
            number += 1
            found[f"{prefix}URL"] = url
            for name, value in table.items():
                short = {"profile": "AWS_PROFILE", "region": "AWS_REGION", "endpoint-url": "AWS_ENDPOINT_URL"}
                variable: str = short.get(name) or name
                if not variable.isupper() or isinstance(value, dict | list):
                    raise ConfigError(
                        f'{layer.path}: stores."{url}": `{name}` is neither profile, region, endpoint-url nor a variable such as AWS_PROFILE'
                    )
                found[prefix + variable] = str(int(value)) if isinstance(value, bool) else str(value)
    return found


def places(environment: Mapping[str, str], folder: Path) -> list[Path]:
    """Where settings are looked for, the strongest first: `penstock.toml` here, then the user's own file."""
    home = environment.get("HOME")
    base = environment.get("XDG_CONFIG_HOME") or (str(Path(home) / ".config") if home else None)
    return [folder / "penstock.toml", *([Path(base) / "penstock" / "config.toml"] if base else [])]


def load(environment: Mapping[str, str], folder: Path, *, only: Path | None = None) -> Config:
    """Read the settings files.

    Args:
        environment: For HOME and XDG_CONFIG_HOME.
        folder: Where `penstock.toml` may lie; parents are not searched.
        only: Read this file and no other; it must exist.
    Raises:
        NotFound: `only` does not exist.
        ConfigError: A file is no TOML, or too large to be settings.
    """
    if only is not None and not only.is_file():
        raise NotFound(f"{only} is no file", hint="--config and PENSTOCK_CONFIG name a TOML file of settings")
    files = [only] if only is not None else places(environment, folder)
    return Config(tuple(Layer(str(path), _read(path)) for path in files if path.is_file()))


def _read(path: Path) -> dict[str, Any]:
    if (size_bytes := path.stat().st_size) > _LIMIT_BYTES:
        raise ConfigError(f"{path} is too large for settings ({size_bytes:,} bytes, limit {_LIMIT_BYTES:,})")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except PermissionError as error:
        raise ConfigError(f"{path} cannot be read: permission denied") from error
