# SPDX-License-Identifier: Apache-2.0
"""Tests the digest of a function: it changes with everything that the function uses, and is the same in each process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from penstock.feed.function_digest import function_digest
from tests.feed import mapped

COUNTS = [2, 1]

CLASS = "class Rule:\n    limit = {0}\n    def __call__(self, x): return x > self.limit\n    ok = __call__\n"

EDITS = {
    "attribute of a global instance's class": (CLASS + "rule = Rule()\ndef fn(s): return rule.ok(s)", ""),
    "attribute of a callable's class": (CLASS + "fn = Rule()", ""),
    "attribute of a bound method's class": (CLASS + "fn = Rule().ok", ""),
    "attribute of a global class": (CLASS + "def fn(s): return s > Rule.limit", ""),
    "attribute of a base": (CLASS + "class Other(Rule): pass\nfn = Other()", ""),
    "attribute of an instance in a list": (CLASS + "rules = [Rule()]\ndef fn(s): return rules[0](s)", ""),
    "attribute of a base in another module": (
        "import helpers_mod\nclass Mine(helpers_mod.Rule): pass\nfn = Mine()",
        CLASS,
    ),
    "enum": ("import enum\nclass Kind(enum.Enum):\n    A = {0}\ndef fn(s): return s == Kind.A.value", ""),
    "property": ("class A:\n    @property\n    def x(self): return {0}\na = A()\ndef fn(s): return s > a.x", ""),
    "class method": ("class A:\n    @classmethod\n    def x(cls): return {0}\ndef fn(s): return s > A.x()", ""),
    "made class": (
        "import dataclasses\nA = dataclasses.make_dataclass('A', [], namespace=dict(x={0}))\ndef fn(s): return A.x",
        "",
    ),
    "attribute of a function": ("def fn(s): return s > fn.limit\nfn.limit = {0}", ""),
    "cached function": ("import functools\n@functools.cache\ndef a(s): return s > {0}\ndef fn(s): return a(s)", ""),
    "vectorized function": ("import numpy as np\na = np.vectorize(lambda x: x > {0})\ndef fn(s): return a(s)", ""),
    "function in a package's decorator": (
        "import contextlib\n@contextlib.contextmanager\ndef a(): yield {0}\ndef fn(s):\n    with a() as x: return s > x",
        "",
    ),
    "exception handler": ("def fn(s):\n    try: return s > {0}\n    except ValueError: return False", ""),
    "function of a module": ("import helpers_mod\ndef fn(s): return helpers_mod.ok(s)", "def ok(x): return x > {0}"),
    "name from a module": ("from helpers_mod import ok\ndef fn(s): return ok(s)", "def ok(x): return x > {0}"),
    "value of a module": ("import helpers_mod as h\ndef fn(s): return s > h.N", "N = {0}"),
    "module of an outer function": (
        "def made():\n    import helpers_mod\n    return lambda s: s > helpers_mod.N\nfn = made()",
        "N = {0}",
    ),
    "import in the function": ("def fn(s):\n    from helpers_mod import N\n    return s > N", "N = {0}"),
    "global of another module's function": (
        "import helpers_mod\ndef fn(s): return (lambda: helpers_mod.ok(s))()",
        "N = {0}\ndef ok(x): return x > N",
    ),
    "array of objects": ("import numpy as np\na = np.array([{{1, {0}}}, None])\ndef fn(s): return s in a[0]", ""),
}


@pytest.fixture
def function(tmp_path, monkeypatch):
    """`function(source, helper)` imports `fn` from a module of this source, which may import `helpers_mod`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def imported(source, helper):
        for name, text in (("helpers_mod", helper), ("main_mod", source)):
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("main_mod").fn

    yield imported
    for name in ("helpers_mod", "main_mod"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("edit", EDITS)
def test_function_digest_changes_with_what_the_function_uses(function, edit):
    digests = [function_digest(function(*(text.format(value) for text in EDITS[edit]))) for value in (3, 3, 4)]
    assert None not in digests
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    "source",
    [
        "import helpers_mod\ndef fn(s): return getattr(helpers_mod, 'ok')(s)",
        "import helpers_mod\ndef fn(s, h=helpers_mod): return h.ok(s)",
        "def fn(s):\n    import helpers_mod\n    return helpers_mod.ok(s)",
        "import helpers_mod, importlib\ndef fn(s): return importlib.import_module('helpers_mod').ok(s)",
        "from helpers_mod import *\ndef fn(s): return eval('ok(s)')",
        "import helpers_mod, numpy as np\na = np.frompyfunc(helpers_mod.ok, 1, 1)\ndef fn(s): return a(s)",
        "import threading\na = threading.Lock()\ndef fn(s): return a.locked()",
    ],
)
def test_function_digest_is_none_if_something_unknown_may_be_used(function, source):
    assert function_digest(function(source, "def ok(x): return x > 3")) is None


def test_function_digest_depends_on_closure_defaults_and_globals():
    def made(limit, *, default=1):
        def function(sample, more=default):
            return sample > limit + more + len(COUNTS)

        return function

    digest = function_digest(made(1))
    assert digest == function_digest(made(1))
    functions = (made(2), made(1, default=2), lambda sample: sample > 1, mapped.is_even, print, np.isnan)
    others = [function_digest(one) for one in functions]
    assert None not in others
    assert len({digest, *others}) == 7
    unhashable = (threading.Lock() for _ in ())
    assert function_digest(lambda _: unhashable) is None


def test_function_digest_is_the_same_in_each_process(tmp_path):
    (tmp_path / "main.py").write_text(
        "import collections, enum, numpy as np, torch\n"
        "from penstock.feed.function_digest import function_digest\n"
        "class Kind(enum.Enum):\n    A = 1\n    B = 2\n"
        "torch.manual_seed(0)\n"
        "model, mean = torch.nn.Linear(2, 2), torch.ones(3)\n"
        "sets = collections.deque([np.array([{'a', 'b', 'c'}, None]), {Kind.A, Kind.B, ('a', 1)}])\n"
        "for fn in (lambda s: model(s), lambda s: s - mean, lambda s: sets, lambda s: s in {'a', 'b', 'c'}):\n"
        "    print(function_digest(fn))\n"
        "mean[1] = 2\n"
        "print(function_digest(lambda s: s - mean))\n"
    )
    command = [sys.executable, str(tmp_path / "main.py")]
    first, second = (
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()
        for seed in ("1", "2")
    )
    assert first == second
    assert "None" not in first
    assert len(set(first)) == 5
