# SPDX-License-Identifier: Apache-2.0
"""Settings files: finds and reads them. Precedence: flag > environment > file > default.

Reads `penstock.toml` into frozen layers. A table is named after a verb, and a key after a long flag. Only the CLI
contains the verbs, so the CLI reports unknown names. No module below the CLI sees a whole configuration.

`penstock.toml` in the current folder may come from another user (a cloned repository, a shared scratch folder). Until
the user trusts its content (`penstock config allow`), it can set only quantities and choices: no text, path, flag or
store.

    [stage]
    max-in-flight = 32
    [dataset.cosmoflow]
    voxels = 64
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.env import state_home
from penstock.errors import ConfigError, NotFound
from penstock.ownership import remove_file

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Config", "Layer", "allow", "load", "needs_consent", "places", "revoke", "store_variables", "user_folder"]

# Maximum file size. A settings file is about a page of text; a larger file is something else, such as a dataset passed
# by mistake.
_LIMIT_BYTES = 1_000_000


class Layer(msgspec.Struct, frozen=True):
    """One settings file: its path, its tables as parsed TOML, and whether the user trusts all of it."""

    path: str
    tables: dict[str, Any]
    is_trusted: bool = True


class Config(msgspec.Struct, frozen=True):
    """The settings files that were found, in order of precedence."""

    layers: tuple[Layer, ...] = ()

    def table(self, verb: tuple[str, ...]) -> dict[str, tuple[Any, str]]:
        """Map each key to (value, path of the file that set it), for a verb such as `("dataset", "cosmoflow")`."""
        found: dict[str, tuple[Any, str]] = {}
        for layer in reversed(self.layers):
            table: Any = layer.tables
            for name in verb:
                table = table.get(name, {})
                if not isinstance(table, dict):
                    raise ConfigError(f"{layer.path}: `{'.'.join(verb)}` is not a table of settings")
            found |= {key: (value, layer.path) for key, value in table.items() if not isinstance(value, dict)}
        return found

    def trusts(self, path: str) -> bool:
        """Whether the file at `path` may set every option. Otherwise, only quantities and choices are allowed."""
        return all(layer.is_trusted for layer in self.layers if layer.path == path)

    def mentions(self, verb: tuple[str, ...]) -> bool:
        """Whether any file has an entry with the name of this verb, as a table or a value."""
        for layer in self.layers:
            found: Any = layer.tables
            for name in verb:
                found = found.get(name) if isinstance(found, dict) else None
            if found is not None:
                return True
        return False


def needs_consent(path: str, what: str) -> ConfigError:
    """Return the error for a setting in `path` to which the user has not consented."""
    return ConfigError(
        f"{path} sets {what}, but you have not allowed this file to do so",
        hint=f"read the file, then run `penstock config allow {path}`; or pass another file with --config",
    )


def store_variables(config: Config) -> dict[str, str]:
    """Return variables for the stores, from the tables `[stores."s3://bucket"]`.

    Raises:
        ConfigError: A table contains something other than variables, or the user has not consented to the file.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    number = 0
    for layer in config.layers:  # in order of precedence: the first layer that lists a store wins
        stores = layer.tables.get("stores", {})
        if not isinstance(stores, dict):
            raise ConfigError(f"{layer.path}: `stores` is not a table of stores")
        if stores and not layer.is_trusted:
            raise needs_consent(layer.path, "stores")
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
    """Return the paths of settings files in order of precedence: `penstock.toml` in this folder, then the user's own
    file.
    """
    own = user_folder(environment)
    return [folder / "penstock.toml", *([own / "config.toml"] if own else [])]


def user_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the user's settings: `penstock` in `XDG_CONFIG_HOME`, otherwise in `~/.config`. None if
    neither XDG_CONFIG_HOME nor HOME is set.
    """
    home = environment.get("HOME")
    base = environment.get("XDG_CONFIG_HOME") or (str(Path(home) / ".config") if home else None)
    return Path(base) / "penstock" if base else None


def load(environment: Mapping[str, str], folder: Path, *, only: Path | None = None) -> Config:
    """Read the settings files.

    Args:
        environment: Environment variables, of which HOME and XDG_CONFIG_HOME are used.
        folder: Folder that may contain `penstock.toml`. Its parents are not searched.
        only: Read only this file, which must exist.
    Raises:
        NotFound: `only` does not exist.
        ConfigError: A file is not TOML, or is too large for a settings file.
    """
    if only is not None and not only.is_file():
        raise NotFound(f"{only} is not a file", hint="pass a TOML settings file with --config or PENSTOCK_CONFIG")
    if only is not None:
        return Config((Layer(str(only), _parse(only, _read(only))),))
    here, *own = places(environment, folder)
    layers = []
    if here.is_file():
        content = _read(here)
        layers.append(Layer(str(here), _parse(here, content), _is_allowed(environment, here, content)))
    layers += [Layer(str(path), _parse(path, _read(path))) for path in own if path.is_file()]
    return Config(tuple(layers))


def allow(environment: Mapping[str, str], path: Path) -> Path:
    """Record the user's consent to the file's current content. Return the path of the record. Any change of the file
    ends the consent.

    Raises:
        NotFound: The file does not exist.
        ConfigError: The file is not TOML, or neither HOME nor XDG_STATE_HOME is set, so the record has no location.
    """
    if not path.is_file():
        raise NotFound(f"{path} is not a file", hint="give the path of the settings file to allow")
    content = _read(path)
    _parse(path, content)
    record = _record(environment, path, content)
    if record is None:
        raise ConfigError(
            "HOME and XDG_STATE_HOME are not set, so consent cannot be recorded",
            hint="pass the file with --config instead",
        )
    record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(record.parent):
        raise ConfigError(
            f"{record.parent} belongs to another user or is writable by others", hint=f"run chmod 700 {record.parent}"
        )
    record.write_text(f"{path.resolve()}\n", encoding="utf-8")
    return record


def revoke(environment: Mapping[str, str], path: Path) -> int:
    """Withdraw all consents to the file, for any content. Return the number of withdrawn consents."""
    record = _record(environment, path, b"")
    found = [
        old
        for old in (record.parent.glob("*") if record is not None else [])
        if old.is_file() and old.read_text(encoding="utf-8", errors="replace").rstrip("\n") == str(path.resolve())
    ]
    for old in found:
        remove_file(old)
    return len(found)


def _record(environment: Mapping[str, str], path: Path, content: bytes) -> Path | None:
    """Return the path of the consent record for a settings file with this path and content. The record is named after
    the digest of both.
    """
    state = state_home(environment)
    if state is None:
        return None
    key = hashlib.sha256(os.fsencode(path.resolve()) + b"\0" + content).hexdigest()
    return state / "penstock/allowed" / key


def _is_allowed(environment: Mapping[str, str], path: Path, content: bytes) -> bool:
    record = _record(environment, path, content)
    return record is not None and record.is_file() and _is_private(record.parent)


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LIMIT_BYTES + 1)
    except PermissionError as error:
        raise ConfigError(f"{path} cannot be read: permission denied") from error
    if len(content) > _LIMIT_BYTES:
        size_bytes = path.stat().st_size
        raise ConfigError(f"{path} is too large for a settings file ({size_bytes:,} bytes, limit {_LIMIT_BYTES:,})")
    return content


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
