# SPDX-License-Identifier: Apache-2.0
"""Decodes and encodes the textual file header: 40 lines of 80 characters, in EBCDIC (code page 037) or ASCII."""

from __future__ import annotations

__all__ = ["decode_text_header", "encode_text_header"]

_LINES, _WIDTH = 40, 80


def decode_text_header(raw: bytes) -> str:
    """Decode a textual header to lines. Of EBCDIC and ASCII, the encoding with more printable characters is used."""
    texts = [raw.decode("cp037", errors="replace"), raw.decode("latin-1")]
    text = max(texts, key=lambda each: sum(32 <= ord(character) < 127 for character in each))
    lines = [text[at : at + _WIDTH].rstrip("\0 ") for at in range(0, len(text), _WIDTH)]
    return "\n".join(lines).rstrip()


def encode_text_header(lines: list[str]) -> bytes:
    """Encode lines, numbered `C 1` to `C40`, as 3,200 bytes of EBCDIC. Lines that are too long are truncated."""
    rows = [*lines, *[""] * _LINES][:_LINES]
    text = "".join(f"C{number:2d} {row}"[:_WIDTH].ljust(_WIDTH) for number, row in enumerate(rows, 1))
    return text.encode("cp037", errors="replace")
