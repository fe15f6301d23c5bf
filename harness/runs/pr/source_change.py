"""The lines of Python, Triton and CUDA that a change adds and removes, and those that use a
constant it changes.

A guard is traced inside of functions alone. A line outside of every function, such as
`BLOCK = 64`, runs at import, so the lines that read `BLOCK` stand for it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.cpp_tokens import CPP_SUFFIXES, is_cpp_path
from harness.releases.source_trees import SGLANG_PACKAGE, SourceTree
from harness.runs.mutate import changed_lines
from harness.store.pr.values import ChangedFile

LinesByModule = dict[str, set[int]]

# Folders of files that no server reads.
_BESIDE_CODE = frozenset(
    "test tests docs doc docs_new scripts benchmark benchmarks examples docker assets".split()
)
_SERVED_SUFFIXES = (
    *(".py", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".c", ".rs", ".go", ".proto"),
    *(".json", ".yaml", ".yml", ".jinja", ".cmake", ".toml", "CMakeLists.txt"),
)


@dataclass(frozen=True)
class SourceChange:
    """Both ends of a change as sources, with the lines that differ."""

    base: SourceTree
    head: SourceTree
    root: str  # the place of the package in the checkout: "python/", or nothing
    old_lines: LinesByModule  # of the base, with the neighbours of what is new
    new_lines: LinesByModule  # of the head, with the neighbours of what is gone
    others: list[str]  # changed files that are neither Python nor C++ of the package
    blocks: dict[str, list[tuple[range, range]]]  # lines of the base, and what stands for them

    @property
    def modules(self) -> list[str]:
        return sorted({*self.old_lines, *self.new_lines})

    @property
    def added(self) -> LinesByModule:
        """The lines of the head that are new or changed."""
        return {
            module: {line for _, after in blocks for line in after}
            for module, blocks in self.blocks.items()
        }

    @property
    def removed(self) -> LinesByModule:
        """The lines of the base that are gone without another in their place."""
        return {
            module: {line for before, after in blocks if not after for line in before}
            for module, blocks in self.blocks.items()
        }

    @property
    def unread(self) -> list[str]:
        """The changed files that a server may read and that nothing here runs."""
        return [path for path in self.others if _is_served(path)]

    @property
    def files_of_package(self) -> list[str]:
        """The changed modules as paths from the package on."""
        return [self.locate(module).removeprefix(self.root) for module in self.modules]

    @property
    def files(self) -> list[ChangedFile]:
        return [
            ChangedFile(
                module,
                self.locate(module),
                len(self.new_lines.get(module, ())),
                len(self.old_lines.get(module, ())),
            )
            for module in self.modules
        ]

    def locate(self, module: str) -> str:
        """Return a module's path in the checkout."""
        for tree in (self.head, self.base):
            source = tree.read(module)
            if source is not None:
                name, path = f"/{SGLANG_PACKAGE}/", source.path.replace("!", "/")  # of a wheel
                return f"{self.root}{SGLANG_PACKAGE}/{path.rpartition(name)[2]}"
        return f"{self.root}{module.replace('.', '/')}.py"


def read_change(base: SourceTree, head: SourceTree, paths: Iterable[str]) -> SourceChange:
    """Compare the package's files among these paths of the checkout."""
    modules: set[str] = set()
    root, others = "", []
    for path in paths:
        before, found, inner = f"/{path}".rpartition(f"/{SGLANG_PACKAGE}/")
        if found and path.endswith((".py", *CPP_SUFFIXES)) and before in ("", "/python"):
            root = f"{before.lstrip('/')}/" if before else ""
            name = f"{SGLANG_PACKAGE}/{inner}"
            if path.endswith(".py"):
                name = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            modules.add(name)
        else:
            others.append(path)
    old_lines = changed_lines.compare_trees(head, base, modules)
    new_lines = changed_lines.compare_trees(base, head, modules)
    blocks = {
        module: changed_lines.find_changed_blocks(
            changed_lines.read_module_text(base, module) or "",
            changed_lines.read_module_text(head, module) or "",
        )
        for module in sorted({*old_lines, *new_lines})
    }
    return SourceChange(base, head, root, old_lines, new_lines, others, blocks)


def _is_served(path: str) -> bool:
    """Return whether a server may read a file: code that is built elsewhere, or data."""
    folders = path.split("/")[:-1]
    is_beside = not folders or not _BESIDE_CODE.isdisjoint(folders) or folders[0].startswith(".")
    return not is_beside and path.endswith(_SERVED_SUFFIXES)


def find_traced_lines(
    tree: SourceTree, lines: Mapping[str, Collection[int]], modules: Iterable[str]
) -> LinesByModule:
    """Return the changed lines, and the lines of these modules that use a changed constant."""
    found = {module: set(numbers) for module, numbers in lines.items()}
    constants = {
        module: names for module in lines if (names := _find_constants(tree, module, lines[module]))
    }
    words = {name for names in constants.values() for name in names}
    for module in {*modules, *constants} if constants else ():
        source = tree.read(module)
        if source is None or not any(word in source.text for word in words):
            continue  # parsing hundreds of modules would take seconds
        names = _find_imported_constants(tree, module, constants)
        if names:
            found.setdefault(module, set()).update(_find_uses(tree, module, names))
    return found


def parse_module(tree: SourceTree, module: str) -> ast.Module:
    source = None if is_cpp_path(module) else tree.read(module)
    return ast.parse(source.text if source is not None else "")


def _find_constants(tree: SourceTree, module: str, lines: Collection[int]) -> set[str]:
    """Find the names that changed statements outside of every function bind."""
    names: set[str] = set()
    for statement in _iterate_plain_statements(parse_module(tree, module).body):
        area = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        if any(line in area for line in lines):
            names |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
    return names


def _iterate_plain_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if any(blocks):
            for block in blocks:
                yield from _iterate_plain_statements(block)
        else:
            yield statement


def _find_imported_constants(
    tree: SourceTree, module: str, constants: Mapping[str, set[str]]
) -> set[str]:
    """Return the changed constants that a module has, by the names that it uses."""
    names = set(constants.get(module, ()))
    for node in ast.walk(parse_module(tree, module)):
        if isinstance(node, ast.ImportFrom) and node.module in constants:
            names |= {
                alias.asname or alias.name
                for alias in node.names
                if alias.name in constants[node.module or ""]
            }
    return names


def _find_uses(tree: SourceTree, module: str, names: Collection[str]) -> set[int]:
    return {
        node.lineno
        for node in ast.walk(parse_module(tree, module))
        if (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr in names)
    }


def get_location(tree: SourceTree) -> Path:
    """Return the folder or the wheel of a tree."""
    return Path(tree.folder if hasattr(tree, "folder") else tree.wheel)  # type: ignore[attr-defined]
