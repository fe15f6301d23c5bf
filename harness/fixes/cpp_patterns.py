"""Patterns over C++ and CUDA: one side of an edit, matched in tokens and rendered into them.

A pattern is any run of tokens, with metavariables; comments and white space do not count. `$X`
binds one token or more, as few as the rest of the pattern allows, with balanced brackets and
without a `,` or `;` outside of them; `$$$X` binds any tokens with balanced brackets, or none.
Example: `$A * heads` in `f(x + y * heads)` binds `$A` to `y`: of the matches with one end the
shortest counts.

ast-grep is not used here: it has no grammar of CUDA, and its grammar of C++ finds errors in nine of
ten of SGLang's kernels (`__forceinline__`, `<<<grid, block>>>`) and reads `a * b` as a declaration.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.core.cpp_scopes import CppScope
from harness.core.cpp_tokens import CppText, CppToken, match_brackets, tokenize_text
from harness.fixes.patterns import (
    METAVARIABLE,
    METAVARIABLE_CHARACTER,
    PatternError,
    PatternMatch,
    find_metavariables,
    get_indent,
    remove_indent,
    render_form,
    to_parsable_code,
)

Bindings = dict[str, tuple[int, int]]  # token indices, by the name of a metavariable
_SEPARATORS = frozenset({",", ";"})
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_BRACKETS = _OPENING | _CLOSING


@dataclass(frozen=True, slots=True)
class _Element:
    """A token of a pattern: its text, or a metavariable's name."""

    text: str
    is_metavariable: bool = False
    is_list: bool = False


@dataclass(frozen=True)
class CppPattern:
    """A pattern, read into tokens: finds its matches, and renders itself with their bindings."""

    text: str

    @cached_property
    def elements(self) -> tuple[_Element, ...]:
        try:
            tokens = tokenize_text(to_parsable_code(self.text))
        except ValueError as error:
            raise PatternError(f"this pattern is not C++: {self.text.strip()!r}: {error}") from None
        elements = tuple(_read_element(token) for token in tokens)
        if not elements:
            raise PatternError(f"this pattern holds no code: {self.text.strip()!r}")
        if all(element.is_metavariable for element in elements):
            raise PatternError(f"this pattern matches any code: {self.text.strip()!r}")
        return elements

    @cached_property
    def unpaired_brackets(self) -> str:
        """The brackets without a partner, as of `namespace sglang {`."""
        tokens = tokenize_text(to_parsable_code(self.text))
        partners = match_brackets(tokens)
        return "".join(
            token.text
            for index, token in enumerate(tokens)
            if token.kind == "sign" and token.text in _BRACKETS and index not in partners
        )

    @property
    def statements(self) -> tuple[str, ...]:
        """Its tokens; raises PatternError if it cannot be read."""
        return tuple(element.text for element in self.elements)

    def find(self, scope: CppScope, text: str) -> list[PatternMatch]:
        """Find every match in a scope; `text` is the source of the scope."""
        by_end: dict[int, tuple[int, Bindings]] = {}
        for start in range(scope.first, scope.end):
            for shape in self._shapes:
                found = _match_elements(shape, scope, start, {})
                if found is not None:
                    end, bindings = found
                    by_end[end] = start, bindings  # a later start is a shorter match
        return [
            _make_match(self, scope.tokens, text, start, end, bindings)
            for end, (start, bindings) in sorted(by_end.items(), key=lambda item: item[1][0])
        ]

    @cached_property
    def _shapes(self) -> tuple[tuple[_Element, ...], ...]:
        """The pattern, and without a trailing `, $$$LIST`, which may be empty."""
        shorter = tuple(
            element
            for index, element in enumerate(self.elements)
            if not any(_is_trailing_list(self.elements, index - back) for back in (0, 1))
        )
        return tuple(dict.fromkeys((self.elements, shorter)))

    def render(self, match: PatternMatch, text: str) -> str:
        """Render the pattern's code with the bindings of a match, indented like the match."""
        return render_form(textwrap.dedent(self.text), match, text).rstrip()

    @staticmethod
    def is_same_code(first: str, second: str) -> bool:
        """Return whether two pieces of code differ only in white space and comments."""
        return [token.text for token in tokenize_text(first)] == [
            t.text for t in tokenize_text(second)
        ]


def _is_trailing_list(elements: tuple[_Element, ...], index: int) -> bool:
    """Return whether `, $$$LIST` and a closing bracket begin at an element."""
    comma, many, closing = (*elements[max(index, 0) : index + 3], *(3 * [_Element("")]))[:3]
    return index >= 0 and comma.text == "," and many.is_list and closing.text in _CLOSING


def _match_elements(
    elements: Sequence[_Element], scope: CppScope, position: int, bindings: Bindings
) -> tuple[int, Bindings] | None:
    """Match elements from a token on; return the end and all bindings."""
    tokens = scope.tokens
    step = 0
    for element in elements:
        if element.is_metavariable and element.text not in bindings:
            break
        if element.is_metavariable:
            wanted = _get_texts(tokens, bindings[element.text])
        else:
            wanted = [element.text]
        end = position + len(wanted)
        if end > scope.end or _get_texts(tokens, (position, end)) != wanted:
            return None
        position, step = end, step + 1
    else:
        return position, bindings
    stop = position if element.is_list else _find_element_end(scope, position, element)
    while stop is not None:
        bound = {**bindings, element.text: (position, stop)}
        found = _match_elements(elements[step + 1 :], scope, stop, bound)
        if found is not None:
            return found
        stop = _find_element_end(scope, stop, element)
    return None


def make_scope(code: str) -> CppScope:
    """Return the scope of a piece of code as a whole."""
    text = CppText(code)
    return CppScope(text, 0, len(text.tokens))


def normalize_cpp(pattern: str) -> str:
    """Remove what does not count: white space and comments."""
    return " ".join(token.text for token in tokenize_text(to_parsable_code(pattern)))


def _read_element(token: CppToken) -> _Element:
    found = METAVARIABLE.fullmatch(token.text.replace(METAVARIABLE_CHARACTER, "$"))
    if found is None:
        return _Element(token.text)
    return _Element(found[1] or found[2], is_metavariable=True, is_list=found[1] is not None)


def _find_element_end(scope: CppScope, stop: int, element: _Element) -> int | None:
    """Return the end of the next token, or of the next pair of brackets; None if it cannot bind."""
    if stop >= scope.end:
        return None
    token = scope.tokens[stop]
    if token.kind == "directive" and not element.is_list:
        return None
    if token.kind == "sign":
        if token.text in _CLOSING or (token.text in _SEPARATORS and not element.is_list):
            return None
        if token.text in _OPENING:
            partner = scope.code.partners.get(stop)
            return None if partner is None or partner >= scope.end else partner + 1
    return stop + 1


def _get_texts(tokens: Sequence[CppToken], span: tuple[int, int]) -> list[str]:
    return [token.text for token in tokens[span[0] : span[1]]]


def _make_match(
    pattern: CppPattern,
    tokens: Sequence[CppToken],
    text: str,
    start: int,
    end: int,
    bindings: Bindings,
) -> PatternMatch:
    bound = dict.fromkeys(find_metavariables(pattern.text), "")
    for name, (first, stop) in bindings.items():
        code = text[tokens[first].start : tokens[stop - 1].end] if stop > first else ""
        bound[name] = remove_indent(code, get_indent(text, tokens[first].start)) if code else ""
    return PatternMatch(tokens[start].start, tokens[end - 1].end, bound)
