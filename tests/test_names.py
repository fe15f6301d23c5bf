"""Names are the field's words: a function is a verb with its object, a class name is unique."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("harness", "reports", "fixtures", "suites", "tests", "bench")
# Stand-ins for modules of SGLang and other packages, under the names that those give.
STAND_INS = ("standins", "tests/toy/", "bench/small/")
# Irregular participles and past forms, which name neither an action nor its object.
IRREGULAR = """
    became began begun born bound brought built came caught chose chosen come cut done drawn drew
    driven drove fallen fed fell felt fit fled forgotten found gave given gone grown had heard held
    hidden kept knew known laid led left lent let lost made meant met paid put ran read ridden run
    said sat saw seen sent set shown shut spent split spoke stood struck sworn taken taught thought
    thrown told took torn understood went woken won worn written wrote
""".split()
PARTICIPLE = re.compile(
    rf"_*(?:[a-z]+ed|{'|'.join(IRREGULAR)})(?:_(?:in|out|on|up|of|by|for|from|to|with|at|as))?"
)
# Nouns and verbs that only look like participles.
ALLOWED = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"}
# Verbs whose past form is the same word: a method may be called so, since its class is the object.
METHODS = {"cut", "let", "put", "read", "run", "set", "split"}
# The public API reads as a sentence: `with toggles.reverted("27460"):`, `with checking.checked():`.
PUBLIC = {"checked", "enabled", "observed", "reverted"}


def functions_and_classes() -> Iterator[tuple[Path, str, ast.AST, bool]]:
    """Yield each function and class with its file, and whether it is inside a class."""
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if any(f"/{place}" in f"/{file.relative_to(ROOT)}" for place in STAND_INS):
                continue
            pending: list[tuple[ast.AST, bool]] = [(ast.parse(file.read_text()), False)]
            while pending:
                node, in_class = pending.pop()
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        yield file, child.name, child, in_class
                    pending.append((child, isinstance(child, ast.ClassDef)))


def is_property(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any("property" in ast.unparse(one) for one in decorators)


def participles() -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {name}"
        for file, name, node, in_class in functions_and_classes()
        if not isinstance(node, ast.ClassDef)
        and PARTICIPLE.fullmatch(name)
        and name.strip("_") not in ALLOWED
        and not (in_class and (is_property(node) or name.strip("_") in METHODS))
        and not (name in PUBLIC and file.name in ("toggles.py", "session.py"))
    ]


def class_names() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for file, name, node, _ in functions_and_classes():
        if isinstance(node, ast.ClassDef):
            places[name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return places


def test_no_function_is_called_by_a_bare_participle() -> None:
    assert participles() == []


def test_a_class_name_stands_once() -> None:
    assert {name: places for name, places in class_names().items() if len(places) > 1} == {}
