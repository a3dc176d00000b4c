# SPDX-License-Identifier: Apache-2.0
"""Digest of a Python function and of all the user's code that it uses. Results are stored under the digest, so two
functions must have different digests if their results can differ.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import operator
import sys
from itertools import takewhile
from pathlib import Path
from types import CodeType, EllipsisType, FunctionType, MappingProxyType, MethodType, ModuleType, NotImplementedType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["function_digest"]

_SCALARS = frozenset({type(None), bool, int, float, complex, str, EllipsisType, NotImplementedType})

_WRAPPERS: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func", "attrname"),
    type(functools.cache(len)): ("__wrapped__",),
}
"""Types that cannot be pickled, with the attributes that can affect a function's result."""

_IGNORED_MEMBERS = frozenset(
    {
        *("__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate_func__", "__annotations_cache__"),
        *("__firstlineno__", "__static_attributes__", "__orig_bases__", "__parameters__", "__type_params__"),
        *("_abc_impl", "__abstractmethods__"),
    }
)
"""Class members that are left out, because they do not affect a function's result, and differ between processes or
cannot be pickled.
"""

_DYNAMIC = frozenset({"eval", "exec", "globals", "__import__"})
"""Built-in functions with which code can access any global name."""

_IS_HEAP_TYPE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: set for all classes except static types of C code, whose names can differ from their names in
the module.
"""

_PYTHON = f"Python {sys.version}"


def function_digest(function: Callable[..., Any]) -> str | None:
    """Return a digest of a function, or None if it uses a value that cannot be hashed.

    The digest covers code, defaults, closure, and the globals that the function uses. Of the user's modules and the
    function's own package, the digest covers the functions, classes and values that are used. Of other packages, it
    covers only the version. The digest differs between versions of Python.
    """
    root = function
    while isinstance(root, functools.partial):
        root = root.func
    hashed = _Hash(str(getattr(root, "__module__", "")).partition(".")[0], {})
    try:
        hashed.add(function)
    except Exception:
        return None
    return hashed.digest.hexdigest()


class _Hash:
    """Hash of Python values. `seen` contains the objects that are already hashed, each with its number."""

    def __init__(self, package: str, seen: dict[int, tuple[int, Any]]) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self._package, self._seen = package, seen

    def add(self, value: Any) -> None:
        """Add a value.

        Raises:
            Exception: The value cannot be pickled, or can use any part of one of the user's modules.
        """
        kind = type(value)
        if kind in _SCALARS:
            self._put(kind.__name__, repr(value))
        elif (known := self._seen.get(id(value))) is not None:
            self._put("seen", str(known[0]))
        else:
            # Do not record objects of these types, because Python sometimes merges equal constants into one object.
            if kind not in (bytes, tuple, frozenset, CodeType):
                self._seen[id(value)] = (len(self._seen), value)
            self._add_object(value, kind)

    def _put(self, *parts: str | bytes) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            self.digest.update(len(data).to_bytes(8, "little"))
            self.digest.update(data)

    def _add_object(self, value: Any, kind: type) -> None:
        if isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, ModuleType):
            if self._is_own(value.__name__):
                raise TypeError(f"the function can use any part of {value.__name__}")
            self._add_version(value.__name__)
        elif kind is CodeType:
            self._add_code(value)
        elif kind is bytes:
            self._put("bytes", value)
        elif kind in (list, tuple):
            self._put(kind.__name__, str(len(value)))
            for item in value:
                self.add(item)
        elif kind in (dict, MappingProxyType):
            self._put("dict", str(len(value)))
            for pair in value.items():
                self.add(pair)
        elif isinstance(value, set | frozenset):
            self._put("set", str(len(value)), *sorted(self._digest_of(item) for item in value))
            self.add((kind, getattr(value, "__dict__", None)))
        elif kind in _WRAPPERS:
            self._put(kind.__name__)
            self.add(tuple(getattr(value, name) for name in _WRAPPERS[kind]))
        elif isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ())):
            self._add_tensor(value, kind)
        else:
            self._add_pickled(value, kind)

    def _digest_of(self, item: Any) -> bytes:
        """Return the digest of one item of a set. The other items of the set do not affect it."""
        hashed = _Hash(self._package, {} if type(item) in _SCALARS else dict(self._seen))
        hashed.add(item)
        return hashed.digest.digest()

    def _is_own(self, module: str) -> bool:
        """True for code of the user, and of the function's own package."""
        version = _version(module)
        return version is None or (version is not _PYTHON and module.partition(".")[0] == self._package)

    def _is_own_module(self, value: Any) -> bool:
        return isinstance(value, ModuleType) and self._is_own(value.__name__)

    def _is_own_class(self, kind: type) -> bool:
        # Also True for a class that cannot be found in its module, such as a class that `make_dataclass` has created.
        return self._is_own(kind.__module__) or (bool(kind.__flags__ & _IS_HEAP_TYPE) and not _is_found(kind))

    def _add_version(self, module: str) -> None:
        version = _version(module)
        if version is None:
            raise TypeError(f"{module} has no version")
        self._put("version", module, version)

    def _add_function(self, function: FunctionType) -> None:
        module, cells = str(function.__globals__.get("__name__")), _cells(function)
        self._put("function")
        self._add_code(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__, vars(function)))
        for name, value in cells.items():
            if not self._is_own_module(value):
                self._put(name)
                self.add(value)
        if not self._is_own(module):
            self._add_version(module)
            return
        for name, path in dict.fromkeys(_loads(function.__code__)):
            found = [scope[name] for scope in (cells, function.__globals__) if name in scope]
            if not found and name in _DYNAMIC:
                raise TypeError(f"{name} can access any global name")
            for value in found:
                self._put(name)
                self._add_path(value, path)
        for name, level, names in _imports(function.__code__):
            self._add_import("." * level + name, function.__globals__.get("__package__"), names)

    def _add_path(self, value: Any, path: tuple[str, ...]) -> None:
        """Add a value. If the value is one of the user's modules, add only the object at `path` in this module."""
        if "import_module" in path or value is importlib.import_module:
            raise TypeError("import_module can import any module")
        for name in path:
            if not self._is_own_module(value):
                break
            self._put(name)
            value = getattr(value, name)
        self.add(value)

    def _add_import(self, name: str, package: str | None, names: tuple[str, ...] | None) -> None:
        module = importlib.util.resolve_name(name, package)
        if not self._is_own(module):
            self._add_version(module)
            return
        for each in names or ("",):
            self._put(each)
            self._add_path(importlib.import_module(module), (each,) if each else ())

    def _add_code(self, code: CodeType) -> None:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._put("code", code.co_code, code.co_exceptiontable, repr((names, counts)))
        self.add(code.co_consts)

    def _add_class(self, value: type) -> None:
        self._put("class", f"{value.__module__}.{value.__qualname__}")
        if not self._is_own_class(value):
            self._add_version(value.__module__)
            return
        self.add((type(value), value.__bases__))
        for name, member in sorted(vars(value).items(), key=operator.itemgetter(0)):
            if name not in _IGNORED_MEMBERS:
                self._put(name)
                self.add(member)

    def _add_tensor(self, value: Any, kind: type) -> None:
        torch = sys.modules["torch"]
        if kind not in (torch.Tensor, torch.nn.Parameter) or value.is_quantized:
            raise TypeError(f"{kind.__name__} can have data in addition to its elements")
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        self.add((kind, str(value.dtype), tuple(value.shape), value.requires_grad, data, vars(value)))

    def _add_pickled(self, value: Any, kind: type) -> None:
        """Add the parts of an object that pickle stores. If the object's class is the user's, also add all attributes."""
        reduce = copyreg.dispatch_table.get(kind)
        made = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(made, str):
            module = getattr(value, "__module__", None) or kind.__module__
            if operator.attrgetter(made)(sys.modules[module]) is not value:
                raise TypeError(f"{made} is not in {module}")
            self._put("named", made)
            self._add_version(module)
            return
        # Items 3 and 4 of the reduced value are iterators, so convert them to lists.
        self.add((kind, *(list(part) if at in (3, 4) and part is not None else part for at, part in enumerate(made))))
        if self._is_own_class(kind):
            self.add(getattr(value, "__dict__", None))


