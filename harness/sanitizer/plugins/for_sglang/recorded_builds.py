"""The modules that runs have asked `load_jit` for: a line for each loader and its arguments.

UNFIX_CUDA_BUILDS=FILE has a process add its own, and again with the kernels that a module has
launched and that ran to their end. `unfix kernels --build` builds them ahead.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from harness.sanitizer.device.cards import CARD_VARIABLE, DEFAULT_CARD

FILE_VARIABLE = "UNFIX_CUDA_BUILDS"
RECORDED_BUILDS = Path(__file__).with_name("builds.jsonl")
FURTHER_BUILDS = Path(__file__).with_name("further_builds.jsonl")  # which no suite needs
_ENUM = "enum "
_LOADERS_BELOW = "sglang."
_MACHINERY = "sglang.kernels.jit."
_PLAIN = (int, float, str, bool, type(None))


class RecordedBuild(msgspec.Struct, frozen=True, omit_defaults=True):
    """A loader, the arguments that it was called with, and what its module has launched."""

    module: str
    function: str
    # Plain values; 'torch.bfloat16' for a type of torch, 'enum MODULE:CLASS.MEMBER' for a member.
    arguments: dict[str, Any]
    kernels: list[str] = []
    card: str = ""  # that the module is built for; empty for the one that is played by default

    @property
    def name(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        call = f"{self.module.rpartition('.')[2]}.{self.function}({values})"
        return f"{call} for {self.card}" if self.card else call


def read_recorded_builds(file: Path) -> list[RecordedBuild]:
    if not file.exists():
        return []
    lines = file.read_text().splitlines()
    return [msgspec.json.decode(line, type=RecordedBuild) for line in lines if line.strip()]


def merge_recorded_builds(files: Iterable[Path]) -> str:
    """Return the lines of all files, each build once with all of its kernels, in order."""
    kernels: dict[bytes, set[str]] = {}
    for file in files:
        for build in read_recorded_builds(file):
            call = msgspec.json.encode(msgspec.structs.replace(build, kernels=[]))
            kernels.setdefault(call, set()).update(build.kernels)
    lines = []
    for call, names in kernels.items():
        build = msgspec.json.decode(call, type=RecordedBuild)
        build = msgspec.structs.replace(build, kernels=sorted(names))
        lines.append(msgspec.json.encode(build).decode())
    return "".join(f"{line}\n" for line in sorted(lines))


def is_recording_builds() -> bool:
    return bool(os.environ.get(FILE_VARIABLE))


def record_build() -> RecordedBuild | None:
    """Add the loader that is calling `load_jit` to the file, if this process has one."""
    if not is_recording_builds():
        return None
    frame = _find_loader(sys._getframe(1))
    arguments = None if frame is None else _describe_arguments(frame)
    if frame is None or arguments is None:
        return None
    card = os.environ.get(CARD_VARIABLE, DEFAULT_CARD)
    build = RecordedBuild(
        frame.f_globals["__name__"],
        frame.f_code.co_name,
        arguments,
        card="" if card == DEFAULT_CARD else card,
    )
    _append_build(build)
    return build


def record_launches(build: RecordedBuild, kernels: Iterable[str]) -> None:
    """Add kernels that a module of a recorded build has launched."""
    _append_build(msgspec.structs.replace(build, kernels=sorted(kernels)))


def _append_build(build: RecordedBuild) -> None:
    if file := os.environ.get(FILE_VARIABLE):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:  # one write of a line, however long, which processes do not tear
            os.write(descriptor, msgspec.json.encode(build) + b"\n")
        finally:
            os.close(descriptor)


def call_loader(build: RecordedBuild) -> Any:
    """Call a recorded loader: it builds its module, or finds it built."""
    arguments = {name: _find_value(value) for name, value in build.arguments.items()}
    return _find_function(build)(**arguments)


def takes_arguments(build: RecordedBuild) -> bool:
    """Return whether this release has the loader and it takes what another one was asked for."""
    try:
        inspect.signature(_find_function(build)).bind(**build.arguments)
    except (AttributeError, TypeError):
        return False
    return True


def _find_function(build: RecordedBuild) -> Any:
    return getattr(importlib.import_module(build.module), build.function)


def _find_value(described: Any) -> Any:
    """Find the argument of a plain value."""
    if isinstance(described, str) and described.startswith("torch."):
        import torch

        return getattr(torch, described.removeprefix("torch."))
    if isinstance(described, str) and described.startswith(_ENUM):
        module, _, path = described.removeprefix(_ENUM).partition(":")
        kind, _, member = path.rpartition(".")
        found: Any = functools.reduce(getattr, kind.split("."), importlib.import_module(module))
        return found[member]
    return described


def _find_loader(frame: FrameType | None) -> FrameType | None:
    """Find the function of SGLang that asks for a module, outside of the machinery of builds."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_LOADERS_BELOW) and not module.startswith(_MACHINERY):
            return frame
        frame = frame.f_back
    return None


def _describe_arguments(frame: FrameType) -> dict[str, Any] | None:
    """Return the arguments of a call as plain values; None if one has no plain form."""
    names = inspect.getargs(frame.f_code).args
    found: dict[str, Any] = {}
    for name in names:
        value = frame.f_locals.get(name)
        if str(value).startswith("torch.") and type(value).__module__ == "torch":
            found[name] = str(value)
        elif isinstance(value, enum.Enum) and "<locals>" not in type(value).__qualname__:
            kind = type(value)
            found[name] = f"{_ENUM}{kind.__module__}:{kind.__qualname__}.{value.name}"
        elif isinstance(value, _PLAIN):
            found[name] = value
        else:
            return None
    return found
