# SPDX-License-Identifier: Apache-2.0
"""The one module that reads the environment (ruff forbids the others), so that what a run depended on can be listed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read"]


def read() -> Mapping[str, str]:
    """The environment as it is now."""
    return os.environ  # noqa: TID251 - this is the one door
