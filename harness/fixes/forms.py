"""The forms of an edit in the language of its target: Python, or C++ and CUDA."""

from __future__ import annotations

import ast
import textwrap
from functools import lru_cache
from typing import Any

from harness.core.cpp_tokens import is_cpp_path
from harness.core.source_scopes import ModuleSource
from harness.fixes import cpp_patterns
from harness.fixes.cpp_patterns import CppPattern
from harness.fixes.patterns import CodePattern, remove_whitespace, to_parsable_code

Form = CodePattern | CppPattern


def parse_form(text: str, module: str) -> Form:
    """Parse a form of an edit in this module, a dotted name or the path of a C++ source."""
    return _parse_form(text, is_cpp_path(module))


@lru_cache(maxsize=1024)
def _parse_form(text: str, is_cpp: bool) -> Form:
    return CppPattern(text) if is_cpp else CodePattern(text)


def matches_code(form: Form, code: str) -> bool:
    """Return whether a form occurs in a piece of code, which may hold metavariables."""
    code = to_parsable_code(code)
    scope: Any
    if isinstance(form, CppPattern):
        scope = cpp_patterns.make_scope(code)
    else:
        scope = ModuleSource("", "", code).root
    return bool(form.find(scope, code))


def normalize_form(pattern: str, module: str) -> str:
    """Remove white space that does not count: all but in strings and, in Python, as indentation."""
    if is_cpp_path(module):
        return cpp_patterns.normalize_cpp(pattern)
    try:
        return ast.dump(ast.parse(textwrap.dedent(to_parsable_code(pattern)).strip()))
    except SyntaxError:
        return remove_whitespace(pattern)
