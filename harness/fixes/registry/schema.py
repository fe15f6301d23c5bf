"""The schema of a toggle file, as frozen values."""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from packaging.specifiers import SpecifierSet

Text = Annotated[str, Meta(pattern=r"\S")]
Slug = Annotated[str, Meta(pattern=r"^[0-9a-z]+(-[0-9a-z]+)*\Z")]
PullRequest = Annotated[int, Meta(ge=1, lt=10**9)]
IDENTIFIER = r"[A-Za-z_]\w*"
_QUALNAME = rf"{IDENTIFIER}(\.<locals>)?(\.{IDENTIFIER}(\.<locals>)?)*"
# A path is of a C++ source, from the folder of the package.
_CPP_PATH = r"(?:[\w-]+/)+[\w.-]+\.(?:cuh|cu|h|hpp|cpp|cc)"
ModuleTarget = Annotated[
    str, Meta(pattern=rf"^(?:{IDENTIFIER}(\.{IDENTIFIER})*|{_CPP_PATH})(:{_QUALNAME})?\Z")
]


class Symptom(Enum):
    CRASH = "crash"
    OUT_OF_BOUNDS = "out-of-bounds"
    SILENT_CORRUPTION = "silent-corruption"
    OVERFLOW = "overflow"
    ACCURACY = "accuracy"


class DeviceKind(Enum):
    CPU = "cpu"
    CUDA = "cuda"
    NPU = "npu"


class CodeTarget(NamedTuple):
    """A module, and a qualified name inside it ('' is the whole module).

    A C++ source is a module by its path: 'sglang/kernels/jit/csrc/elementwise/rope.cuh'.
    """

    module: str
    qualname: str

    @classmethod
    def parse(cls, text: str) -> CodeTarget:
        module, _, qualname = text.partition(":")
        return cls(module, qualname.replace(".<locals>", ""))

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}" if self.qualname else self.module


class ToggleEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of a fix: the code with the fix and the code without it."""

    fixed: Text
    buggy: Text
    target: ModuleTarget | None = None


class ToggleVariant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The edits of a fix for a range of releases."""

    releases: Text
    edits: Annotated[tuple[ToggleEdit, ...], Meta(min_length=1)]
    target: ModuleTarget | None = None

    @cached_property
    def specifier(self) -> SpecifierSet:
        return SpecifierSet(self.releases, prereleases=True)

    def get_target(self, edit: ToggleEdit) -> CodeTarget:
        return CodeTarget.parse(edit.target or self.target or "")

    @property
    def targets(self) -> list[CodeTarget]:
        return list(dict.fromkeys(self.get_target(edit) for edit in self.edits))


class Toggle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One historical fix, or one injected fault."""

    id: Slug
    title: Text
    family: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
    symptom: Symptom
    devices: Annotated[tuple[DeviceKind, ...], Meta(min_length=1)]
    variants: Annotated[tuple[ToggleVariant, ...], Meta(min_length=1)]
    upstream: tuple[PullRequest, ...] = ()
    why: str = ""
