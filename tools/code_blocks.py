# SPDX-License-Identifier: Apache-2.0
"""Finds the runnable blocks of a Markdown page and makes one bash script that runs them in order.

A page is one session: later blocks see what earlier ones exported, started or wrote. `bash` blocks run unchanged.
`console` blocks run the lines after `$ ` and their continuation lines after `> `. `python` blocks run with the
interpreter on PATH. A comment on the line before a block excludes it, with the reason:
`<!-- not run: needs a cluster -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Block", "blocks", "script"]

_RUN = ("bash", "console", "python")
# Languages that are shown but never run. Any other language is an error, so that a misspelt one cannot exclude a block.
_SHOWN = ("text", "toml", "json", "rust", "yaml", "html")
_OPT_OUT = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is the line number of its opening fence; `skipped` is the stated reason, or None."""

    language: str
    text: str
    line: int
    skipped: str | None = None

    @property
    def runs(self) -> bool:
        return self.language in _RUN and self.skipped is None


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page.

    Raises:
        ValueError: A fence without or with an unknown language, one that is never closed, or an opt-out without a reason.
    """
    found: list[Block] = []
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        fence = re.match(r"( *)(```+)(\S*)\s*$", lines[at])
        if not fence:
            at += 1
            continue
        indent, ticks, language = fence.groups()
        if language not in (*_RUN, *_SHOWN):
            raise ValueError(f"line {at + 1}: language `{language}` is not one of {', '.join((*_RUN, *_SHOWN))}")
        end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == ticks), None)
        if end is None:
            raise ValueError(f"line {at + 1}: the block is never closed")
        before = lines[at - 1].strip() if at else ""
        reason = _OPT_OUT.fullmatch(before)
        if before.startswith("<!-- not run") and not reason:
            raise ValueError(f"line {at}: an opt-out states its reason: <!-- not run: why -->")
        text = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end])
        found.append(Block(language, text, at + 1, reason[1] if reason else None))
        at = end + 1
    return found


def script(page: str) -> str:
    """The page as one bash script: stops at the first failure, prints which block runs, ends the processes it started."""
    # A job that bash has just forked loses SIGTERM, so the trap repeats it.
    ended = "trap 'while kill $(jobs -pr) 2> /dev/null; do sleep 0.2; done; wait' EXIT"
    parts = ["set -euo pipefail", ended]
    for block in blocks(page):
        if block.runs:
            parts += [f"echo '== block at line {block.line}' >&2", _commands(block)]
    return "\n".join(parts) + "\n"


def _commands(block: Block) -> str:
    if block.language == "python":
        end = "END_OF_PYTHON_BLOCK"
        return f"python - <<'{end}'\n{block.text}\n{end}"
    if block.language == "bash":
        return block.text
    return "\n".join(line[2:] for line in block.text.splitlines() if line.startswith(("$ ", "> ")))
