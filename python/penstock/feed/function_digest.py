# SPDX-License-Identifier: Apache-2.0
"""Digest of a Python function: its code, defaults, closure and the globals that it uses. Results of a function are kept
under this digest.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["function_digest"]


def function_digest(function: Callable[..., Any]) -> str | None:
    """Return a digest of a function, or None if it uses a value that cannot be hashed.

    Functions of the same top-level package that the function uses are included. Modules, classes and functions of other
    packages are included by name, not by content. The digest differs between versions of Python.
    """
    digest = hashlib.blake2b(digest_size=16)
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    try:
        for part in _parts(function, package, set()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    except Exception:
        return None
    return digest.hexdigest()


def _parts(value: Any, package: str, seen: set[int]) -> Iterator[bytes]:
    """Return the parts of a value that are hashed. `seen` contains the functions that are being hashed."""
    if isinstance(value, FunctionType | type):
        described = f"{type(value).__name__} {value.__module__}.{value.__qualname__}".encode()
        if id(value) in seen or str(value.__module__).partition(".")[0] != package:
            yield described
            return
        seen.add(id(value))
    if isinstance(value, FunctionType):
        yield b"function"
        yield from _code(value.__code__)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _parts((value.__defaults__, value.__kwdefaults__, cells), package, seen)
        for name in sorted(_names(value.__code__) & value.__globals__.keys()):
            yield name.encode()
            yield from _parts(value.__globals__[name], package, seen)
    elif isinstance(value, MethodType):
        yield from _parts((value.__func__, value.__self__), package, seen)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), package, seen)
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__} {getattr(value, '__version__', '')}".encode()
    elif isinstance(value, type):
        yield described
        for member_name, member in sorted(vars(value).items()):
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(member, FunctionType):
                yield member_name.encode()
                yield from _parts(member, package, seen)
    elif isinstance(value, dict):
        yield b"dict"
        for key, item in value.items():
            yield from _parts((key, item), package, seen)
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value:
            yield from _parts(item, package, seen)
    elif isinstance(value, set | frozenset):
        yield b"set"
        yield from sorted(b"".join(_parts(item, package, set(seen))) for item in value)
    elif hasattr(value, "__dict__") and callable(value):
        yield from _parts((type(value), vars(value)), package, seen)
    else:
        yield pickle.dumps(value, protocol=5)


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode()


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names
