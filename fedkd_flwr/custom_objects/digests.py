"""Digests of a user's code, by which a run notices that it has changed.

A digest covers an object as it is in this process, and the source of the user's modules that it
leads to. Packages of this project and installed ones count by their names alone: a run records
their versions.
"""

import ast
import dis
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from fedkd_flwr.custom_objects.importing import INSTALLED, OURS, name_in_module

MAIN = "__main__"
"""The module of a script or a notebook, which has no source that could be read again."""

_METHODS = (FunctionType, staticmethod, classmethod, property)  # members of a class that hold code
_PLAIN = (type(None), bool, int, float, complex, str, bytes)  # values that are their own text

_FIXED = (*_PLAIN, tuple, frozenset, FunctionType, MethodType, ModuleType, type, functools.partial)
"""Kinds of variables that count beside the source of their module. A cache or a log would fill."""

_READING = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""Operations that read a global variable."""

Known = dict[int, tuple[Any, str]]  # values that were met, by their ids, each with its text


def code_digest(value: Any) -> str:
    """Return the SHA-256 of an object's code, of the values that it uses, and of its modules.

    It covers bytecode, constants, defaults, base classes and variables of enclosing scopes. Of a
    module with a source file it covers the source without comments and docstrings, and that of the
    user's modules that it imports. Of other objects it covers what a pickle would hold. It is the
    same in another process with the same minor version of Python.
    """
    digests = digests_by_part("", value)
    return _sha256("\n".join(f"{part} {digest}" for part, digest in digests.items()).encode())


def digests_by_part(name: str, value: Any) -> dict[str, str]:
    """Return the digest of an object by its name, and those of its modules, ``module NAME``."""
    modules: set[str] = set()
    text = _written(value, {}, modules)
    sources = sorted(_sources(modules).items())
    return {name: _sha256(text.encode()), **{f"module {part}": one for part, one in sources}}


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- Objects -------------------------------------------------------------------------


def _written(value: Any, known: Known, modules: set[str]) -> str:
    """Return a text that equals that of another value only if both compute the same."""
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):
        content = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        return f"{value.dtype} {tuple(value.shape)} {_sha256(content.data)}"
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {_sha256(np.ascontiguousarray(value).data)}"
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    is_own = isinstance(module, str) and _is_own(module)
    if isinstance(value, ModuleType) and not is_own:
        return f"module {value.__name__}"
    name = name_in_module(value) if callable(value) else None
    if name and not is_own:
        return name
    if is_own:
        modules.add(module)
    if id(value) not in known:
        known[id(value)] = value, "cycle"
        text = _written_by_parts(value, functools.partial(_written, known=known, modules=modules))
        known[id(value)] = value, _sha256(text.encode())
    return known[id(value)][1]


def _written_by_parts(value: Any, written: Callable[[Any], str]) -> str:
    """Return the text of a value that holds others; `written` returns theirs."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(written, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{written(k)}: {written(v)}' for k, v in value.items())}}}"
    if not isinstance(value, type) and hasattr(value, "get_params"):
        return f"{written(type(value))} {written(value.get_params(deep=False))}"
    if parts := _parts_of_callable(value):
        return f"{type(value).__name__} {written(parts)}"
    return f"{written(type(value))} {written(_pickled_parts(value))}"


def _pickled_parts(value: Any) -> Any:
    """Return what a pickle would hold of an object; None if it cannot be pickled."""
    try:
        parts = value.__reduce_ex__(4)
    except Exception:  # a class may raise anything here
        return None
    if isinstance(parts, str):
        return parts
    return [list(part) if isinstance(part, Iterator) else part for part in parts]


