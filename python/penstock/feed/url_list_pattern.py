# SPDX-License-Identifier: Apache-2.0
"""Converts a list of URLs to one pattern: their common folder, and the selected names in braces. Accesses no store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock import _native

__all__ = ["check", "joined"]

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


def check(source: _native.Source, urls: Sequence[str]) -> None:
    """Raise NotFound if the listing lacks an object that these URLs name, also by braces. A reader of all shards would
    otherwise miss a lost one silently.
    """
    folder = _folder(urls)
    names = [name for url in urls for name in _named(_below(url, folder))]
    if source.objects + source.ignored >= len(names) and source.ignored:
        return
    found = {source.key(number) for number in range(source.objects)}
    missing = [name for name in names if name not in found]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
        what = "list" if len(urls) > 1 else "braces"
        raise NotFound(
            f"{len(missing):,} of {len(names):,} objects of the {what} are not in {folder}: {shown}", where=folder
        )


def _named(name: str) -> list[str]:
    """Return the names that braces expand to; none for other patterns and for too many names."""
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
    """Return the choices of a brace; none if it is literal."""
    low, mark, high = inner.partition("..")
    if not mark:
        return inner.split(",") if "," in inner else []
    if len(low) == len(high) == 1 and low.isascii() and high.isascii() and low.isalpha() and high.isalpha():
        return [chr(letter) for letter in range(ord(low), ord(high) + 1)]
    if not (low.isdecimal() and high.isdecimal()) or (len(low) != len(high) and low[0] == "0" and low != "0"):
        return []
    return [f"{number:0{len(low)}d}" for number in range(int(low), min(int(high), int(low) + _MAX_URLS) + 1)]


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
