# SPDX-License-Identifier: Apache-2.0
"""Renamed flags: the old name works for one more release, as a flag, as an environment variable and in `penstock.toml`.

Each use of an old flag or variable prints one line with the new name on stderr. Completion and help show only new
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ALIASES", "RENAMED", "new_key", "renamed_arguments", "renamed_variables", "warn_of_rename"]

_REQUESTS = {"deadline": "timeout", "give-up-after": "retry-timeout"}
_CLUSTER = {"deadline": "timeout"}
_LOAD = {"time-limit": "duration", **_CLUSTER}

# For each verb: old name -> new name, without the dashes.
RENAMED: dict[tuple[str, ...], dict[str, str]] = {
    ("index",): _REQUESTS,
    ("diff",): _REQUESTS,
    ("verify",): _REQUESTS,
    ("stage",): {
        **_REQUESTS, "deflate": "compress", "object-deadline": "object-timeout", "stall-after": "idle-timeout",
        "wait-limit": "wait-timeout",
    },
    ("doctor",): _CLUSTER,
    ("demo",): {"out": "output"},
    ("report",): {"out": "output"},
    ("train",): {"runs": "output"},
    ("run",): {"runs": "output", "meet": "rendezvous", "as-node": "node-only"},
    ("pool", "up"): {**_CLUSTER, "need": "min-free"},
    **{("pool", verb): _CLUSTER for verb in ("status", "down", "audit")},
    **{("cluster", verb): _CLUSTER for verb in ("nodes", "run", "copy")},
    ("bench", "storage"): _LOAD,
    ("bench", "object"): {**_LOAD, "attempt-limit": "attempt-timeout", "give-up-after": "retry-timeout"},
    ("bench", "feed"): {"limit": "timeout", "runs": "output"},
    ("bench", "accelerator"): {"runs": "output"},
}  # fmt: skip

# Alternative names that are not deprecated.
ALIASES: dict[tuple[str, ...], dict[str, str]] = {("stage",): {"inflate": "decompress"}}


def new_key(verb: tuple[str, ...], key: str) -> str:
    """Return the current name of a setting."""
    return RENAMED.get(verb, {}).get(key) or ALIASES.get(verb, {}).get(key) or key


def warn_of_rename(old: str, new: str) -> None:
    """Print a note about a renamed setting on stderr."""
    click.echo(f"note: {old} is now {new}; the next release removes {old}", err=True)


def renamed_arguments(verb: tuple[str, ...], arguments: Sequence[str]) -> list[str]:
    """Replace old flags in a verb's arguments. Arguments after `--` belong to another program and are not changed."""
    ours = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    for at, argument in enumerate(ours):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--") and (new := new_key(verb, flag[2:])) != flag[2:]:
            if flag[2:] in RENAMED.get(verb, {}):
                warn_of_rename(flag, f"--{new}")
            ours[at] = f"--{new}{equals}{value}"
    return [*ours, *arguments[len(ours) :]]


def renamed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to add, so that an old `PENSTOCK_<VERB>_<FLAG>` sets the current flag."""
    found: dict[str, str] = {}
    for names in (RENAMED, ALIASES):
        for verb, flags in names.items():
            for old, new in flags.items():
                before, now = ("_".join(("PENSTOCK", *verb, flag)).upper().replace("-", "_") for flag in (old, new))
                if before in environment and now not in environment:
                    found[now] = environment[before]
                    if names is RENAMED:
                        warn_of_rename(before, now)
    return found
