# SPDX-License-Identifier: Apache-2.0
"""Replaces credentials in the command lines of observed programs, which become part of results and pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.errors import redact

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["redact_arguments"]

# `--tokens 4096` and `--tokenizer NAME` are not credentials. Names are bounded, because arguments may be long.
_NAME = (
    r"[\w.-]{0,40}(?:token(?!iz|s)|secret|passw|passphrase|credential|(?:access|api|account|private|sas)[_-]?key)"
    r"[\w.-]{0,40}"
)
_OPTION = re.compile(rf"--?{_NAME}", re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"(-{{0,2}}{_NAME}=).*", re.IGNORECASE | re.DOTALL)
# Matches a credential within a longer argument, such as the text of `sh -c` or `python -c`, or a header of `curl -H`.
_WITHIN = (
    (re.compile(rf"(\b{_NAME}\s*=\s*['\"]?)[^\s'\"&;]+", re.IGNORECASE), r"\1***"),
    (re.compile(rf"(--?{_NAME}\s+['\"]?)[^\s'\"&;-][^\s'\"&;]*", re.IGNORECASE), r"\1***"),
    (re.compile(r"(\bauthorization:\s*).+", re.IGNORECASE), r"\1***"),
)


def redact_arguments(argv: Iterable[str]) -> tuple[str, ...]:
    """Return `argv` with its credentials replaced by `***`: credentials in URLs (as `errors.redact` finds them), and
    the values of options, variables and headers with the name of a credential.
    """
    found: list[str] = []
    is_value = False
    for argument in argv:
        if is_value and not argument.startswith("-"):
            found.append("***")
            is_value = False
            continue
        is_value = _OPTION.fullmatch(argument) is not None
        found.append(_redact_argument(argument))
    return tuple(found)


def _redact_argument(argument: str) -> str:
    if assignment := _ASSIGNMENT.fullmatch(argument):
        return f"{assignment[1]}***"
    text = redact(argument)
    for pattern, replacement in _WITHIN:
        text = pattern.sub(replacement, text)
    return text
