# SPDX-License-Identifier: Apache-2.0
"""Manifests: `index` lists a dataset and writes the listing as a manifest. `diff` compares two datasets by metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock import env
from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError, NotFound
from penstock.stage.spec import RENAMED_REQUEST, absolute

__all__ = ["diff", "index"]


@renamed_parameters(RENAMED_REQUEST)
def index(
    url: str,
    output: str | Path | None = None,
    *,
    timeout_s: float | None = None,
    retry_timeout_s: float | None = None,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    written_as: str | None = None,
) -> dict[str, Any]:
    """List a dataset once, and write its manifest to `output`. Lists only objects that match `select` and not
    `exclude`. The manifest format is `json` or `parquet`; by default, the suffix of `output` determines it. Without a
    known suffix, Parquet is used from 100,000 objects on. Returns objects, bytes, codecs, formats and the fingerprint.

    Raises:
        NotFound: No object matches.
        Denied, Unreachable, Throttled: The store rejected a request or did not respond.
    """
    from penstock import _native

    path = None if output is None else Path(output)
    if path is not None and path.is_dir():
        raise ConfigError(f"--output: {path} is a folder", where="--output")
    if path is not None and not path.parent.is_dir():  # checked first, because the listing can take long
        raise NotFound(f"--output: the folder {path.parent} does not exist", where="--output")
    facts: dict[str, Any] = json.loads(
        _native.index(
            absolute(url),
            env.for_stores(),
            output=path,
            timeout_s=timeout_s,
            retry_timeout_s=retry_timeout_s,
            select=list(select),
            exclude=list(exclude),
            written_as=written_as,
        )
    )
    return facts


@renamed_parameters(RENAMED_REQUEST)
def diff(
    a: str,
    b: str,
    *,
    timeout_s: float | None = None,
    retry_timeout_s: float | None = None,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Compare two datasets by logical name: added, removed, changed and same objects. Each is a manifest, a staged
    folder or a URL.

    `select` and `exclude` are patterns for the keys of both.

    Raises:
        NotFound, Denied, Unreachable, Throttled: One of the datasets cannot be listed.
        Corrupt: A manifest is invalid.
    """
    from penstock import _native

    found: dict[str, Any] = json.loads(
        _native.diff(
            absolute(a),
            absolute(b),
            env.for_stores(),
            timeout_s=timeout_s,
            retry_timeout_s=retry_timeout_s,
            select=list(select),
            exclude=list(exclude),
        )
    )
    return found
