"""The CUDA kernels of a release and the Python functions that build them, read as text.

A kernel is what follows `__global__`; a loader is a function that calls `load_jit` with a list of
files. A loader builds every kernel of its files and of the headers that these include. Example:
`load_jit("kvcache", cuda_files=["elementwise/kvcache.cuh"])` builds the kernels of
csrc/elementwise/kvcache.cuh.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.runs.audit.release_files import PACKAGE
from harness.runs.audit.syntax_walk import walk_tree

_SUFFIXES = (".cu", ".cuh", ".h", ".hpp")
_SOURCE_FOLDER = "/csrc/"
_LOADER = "load_jit"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
_WORD_OR_BRACKET = re.compile(r"\w+|[();{<]")
_ATTRIBUTE = re.compile(r"__\w+__")


@dataclass(frozen=True, slots=True)
class CudaKernel:
    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class CudaLoader:
    """A function that builds kernels from files."""

    function: str
    file: str
    line: int
    cuda_files: tuple[str, ...]


def read_cuda_sources(location: Path) -> dict[str, str]:
    """Read the C++ files below a `csrc` folder of the package, by path from the package on."""
    if location.suffix == ".whl":
        with zipfile.ZipFile(location) as wheel:
            names = [name for name in wheel.namelist() if _is_cuda_source(name)]
            return {name: wheel.read(name).decode(errors="replace") for name in sorted(names)}
    files = sorted((location / PACKAGE).rglob("csrc/**/*"))
    by_name = {file.relative_to(location).as_posix(): file for file in files if file.is_file()}
    return {
        name: file.read_text(errors="replace")
        for name, file in by_name.items()
        if _is_cuda_source(name)
    }


def _is_cuda_source(name: str) -> bool:
    return name.startswith(f"{PACKAGE}/") and _SOURCE_FOLDER in name and name.endswith(_SUFFIXES)


def find_cuda_kernels(file: str, text: str) -> Iterator[CudaKernel]:
    code = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in re.finditer(r"\b__global__\b", code):
        name, position = _find_function_name(code, match.end())
        if name:
            yield CudaKernel(name, file, code.count("\n", 0, position) + 1)


def _find_function_name(code: str, start: int) -> tuple[str, int]:
    """Find the word in front of the parameters; attributes have brackets of their own."""
    name, position, depth, is_attribute = "", start, 0, False
    for token in _WORD_OR_BRACKET.finditer(code, start):
        text = token[0]
        if text == "(":
            is_attribute = is_attribute or bool(_ATTRIBUTE.fullmatch(name))
            if depth == 0 and not is_attribute:
                return name, position
            depth += 1
        elif text == ")":
            depth -= 1
            is_attribute = is_attribute and depth > 0
        elif depth == 0 and text in ";{":
            return "", start
        elif depth == 0 and text != "<":
            name, position = text, token.start()
    return "", start


def find_loaders(file: str, text: str) -> Iterator[CudaLoader]:
    if f"{_LOADER}(" not in text:
        return
    for function in walk_tree(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef) or function.name == _LOADER:
            continue
        for call in walk_tree(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(_LOADER):
                yield CudaLoader(function.name, file, call.lineno, tuple(_list_files(call)))


def _list_files(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg in ("cuda_files", "cpp_files"):
            for node in walk_tree(keyword.value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


class CudaSources:
    """The C++ files of a release, with what includes what."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for file in texts:
            self._by_name[PurePosixPath(file).name].append(file)
        self._included = {file: self._find_included(text) for file, text in texts.items()}

    def list_kernels(self) -> list[CudaKernel]:
        return [
            kernel for file, text in self.texts.items() for kernel in find_cuda_kernels(file, text)
        ]

    def list_built_files(self, loader: CudaLoader) -> set[str]:
        """List the files that a loader compiles: its own, and what they include."""
        pending = [file for name in loader.cuda_files for file in self._find_files(name)]
        built: set[str] = set()
        while pending:
            file = pending.pop()
            if file not in built:
                built.add(file)
                pending += self._included[file]
        return built

    def _find_included(self, text: str) -> list[str]:
        return [file for name in _INCLUDE.findall(text) for file in self._find_files(name)]

    def _find_files(self, name: str) -> list[str]:
        candidates = self._by_name[PurePosixPath(name).name]
        return [file for file in candidates if file.endswith(f"/{name.removeprefix('./')}")]
