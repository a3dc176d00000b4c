# SPDX-License-Identifier: Apache-2.0
"""Test suites for authors of launchers and engines, to run on their own plug-ins.

Call `LauncherSuite(my_launcher, "/tmp/suite", tmp_path, is_shared=False).run()` in a test of any runner.
"""

from __future__ import annotations

from penstock.testing.engine_suite import EngineSuite
from penstock.testing.launcher_suite import LauncherSuite

__all__ = ["EngineSuite", "LauncherSuite"]
