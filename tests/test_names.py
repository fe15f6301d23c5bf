"""Names are the field's words: a function is a verb with its object, a class name is unique."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("harness", "reports", "fixtures", "suites", "tests", "bench")
# Stand-ins for modules of SGLang and other packages, under the names that those give.
STAND_INS = ("standins", "tests/toy/")
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
# A function behind one of these is a value or an operation, known by its noun or by its operator: a
# pytest fixture, a Hypothesis strategy, a Triton kernel, a formula of the zoo, a stand-in.
NOUN_DECORATORS = re.compile(
    r"\.?(fixture|composite|jit|formula|stand_in|_is_native_of|register_shapes|_register_kernel)\b"
)
# Functions that lm-eval's task files name.
TASK_FUNCTIONS = "fixtures/tasks/items.py"
# The public API reads as a sentence: `with toggles.reverted("27460"):`, `with checking.checked():`.
PUBLIC = {"checked", "enabled", "observed", "reverted"}


@dataclass(frozen=True)
class NamedDefinition:
    """A function or a class of the tree."""

    file: Path
    line: int
    name: str
    is_class: bool
    is_in_class: bool
    is_property: bool
    is_of_module: bool
    decorators: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


@functools.cache
def list_definitions() -> list[NamedDefinition]:
    definitions = []
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if any(f"/{place}" in f"/{file.relative_to(ROOT)}" for place in STAND_INS):
                continue
            pending: list[tuple[ast.AST, bool]] = [(ast.parse(file.read_text()), False)]
            while pending:
                node, in_class = pending.pop()
                for child in ast.iter_child_nodes(node):
                    is_class = isinstance(child, ast.ClassDef)
                    if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        decorators = tuple(map(ast.unparse, child.decorator_list))
                        definitions.append(
                            NamedDefinition(
                                file,
                                child.lineno,
                                child.name,
                                is_class,
                                in_class,
                                any("property" in decorator for decorator in decorators),
                                isinstance(node, ast.Module),
                                decorators,
                            )
                        )
                    if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                        pending.append((child, is_class))
    return definitions


def list_participles() -> list[str]:
    return [
        f"{one} {one.name}"
        for one in list_definitions()
        if not one.is_class
        and PARTICIPLE.fullmatch(one.name)
        and one.name.strip("_") not in ALLOWED
        and not (one.is_in_class and (one.is_property or one.name.strip("_") in METHODS))
        and not (one.name in PUBLIC and one.file.name in ("toggles.py", "session.py"))
    ]


def list_single_words() -> list[str]:
    return [
        f"{one} {one.name}"
        for one in list_definitions()
        if one.is_of_module
        and not one.is_class
        and "_" not in one.name.strip("_")
        and one.name != "main"
        and not any(map(NOUN_DECORATORS.search, one.decorators))
        and str(one.file.relative_to(ROOT)) != TASK_FUNCTIONS
        and not (one.name in PUBLIC and one.file.name in ("toggles.py", "session.py"))
    ]


def list_class_names() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for one in list_definitions():
        if one.is_class:
            places[one.name].append(str(one))
    return places


def test_no_function_is_called_by_a_bare_participle() -> None:
    assert list_participles() == []


def test_the_name_of_a_function_of_a_module_has_more_than_one_word() -> None:
    assert list_single_words() == []


def test_no_class_of_a_module_is_called_by_a_bare_participle() -> None:
    bare = [
        f"{one} {one.name}"
        for one in list_definitions()
        if one.is_class
        and one.is_of_module
        and re.fullmatch(r"_*[A-Z][a-z]+", one.name)
        and PARTICIPLE.fullmatch(one.name.lower())
        and one.name.strip("_").lower() not in ALLOWED
    ]
    assert bare == []


def test_a_class_name_stands_once() -> None:
    assert {name: places for name, places in list_class_names().items() if len(places) > 1} == {}
