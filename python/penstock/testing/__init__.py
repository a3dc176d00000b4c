# SPDX-License-Identifier: Apache-2.0
"""Test suites with which authors of launchers and engines can test their plug-ins.

The suites work with any test runner. Call `LauncherSuite(my_launcher, "/tmp/suite", tmp_path, is_shared=False).run()`
in a test.
"""

from __future__ import annotations

from penstock.testing.engine_suite import EngineSuite
from penstock.testing.launcher_suite import LauncherSuite

__all__ = ["EngineSuite", "LauncherSuite"]
