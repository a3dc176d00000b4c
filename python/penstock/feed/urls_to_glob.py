# SPDX-License-Identifier: Apache-2.0
"""Converts a list of URLs to one pattern: their common folder, and the selected names in braces. Accesses no store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["joined", "without_objects"]

_MAX_URLS = 100_000
_WILD = re.compile(r"[*?\[{]")


def joined(urls: Sequence[str]) -> str:
    """Return one URL for all of `urls`, which must have a scheme or be absolute paths.

    Raises:
        ConfigError: The list is empty or too long, a URL occurs twice, two URLs are in different buckets, or a name
            contains a comma.
    """
    if not urls:
        raise ConfigError("url: the list is empty", where="url")
    if len(urls) > _MAX_URLS:
        raise ConfigError(
            f"url: a list can have at most {_MAX_URLS:,} URLs (got {len(urls):,})",
            where="url",
            hint="give the folder or a pattern, or a manifest (penstock index)",
        )
    if len(urls) == 1:
        return urls[0]
    schemes = {url.partition("://")[0] + "://" if "://" in url else "a local path" for url in urls}
    if len(schemes) > 1:
        raise ConfigError(
            f"url: the list mixes {' and '.join(sorted(schemes))}; all URLs of a list must be in one bucket, dataset or "
            "local folder",
            where="url",
            hint="use penstock.mix to read several datasets in one epoch",
        )
    folder = _folder(urls)
    if len(set(urls)) < len(urls):
        twice = next(url for url in urls if urls.count(url) > 1)
        raise ConfigError(
            f"url: {twice} is in the list twice", where="url", hint="use repeat() to read a dataset several times"
        )
    names = [_below(url, folder) for url in urls]
    for name in names:
        if "," in re.sub(r"\{[^{}]*\}", "", name):
            raise ConfigError(
                f"url: {name} contains a comma, which is not supported in a list",
                where="url",
                hint="give a pattern or a manifest",
            )
    return f"{folder}{{{','.join(names)}}}"


def without_objects(urls: Sequence[str], keys: Iterable[str]) -> tuple[str | None, list[str]]:
    """Return the first URL that selects none of the objects `keys` below the common folder, and the URLs that are
    patterns. Patterns and index files are not checked.
    """
    folder = _folder(urls)
    selected = set(keys)
    for key in list(selected):
        selected.update(key[: at + 1] for at, character in enumerate(key) if character == "/")
    unread, patterns = None, []
    for url in urls:
        name = _below(url, folder)
        name = name.removesuffix("**") if name.endswith("/**") else name
        if _WILD.search(name):
            patterns.append(url)
        elif unread is None and name not in selected and not name.endswith((".idx", "index.json")):
            unread = url
    return unread, patterns


def _folder(urls: Sequence[str]) -> str:
    shortest, longest = min(urls), max(urls)  # in name order, so a prefix of both is a prefix of all
    same = next((at for at, (a, b) in enumerate(zip(shortest, longest, strict=False)) if a != b), len(shortest))
    wild = _WILD.search(shortest[:same])
    folder = shortest[: wild.start() if wild else same].rpartition("/")[0] + "/"
    scheme, mark, rest = folder.partition("://")
    # The URL of a dataset of the Hugging Face Hub begins with three names: datasets, organisation and dataset.
    names = 3 if scheme == "hf" else 1
    if (mark and rest.count("/") < names) or scheme.endswith(":"):
        raise ConfigError(
            f"url: {shortest} and {longest} are in different stores or buckets",
            where="url",
            hint="use penstock.mix to read several datasets in one epoch",
        )
    return folder


def _below(url: str, folder: str) -> str:
    name = url[len(folder) :]
    is_folder = name.endswith("/") or not name or ("://" not in url and Path(url).is_dir())
    return f"{name.rstrip('/')}/**".lstrip("/") if is_folder else name
