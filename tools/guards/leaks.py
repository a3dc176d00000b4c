# SPDX-License-Identifier: Apache-2.0
"""Checks that no commit contains a registry's or mirror's host, a path of a private machine, or a credential.

A lock file may not contain download addresses. The only exception is Cargo.lock's name for crates.io, which cargo
writes whichever mirror is used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tools.guards.tree import read_text, tracked

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find"]

# Written in pieces, so that this file does not match itself.
_RULES = {
    "an absolute path of somebody's machine": re.compile(
        r"(?<![\w.$}~-])/(?:" + r"root|home/[a-z]+|work|Users/[a-z]+" + r")/[\w.-]"
    ),
    "a package registry or mirror": re.compile(
        r"https?://[\w.-]*(?:"
        + "|".join(
            [
                "py" + "pi",
                "pythonhosted",
                "regis" + "try",
                "art" + "ifactory",
                "nexus",
                "mirror",
                "goproxy",
                "proxy" + r"\.golang",
                r"static\.cra" + "tes",
                r"deb\.deb" + "ian",
            ]
        )
        + r")[\w.-]*",
        re.IGNORECASE,
    ),
    "an AWS access key": re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA)(?!" + r"IOSFODNN7EXAMPLE)[A-Z0-9]{16}(?![A-Z0-9])"),
    "a private key": re.compile("-----BEGIN " + r"[A-Z ]*PRIVATE KEY-----"),
    "a token": re.compile(r"\b(?:ghp|gho|ghs|github_pat|glpat|pypi-AgE|xox[bp])[-_]" + r"[A-Za-z0-9_-]{20,}"),
    "a signed URL": re.compile(r"[?&](?:X-Amz-Signature|sig)" + r"=[A-Za-z0-9%+/]{20,}"),
}
_LOCKED_SOURCE = 'source = "registry+https://github.com/rust-lang/' + 'crates.io-index"'


def find(root: Path) -> list[str]:
    breaches = []
    for name in tracked(root):
        text = read_text(root / name)
        if text is None:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if name.name == "Cargo.lock" and line == _LOCKED_SOURCE:
                continue
            breaches += [f"{name}:{number}: looks like {what}" for what, rule in _RULES.items() if rule.search(line)]
    return breaches