def _is_found(kind: type) -> bool:
    try:
        return operator.attrgetter(kind.__qualname__)(sys.modules[kind.__module__]) is kind
    except (KeyError, AttributeError):
        return False


@functools.cache
def _version(module: str) -> str | None:
    """Return the version of the package that contains a module. None for code that is not installed."""
    top = module.partition(".")[0]
    try:
        spec = None if top == "__main__" else importlib.util.find_spec(top)
    except (ValueError, ImportError):
        spec = None
    if spec is None:
        return None
    if spec.origin in ("built-in", "frozen"):
        return _PYTHON
    places = [spec.origin] if spec.origin is not None else list(spec.submodule_search_locations or ())
    if places and all({"site-packages", "dist-packages"} & set(Path(place).parts) for place in places):
        version = vars(sys.modules.get(top, object)).get("__version__")
        return f"{top} {version}" if isinstance(version, str) else _distributions(top)
    is_standard = places and all(Path(place).is_relative_to(Path(dis.__file__).parent) for place in places)
    return _PYTHON if is_standard else None


def _distributions(package: str) -> str | None:
    from importlib import metadata

    names = sorted(set(metadata.packages_distributions().get(package, ())))
    return " ".join(f"{name} {metadata.version(name)}" for name in names) or None


def _cells(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and the code objects of the functions that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _steps(code: CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]


def _loads(code: CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each name that is read from globals or an outer function, with the attribute names after it: for `a.b.c`,
    `a` and (`b`, `c`).
    """
    for each in _codes(code):
        steps = _steps(each)
        for at, step in enumerate(steps, 1):
            if step.opname.startswith("LOAD_") and step.opname.endswith(("GLOBAL", "GLOBALS", "NAME", "DEREF")):
                after = takewhile(lambda one: one.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps[at : at + 8])
                yield step.argval, tuple(one.argval for one in after)


def _imports(code: CodeType) -> Iterator[tuple[str, int, tuple[str, ...] | None]]:
    """Yield the module, the level and the names of each import inside a function."""
    for each in _codes(code):
        steps = _steps(each)
        for at, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                yield step.argval, steps[at - 2].argval, steps[at - 1].argval
