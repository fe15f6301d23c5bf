"""The changed lines that hold code, by function, each with the lines that stand for it.

A line is not always among those that a tracer sees: the second line of a call, a default value, a
constant at the top of a module. Invariant: a line has *deciding* lines, and it ran if one of them
did. Example: of `BLOCK = 64` these are the lines that read `BLOCK`; of `def rows(size=3):` the
body; of a statement of a CUDA kernel the whole kernel, where statements share lines once they are
optimized. A line without code (a comment, a docstring) has none and is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harness.core.cpp_scopes import CppSource
from harness.releases.source_trees import SourceTree
from harness.runs.mutate.changed_lines import find_python_remarks
from harness.runs.mutate.cpp_code import CppModuleCode
from harness.runs.pr import source_change
from harness.runs.pr.source_change import LinesByModule, SourceChange
from harness.store.pr.line_results import ChangedFunction, UnrunLine

MAX_DIFF_LINES = 6
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITHOUT_CODE = (ast.Pass, ast.Global, ast.Nonlocal)


@dataclass(frozen=True)
class ChangedLine:
    """A changed line of one end, and the lines that decide whether it ran."""

    line: int
    text: str
    deciding: LinesByModule


@dataclass
class FunctionLines:
    """A function with its changed lines: new ones of the head, removed ones of the base."""

    shown: ChangedFunction
    new: list[ChangedLine] = field(default_factory=list)
    removed: list[ChangedLine] = field(default_factory=list)


@dataclass(frozen=True)
class CodePlace:
    """The function of a line, and the lines that decide whether it ran."""

    name: str
    deciding: LinesByModule


class PythonLines:
    """The code of a Python module by line."""

    def __init__(self, tree: SourceTree, module: str, ran_modules: Collection[str]) -> None:
        self.tree, self.module, self.ran_modules = tree, module, ran_modules

    @cached_property
    def _remarks(self) -> set[int]:
        source = self.tree.read(self.module)
        return find_python_remarks(source.text) if source is not None else set()

    @property
    def _last(self) -> int:
        return max((one[0].stop for one in self._statements), default=1)

    @cached_property
    def _statements(self) -> list[tuple[range, ast.stmt, list[ast.AST]]]:
        found: list[tuple[range, ast.stmt, list[ast.AST]]] = []

        def walk(node: ast.AST, parents: list[ast.AST]) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    decorators = [one.lineno for one in getattr(child, "decorator_list", ())]
                    first = min([child.lineno, *decorators])
                    found.append((range(first, (child.end_lineno or first) + 1), child, parents))
                walk(child, [*parents, child])

        walk(source_change.parse_module(self.tree, self.module), [])
        return found

    def find_place(self, line: int) -> CodePlace | None:
        """Find the place of a line; None for one that holds no code."""
        if line in self._remarks:
            return None
        inside = [one for one in self._statements if line in one[0]]
        if not inside:
            return None
        area, statement, parents = min(inside, key=lambda one: len(one[0]))
        if isinstance(statement, _WITHOUT_CODE) or _is_text(statement):
            return None
        scopes = [one for one in parents if isinstance(one, (*_FUNCTIONS, ast.ClassDef))]
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            scopes = [*scopes, statement]
        functions = [one for one in scopes if isinstance(one, _FUNCTIONS)]
        name = _make_qualified_name(scopes) if functions else ""
        return CodePlace(name, self._find_deciding(line, area, statement, scopes))

    def _find_deciding(
        self, line: int, area: range, statement: ast.stmt, scopes: Sequence[ast.AST]
    ) -> LinesByModule:
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            first = statement.body[0].lineno
            return {self.module: set(range(first, area.stop))}
        body = getattr(statement, "body", None) or getattr(statement, "cases", None)
        header = range(area.start, getattr(body[0], "lineno", area.stop)) if body else area
        if header.start == header.stop:  # `if a: b()` on one line
            header = range(header.start, header.start + 1)
        if any(isinstance(scope, _FUNCTIONS) for scope in scopes):
            return {self.module: set(header)}
        # It runs while its module is imported: what reads the names that it binds stands for it.
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return {self.module: set(range(1, self._last + 1))}  # it ran if anything of it did
        used = source_change.find_traced_lines(self.tree, {self.module: {line}}, self.ran_modules)
        used[self.module] -= set(area)
        return used


class CppLines:
    """The code of a C++ source by line: a kernel decides as a whole, host code by its file."""

    def __init__(self, source: CppSource) -> None:
        self.source = source
        code = CppModuleCode(source)
        self.functions = code.functions
        self.code_lines = {code.get_line(token.start) for token in source.code.tokens}
        self.last = source.text.count("\n") + 1

    def find_place(self, line: int) -> CodePlace | None:
        if line not in self.code_lines:
            return None
        inside = [one for one in self.functions if line in one.lines]
        whole = range(1, self.last + 1)
        if not inside:
            return CodePlace("", {self.source.module: set(whole)})
        function = min(inside, key=lambda one: len(one.lines))
        area = function.lines if function.is_kernel else whole
        return CodePlace(function.qualname, {self.source.module: set(area)})


def list_changed_functions(
    change: SourceChange, ran_modules: Collection[str]
) -> list[FunctionLines]:
    """List the functions with changed lines that hold code, in the order of the files."""
    found: dict[tuple[str, str], FunctionLines] = {}
    for tree, lines, is_head in (
        (change.head, change.added, True),
        (change.base, change.removed, False),
    ):
        for module, numbers in sorted(lines.items()):
            source = tree.read(module)
            if source is None:
                continue
            texts = source.text.split("\n")
            finder: PythonLines | CppLines = (
                CppLines(source)
                if isinstance(source, CppSource)
                else PythonLines(tree, module, ran_modules)
            )
            for number in sorted(numbers):
                place = finder.find_place(number)
                if place is None:
                    continue
                key = module, place.name
                shown = ChangedFunction(module, place.name, change.locate(module), number)
                function = found.setdefault(key, FunctionLines(shown))
                one = ChangedLine(number, texts[number - 1].strip(), place.deciding)
                (function.new if is_head else function.removed).append(one)
    for function in found.values():
        shown = function.shown
        shown.changed = len(function.new) + len(function.removed)
        shown.diff = list(_render_diff(change, function))[:MAX_DIFF_LINES]
    return list(found.values())


def list_unread_files(change: SourceChange) -> Iterator[ChangedFunction]:
    """Yield what no item can run: code outside of the package, and data that it reads."""
    for path in change.unread:
        whole = [UnrunLine(1, "the whole file")]
        nearest = "nothing here builds or reads it"
        yield ChangedFunction(path, "", path, 1, changed=1, unrun=whole, nearest=nearest)


def _render_diff(change: SourceChange, function: FunctionLines) -> Iterator[str]:
    """Yield the blocks of the change that hold a line of the function, as a diff has them."""
    module = function.shown.module
    old, new = (
        source.text.split("\n") if (source := tree.read(module)) is not None else []
        for tree in (change.base, change.head)
    )
    added = {one.line for one in function.new}
    removed = {one.line for one in function.removed}
    for before, after in change.blocks[module]:
        if not added.isdisjoint(after) or not removed.isdisjoint(before):
            yield from (f"-{old[number - 1]}" for number in before)
            yield from (f"+{new[number - 1]}" for number in after)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _make_qualified_name(scopes: Sequence[ast.AST]) -> str:
    words: list[str] = []
    for outer, scope in zip([None, *scopes], scopes, strict=False):
        if isinstance(outer, _FUNCTIONS):
            words.append("<locals>")
        words.append(scope.name)  # type: ignore[attr-defined]
    return ".".join(words)