def _parts_of_callable(value: Any) -> tuple[Any, ...]:
    """Return what decides what a function, code, class or module does; empty for other objects."""
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, value.co_consts
    if isinstance(value, FunctionType):
        code = _without_docstring(value)
        return code, value.__defaults__, value.__kwdefaults__, _variables(value)
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, type):
        kinds = _kinds_in(value.__module__) if name_in_module(value) else object
        # Names with two underscores that hold no code are those of Python itself.
        members = {
            key: member
            for key, member in vars(value).items()
            if isinstance(member, _METHODS)
            or (not key.startswith("__") and isinstance(member, kinds))
        }
        return value.__name__, value.__bases__, members
    if isinstance(value, ModuleType):
        held = vars(value).items()
        return value.__name__, {key: held for key, held in held if _is_defined_in(value, held)}
    wrapped = getattr(value, "__wrapped__", None)  # as of functools.cache
    return (wrapped,) if callable(wrapped) else ()


def _without_docstring(function: FunctionType) -> CodeType:
    code, first = function.__code__, function.__code__.co_consts[:1]
    is_documented = function.__doc__ is not None and first == (function.__doc__,)
    return code.replace(co_consts=(None, *code.co_consts[1:])) if is_documented else code


def _is_defined_in(module: ModuleType, held: Any) -> bool:
    return isinstance(held, FunctionType | type) and held.__module__ == module.__name__


def _variables(function: FunctionType) -> dict[str, Any]:
    """Return the variables outside a function that it reads, and the modules that it imports."""
    used = {}
    kinds = _kinds_in(function.__globals__.get("__name__", MAIN))
    for name in _names_in(function.__code__, *_READING):
        if isinstance(held := function.__globals__.get(name, ...), kinds) and held is not ...:
            used[name] = held
    for name in _names_in(function.__code__, "IMPORT_NAME"):
        if isinstance(module := sys.modules.get(name), ModuleType):
            used[f"import {name}"] = module
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            used[name] = cell.cell_contents
    return dict(sorted(used.items()))


def _kinds_in(module: str) -> Any:
    """Return which kinds of variables of a module count as they are in this process."""
    return _FIXED if _is_own(module) and _file_of(module) else object


def _names_in(code: CodeType, *operations: str) -> set[str]:
    """Return the names that some operations have; ``co_names`` has attributes too."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in operations}
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return names.union(*(_names_in(part, *operations) for part in inner))


# ---- Modules -------------------------------------------------------------------------


def _is_own(module: str) -> bool:
    """Return whether a module is the user's, and no part of this project or of a library."""
    root = module.partition(".")[0]
    if root in OURS or root in sys.stdlib_module_names - {MAIN}:
        return False
    file = _file_of(module)
    # A module without a file was made in this process.
    return module in sys.modules if file is None else not {*INSTALLED} & {*file.parts}


def _file_of(module: str) -> Path | None:
    """Return the source of a module, which need not be imported and is not; None without one."""
    if module == MAIN:
        return None
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
        return Path(file) if file else None
    spec = None
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(module.partition(".")[0])
        parts = module.split(".")
        for number in range(2, len(parts) + 1):
            places = spec.submodule_search_locations if spec else None
            spec = PathFinder.find_spec(".".join(parts[:number]), places or [])
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _sources(modules: set[str]) -> dict[str, str]:
    """Return the digests of some modules' sources, and of the user's modules that they import."""
    digests: dict[str, str] = {}
    waiting = {*modules}
    while waiting:
        module = waiting.pop()
        file = _file_of(module)
        if file is None or module in digests or not _is_own(module):
            continue
        try:
            digests[module], imported = _read_source(file, file.stat().st_mtime_ns)
        except OSError:  # deleted after its import, or inside of an archive
            continue
        package = module if file.stem == "__init__" else module.rpartition(".")[0]
        for name in imported:
            with suppress(ImportError):  # above the top-level package
                waiting.add(resolve_name(name, package) if name.startswith(".") else name)
    return digests


@functools.lru_cache(maxsize=1024)
def _read_source(file: Path, changed_at: int) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a source without comments and docstrings, and what it may import."""
    content = file.read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # a compiled module
        return _sha256(content), ()
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            dot = "" if base.endswith(".") else "."
            imported |= {base, *(f"{base}{dot}{alias.name}" for alias in node.names)}
        elif isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return _sha256(ast.dump(tree).encode()), tuple(sorted(imported))


_WITH_DOCSTRING = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
