# SPDX-License-Identifier: Apache-2.0
"""Converts a list of URLs to one pattern: their common folder, and the selected names in braces. Accesses no store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock import _native

__all__ = ["check", "joined"]

_INDEXES = (".idx", "index.json")
"""Ends of the names of index files, which are beside the data and not part of it."""

_MAX_URLS = 100_000
_WILD = re.compile(r"[*?\[{]")
_BRACE = re.compile(r"\{([^{}]*)\}")
_SHOWN = 3


def joined(urls: Sequence[str]) -> str:
    """Return one URL for all of `urls`, which must have a scheme or be absolute paths.

    Raises:
        ConfigError: The list is empty or too long, a URL occurs twice or is in another bucket, or a name contains a
            comma.
    """
    if not urls:
        raise ConfigError("url: the list is empty", where="url")
    if len(urls) > _MAX_URLS:
        raise ConfigError(
            f"url: {len(urls):,} URLs exceed the limit of {_MAX_URLS:,}",
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


def check(source: _native.Source, urls: Sequence[str], all_keys: Callable[[], Sequence[str]]) -> None:
    """Raise NotFound if the store lacks an object that these URLs name, also by braces. Without this check, a reader of
    all shards would skip a lost one silently.

    Args:
        source: The dataset of these URLs.
        urls: The URLs, with a scheme or as absolute paths.
        all_keys: Lists the keys, also of objects that are not data. Called only if some are not in the dataset.
    """
    folder = _folder(urls)
    names = [name for url in urls for name in _named(_below(url, folder))]
    found = {source.key(number) for number in range(source.objects)}
    missing = [name for name in names if name not in found and not name.endswith(_INDEXES)]
    if missing:
        others = set(all_keys())
        missing = [name for name in missing if name not in others]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
        what = "list" if len(urls) > 1 else "braces"
        raise NotFound(
            f"{len(missing):,} of {len(names):,} objects of the {what} are not in {folder}: {shown}", where=folder
        )


def _named(name: str) -> list[str]:
    """Return the names that braces expand to. None for a pattern with wildcards or literal braces, for ranges that the
    core reads in another way, and for too many names.
    """
    names, done = [name], []
    while names:
        each = names.pop()
        brace = _BRACE.search(each)  # an inner brace
        if brace is None:
            done.append(each)
            continue
        choices = _choices(brace[1])
        if not choices or len(choices) + len(names) + len(done) > _MAX_URLS:
            return []
        names += [each[: brace.start()] + choice + each[brace.end() :] for choice in reversed(choices)]
    return [] if any(_WILD.search(each) for each in done) else list(dict.fromkeys(done))


def _choices(inner: str) -> list[str]:
    """Return the choices of a brace; none if it is literal, or a range of widths that the core reads in another way."""
    low, mark, high = inner.partition("..")
    is_numbers = low.isdecimal() and high.isdecimal()
    if mark and is_numbers:
        if len(low) != len(high) and ((low[0] == "0" and low != "0") or high[0] == "0"):
            return []
        return [f"{number:0{len(low)}d}" for number in range(int(low), min(int(high), int(low) + _MAX_URLS) + 1)]
    if mark and len(low) == len(high) == 1 and low.isascii() and high.isascii() and low.isalpha() and high.isalpha():
        return [chr(letter) for letter in range(ord(low), ord(high) + 1)]
    return inner.split(",") if "," in inner else []


def _folder(urls: Sequence[str]) -> str:
    shortest, longest = min(urls), max(urls)  # by name: every prefix that these two share is shared by all
    same = next((at for at, (a, b) in enumerate(zip(shortest, longest, strict=False)) if a != b), len(shortest))
    wild = _WILD.search(shortest[:same])
    folder = shortest[: wild.start() if wild else same].rpartition("/")[0] + "/"
    scheme, mark, rest = folder.partition("://")
    # A dataset of the Hugging Face Hub has three names: datasets, organisation and name.
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
