"""The code for the card alone of a module that is patched, built without any host code.

A patch that leaves host code as it is needs no host code of its own: the module that was built from
SGLang's sources launches, and the PTX of the patched sources runs in place of its own. Where that
is not so, or where a card runs the module, the whole module is built.

Invariant: two sources have the same host code if their tokens differ in the bodies of functions for
the card alone. Example: in `__global__ void k(T* out, int n) { out[n] = 1; }` the body may change;
the header may not, nor may a `constexpr` function, which host code may evaluate.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.core.cpp_tokens import CppText, CppToken
from harness.core.files import write_atomically
from harness.sanitizer.hooks import HOOKS

_DEVICE_WORDS = frozenset({"__global__", "__device__"})
# SGL_DEVICE, and neither SGL_DEVICE_HOST nor HOST_DEVICE
_DEVICE_MACRO = re.compile(r"^(?!.*HOST)[A-Z]+_DEVICE$")
_HOST_WORDS = frozenset({"__host__", "constexpr", "consteval", "auto", "decltype"})
_TARGET = "device-code.ptx"
_RULE = f"""
rule compile_device_code
  command = $nvcc $cudaflags -ptx "$in" -o "$out"

build {_TARGET}: compile_device_code \\g<file>

default {_TARGET}
"""
_OBJECT = re.compile(r"^build \S+: compile_cuda (?P<file>.+)$", re.MULTILINE)
_DEFAULT = re.compile(r"^default .*$", re.MULTILINE)


def have_same_host_code(one: str, other: str) -> bool:
    """Return whether two C++ sources differ in bodies of functions for the card alone."""
    return [token.text for token in _list_host_tokens(one)] == [
        token.text for token in _list_host_tokens(other)
    ]


def has_host_code(text: str, first_line: int, last_line: int) -> bool:
    """Return whether one of these lines has code that is not for the card alone.

    A header of a function for the card is not code that a call of the host runs.
    """
    starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    start, end = starts[first_line - 1], starts[min(last_line, len(starts) - 1)]
    return any(token.start < end and start < token.end for token in _list_host_tokens(text, False))


@functools.lru_cache(maxsize=8)  # the release's own text is compared with each toggle's two
def _list_host_tokens(text: str, with_headers: bool = True) -> list[CppToken]:
    code = CppText(text)
    tokens = code.tokens
    found: list[CppToken] = []
    end = 0
    for definition in code.definitions:
        header = [token.text for token in tokens[definition.first : definition.body]]
        start = definition.body if with_headers else definition.first
        is_function = definition.parameters is not None and definition.body >= end
        if is_function and _is_for_card_alone(header):
            found += tokens[end:start]
            end = definition.end
    return [*found, *tokens[end:]]


def _is_for_card_alone(header: list[str]) -> bool:
    if not _HOST_WORDS.isdisjoint(header):
        return "__global__" in header and "__host__" not in header
    return any(word in _DEVICE_WORDS or _DEVICE_MACRO.match(word) for word in header)


class DeviceCodeVariant:
    """A loaded module whose launches run other PTX than its own."""

    def __init__(self, module: Any, text: str) -> None:
        self._module = module
        self._text = text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = getattr(self._module, name)

        def call(*args: Any, **options: Any) -> Any:
            with _run_device_code(self._text):
                return function(*args, **options)

        setattr(self, name, call)
        return call


_local = threading.local()


def get_device_code() -> str:
    """Return the PTX that runs in place of the running module's own; '' for its own."""
    text: str = getattr(_local, "text", "")
    return text


HOOKS.get_device_code = get_device_code


@contextmanager
def _run_device_code(text: str) -> Iterator[None]:
    before = get_device_code()
    _local.text = text
    try:
        yield
    finally:
        _local.text = before


class _DeviceCode(BaseException):
    """Leaves SGLang's loader with the PTX in place of a library."""

    def __init__(self, text: str) -> None:
        self.text = text


def can_build_device_code(loader: Any) -> bool:
    """Return whether a release's loader runs ninja by a module of its own."""
    return all(hasattr(getattr(loader, "ninja", None), name) for name in ("build", "generate"))


def build_device_code(loader: Any, load_jit: Any, args: Any, options: dict[str, Any]) -> Any:
    """Build the PTX alone of what `load_jit` is asked for, and return it.

    Returns the whole module where it is built already, and where it has several CUDA sources. A
    text stays beside the builds of the same key, and sources in a patched tree are named by their
    digest: nothing that the compiler reads is left out of its path.
    """
    ninja, own_thread = loader.ninja, threading.get_ident()

    def build(*, spec: Any, build_dir: Path, build_file: str) -> Path:
        is_other = threading.get_ident() != own_thread  # which loads a module of its own meanwhile
        if is_other or len(_OBJECT.findall(build_file)) != 1:
            library: Path = ninja.build(spec=spec, build_dir=build_dir, build_file=build_file)
            return library
        target = build_dir.parent / _TARGET
        if not target.exists():
            rule = _OBJECT.search(build_file)
            assert rule is not None
            changed = _DEFAULT.sub("", build_file) + rule.expand(_RULE)
            ninja.build(spec=spec, build_dir=build_dir, build_file=changed)
            write_atomically(target, (build_dir / _TARGET).read_bytes())
        raise _DeviceCode(target.read_text())

    loader.ninja = SimpleNamespace(**{**vars(ninja), "build": build})
    try:
        return load_jit(*args, **options)
    except _DeviceCode as built:
        return built.text
    finally:
        loader.ninja = ninja
