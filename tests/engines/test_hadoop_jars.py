# SPDX-License-Identifier: Apache-2.0
"""Tests that only Hadoop jars in the user's own cache are run, on this machine and on nodes."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from penstock.engines._remote import node_agent
from penstock.engines._shared import hadoop
from penstock.errors import ConfigError, PreconditionFailed

JAR = "hadoop-client-minicluster-3.4.1.jar"


@pytest.fixture
def jars(tmp_path):
    """A cache folder of the current user that contains one jar."""
    folder = tmp_path / "cache/penstock/hadoop"
    folder.mkdir(parents=True, mode=0o755)
    (folder / JAR).touch()
    return folder


def placed(environment, agents=None):
    runner = SimpleNamespace(nodes=[SimpleNamespace(name="n0")])
    return hadoop.install_jars(environment, runner, agents, None, time.monotonic() + 60)


@pytest.mark.parametrize("environment", [{}, {"XDG_CACHE_HOME": "cache"}, {"HOME": "."}])
def test_jars_of_the_working_directory_are_not_taken(jars, monkeypatch, environment):
    monkeypatch.chdir(jars.parents[2])
    with pytest.raises(ConfigError, match="Hadoop's jars cannot be stored"):
        placed(environment)


def test_jars_that_other_users_may_replace_are_refused(jars):
    jars.chmod(0o777)
    with pytest.raises(PreconditionFailed, match=r"Hadoop's jars: .* is writable by other users"):
        placed({"XDG_CACHE_HOME": str(jars.parents[1])})


def test_jars_of_this_user_are_used_on_a_node_that_has_them(jars):
    agents = SimpleNamespace(call=lambda verb, _limit_s, **order: {"n0": node_agent.VERBS[verb](order)})
    assert placed({"XDG_CACHE_HOME": str(jars.parents[1])}, agents) == {"n0": f"{jars}/*"}


@pytest.mark.needs_root
def test_node_with_jars_of_another_user_has_none(jars):
    order = {"patterns": [f"{jars}/{JAR}"], "folder": str(jars)}
    assert node_agent.has(order)
    os.chown(jars, 65534, 65534)
    assert not node_agent.has(order)
    jars.rename(jars.with_name("elsewhere"))
    jars.symlink_to("elsewhere")
    assert not node_agent.has(order)
