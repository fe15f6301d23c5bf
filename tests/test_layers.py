"""Imports run one way: up the table of docs/architecture.md, and never in a circle."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from harness.core import paths

ROOT = paths.HARNESS_FOLDER.parent
PACKAGES = ("harness", "fixtures", "suites", "reports")
SANITIZER = "harness.sanitizer."
SGLANG_PLUGIN = f"{SANITIZER}plugins.for_sglang."
SGLANG_WORD = re.compile(r"sglang|sgl_kernel", re.IGNORECASE)
# A module of the harness above the sanitizer, or a variable of toggles.
FOREIGN_WORD = re.compile(
    r"\bharness\.(?!sanitizer\b|core\b)\w+|_DEBUG_(?:REVERT|ENABLE)_PR|UNFIX_(?:REVERT|TOGGLES|ATT\w+)"
)
ROW = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)


def read_layers() -> dict[str, int]:
    """Return the folders and modules of the table, each with the number of its row."""
    rows = ROW.findall((ROOT / "docs" / "architecture.md").read_text())
    return {name: row for row, cell in enumerate(rows) for name in re.findall(r"`([^`]+)`", cell)}


@functools.cache
def find_modules() -> dict[str, Path]:
    files = (file for name in PACKAGES for file in (ROOT / name).rglob("*.py"))
    return {name_of(file.relative_to(ROOT)): file for file in files}


def name_of(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def iterate_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements at any level; most nodes of a tree lie in expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from iterate_statements(child)


def list_imports(file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Return the project's modules that a file imports, at any level."""
    for node in iterate_statements(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield from (name for name in (inside, node.module)[:1] if name in known)
                if inside not in known and node.module in known:
                    yield node.module


@functools.cache
def make_graph() -> dict[str, set[str]]:
    known = find_modules()
    return {name: set(list_imports(file, known)) - {name} for name, file in known.items()}


def layer_of(module: str, table: dict[str, int]) -> str:
    """Return the innermost folder of the table that contains a module."""
    path = module.replace(".", "/")
    layers = [name for name in table if f"{path}/".startswith(f"{name.removesuffix('.py')}/")]
    return max(layers, key=len, default="")


def test_no_module_is_imported_in_a_circle() -> None:
    try:
        TopologicalSorter(make_graph()).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle: {' -> '.join(error.args[1])}") from None


def test_every_module_lies_in_a_row_of_the_table() -> None:
    table = read_layers()
    assert [name for name in find_modules() if not layer_of(name, table)] == []


def test_a_folder_imports_only_from_rows_above_its_own() -> None:
    table = read_layers()
    wrong = [
        f"{name} imports {other}"
        for name, others in make_graph().items()
        for other in others
        if (ours := layer_of(name, table)) != (theirs := layer_of(other, table))
        and table[theirs] >= table[ours]
    ]
    assert wrong == []


def iterate_words(file: Path) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings."""
    tree = ast.parse(file.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(word)) if id(node) not in docstrings:
                yield word


def test_the_sanitizer_knows_nothing_of_the_harness_but_core() -> None:
    """By imports, and by strings that may be imported, or name a variable of toggles."""
    wrong = [
        f"{name} imports {other}"
        for name, others in make_graph().items()
        if f"{name}.".startswith(SANITIZER)
        for other in others
        if not f"{other}.".startswith((SANITIZER, "harness.core."))
    ]
    wrong += [
        f"{name} names {found[0]}"
        for name, file in find_modules().items()
        if f"{name}.".startswith(SANITIZER)
        for word in iterate_words(file)
        if (found := FOREIGN_WORD.search(word))
    ]
    assert wrong == []


def test_only_its_plugin_makes_the_sanitizer_name_sglang() -> None:
    wrong = [
        f"{name} names {word!r}"
        for name, file in find_modules().items()
        if f"{name}.".startswith(SANITIZER) and not f"{name}.".startswith(SGLANG_PLUGIN)
        for word in [*iterate_words(file), *list_imported_names(file)]
        if SGLANG_WORD.search(word)
    ]
    assert wrong == []


def list_imported_names(file: Path) -> list[str]:
    statements = iterate_statements(ast.parse(file.read_text()))
    imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    return names + [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]


def test_what_a_case_of_the_bench_imports_exists() -> None:
    """No test runs every case, so a module that moved would break one in silence."""
    files = sorted((ROOT / "bench").rglob("*.py"))
    own = {name_of(file.relative_to(ROOT)): file for file in files}
    known = find_modules() | own
    missing = [
        f"{file.name}: {node.module}.{alias.name}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] in (*PACKAGES, "bench")
        for alias in node.names
        if f"{node.module}.{alias.name}" not in known
        and (
            node.module not in known
            or not re.search(rf"\b({alias.name}|__all__)\b", known[node.module].read_text())
        )
    ]
    assert files
    assert missing == []


def test_a_folder_of_a_layer_is_called_as_its_command() -> None:
    """A capability has one name: other folders are shared, or hold a history of nights."""
    from harness.cli.commands import COMMANDS

    folders = [
        folder.name
        for layer in ("harness/cli", "harness/store", "reports")
        for folder in (ROOT / layer).iterdir()
        if (folder / "__init__.py").is_file()
    ]
    assert set(folders) - set(COMMANDS) == {"history", "shared"}
