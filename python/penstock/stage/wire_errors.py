# SPDX-License-Identifier: Apache-2.0
"""Conversion of errors: between ranks as text, and from a summary's failed objects."""

from __future__ import annotations

from typing import Any

from penstock import errors
from penstock.errors import Bug, PenstockError

__all__ = ["dump_error", "load_error", "raise_for_failures"]


def _classes() -> dict[str, type[PenstockError]]:
    kinds = [getattr(errors, name) for name in errors.__all__]
    return {kind.code: kind for kind in kinds}


def dump_error(error: BaseException) -> dict[str, Any]:
    if isinstance(error, PenstockError):
        return {"code": error.code, "message": str(error), "hint": error.hint}
    return {"code": Bug.code, "message": f"{type(error).__name__}: {error}", "hint": None}


def load_error(document: dict[str, Any]) -> PenstockError:
    kind = _classes().get(document["code"], PenstockError)
    error: PenstockError = kind(document["message"], hint=document.get("hint"))
    return error


def raise_for_failures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary unchanged if every object was staged.

    Raises:
        PenstockError: The first failed object's error, with the number of failed objects.
    """
    if not summary["failed"]:
        return summary
    first = summary["failed"][0]
    error = load_error({"code": first["code"], "message": first["error"]})
    error.add_note(
        f"{len(summary['failed']):,} of {summary['objects']:,} objects of node {summary['node']} are not staged"
    )
    raise error
