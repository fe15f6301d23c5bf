"""SGLang's loader of CUDA modules, as far as patches reach it, over a release of a few sources."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.core import paths
from harness.patching.cuda_modules import PatchableModule
from harness.patching.cuda_sources import PATCHES, make_patched_source
from harness.patching.device_code import get_device_code

HEADER = "sglang/kernels/jit/include/sgl_kernel/math.cuh"
SOURCE = "sglang/kernels/jit/csrc/scale.cuh"
OTHER = "sglang/kernels/jit/csrc/other.cuh"
BUILD_FILE = """rule link
  command = $cxx $in $ldflags -o "$out"

build scale_0.o: compile_cuda scale.cuh
build scale.so: link scale_0.o
default scale.so
"""


@dataclass(frozen=True)
class LoadedCode:
    """What the run of a module tells about its build."""

    file: str
    header: str
    device_code: str
    flags: list[str] | None


class FakeLoader:
    """A loader that says what ninja is asked to build; each module tells what it was built from."""

    def __init__(self, root: Path, compiler: str = "false") -> None:
        self.DEFAULT_INCLUDE = [str(root / "sglang/kernels/jit/include")]
        self.root = root
        self.build_file = BUILD_FILE
        self.built: list[str] = []
        toolchain = SimpleNamespace(compilers=lambda: ("c++", compiler))
        self.ninja: Any = SimpleNamespace(
            build=self.build, generate=lambda spec: self.build_file, toolchain=toolchain
        )

    def resolve_sources(self, files: list[str] | None) -> tuple[str, ...]:
        folder = self.root / "sglang/kernels/jit/csrc"
        return tuple(str(folder / file) for file in files or ())

    def build(self, *, spec: Any, build_dir: Path, build_file: str) -> Path:
        build_dir.mkdir(parents=True, exist_ok=True)
        [target] = [
            line.split()[1] for line in build_file.splitlines() if line.startswith("default")
        ]
        self.built.append(target)
        (build_dir / target).write_text(f"{target} of {Path(spec).read_text()}")
        return build_dir / target

    def load_jit(self, *args: str, **options: Any) -> Any:
        [source] = self.resolve_sources(options["cuda_files"])
        own = "own" if Path(source).is_relative_to(self.root) else "patched"
        folder = self.root / "builds" / own / ".staging"
        self.ninja.build(spec=source, build_dir=folder, build_file=self.ninja.generate(source))
        header = Path(self.DEFAULT_INCLUDE[0]) / "sgl_kernel/math.cuh"
        text = header.read_text() if header.exists() else ""
        flags = options.get("extra_cuda_cflags")
        return SimpleNamespace(run=lambda: LoadedCode(source, text, get_device_code(), flags))

    def load_module(self, name: str = "scale", **options: Any) -> PatchableModule:
        options |= {"cuda_files": [f"{name}.cuh"]}
        return PatchableModule(self, self.load_jit, (name,), options)


def install_sources(folder: Path, monkeypatch: pytest.MonkeyPatch, sources: dict[str, str]) -> Path:
    """Make a release of these sources the one of this process; return its site-packages."""
    root = folder / "site-packages"
    for name, text in sources.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(paths, "releases_folder", lambda: folder / ".releases")
    package = ModuleType("sglang")
    package.__path__ = [str(root / "sglang")]
    monkeypatch.setitem(sys.modules, "sglang", package)
    return root


def patch_source(path: str, text: str) -> None:
    """Patch a source, until the test takes its patch away."""
    PATCHES.set(path, make_patched_source(path, "", text, [], print))
