"""C++ and CUDA sources as tokens, with their definitions by name.

The text is not parsed: CUDA's additions, macros and attributes leave a grammar of C++ with errors
in nine of ten of SGLang's kernels, and tokens with balanced brackets are all that a name needs.
Example: in

    template <typename T>
    __global__ void scale(T* out, int n) { if (n) { out[0] = 1; } }

the scope of `scale` begins at `template` and ends at the last brace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

CPP_SUFFIXES = (".cuh", ".cu", ".h", ".hpp", ".cpp", ".cc")

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|//(?:[^\n\\]|\\.)*(?:\\\n[^\n]*)*|/\*.*?\*/|\\\n)
  | (?P<directive>\#(?:\\\n|/\*.*?\*/|[^\n])*)
  | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
  | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"|(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
  | (?P<number>\.?[0-9](?:[eEpP][+-]|'(?=[0-9a-fA-F])|[\w.])*)
  | (?P<word>[A-Za-z_µ]\w*)
  | (?P<sign><<<|>>>|<=>|->\*|\.\.\.|::|->|\+\+|--|<<=|[-+*/%&|^=!<>]=|&&|\|\||<<|\S)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"//.*|/\*.*?\*/", re.DOTALL)
_OPENING, _CLOSING = {"(": ")", "[": "]", "{": "}"}, frozenset(")]}")
_TYPE_WORDS = frozenset({"struct", "class", "union"})
_CONTROL_WORDS = frozenset(
    "if for while switch catch return sizeof decltype alignof alignas requires noexcept "
    "static_assert explicit operator __launch_bounds__ __attribute__ asm __align__".split()
)
_LABELS = frozenset({"public", "private", "protected"})


@dataclass(frozen=True, slots=True)
class CppToken:
    text: str
    start: int
    end: int
    kind: str  # directive, string, number, word or sign


def is_cpp_path(module: str) -> bool:
    """Return whether a target's module is a C++ source: a path, where Python's is dotted."""
    return module.endswith(CPP_SUFFIXES)


def tokenize_text(text: str) -> list[CppToken]:
    """Return the tokens of a text; a preprocessor line is one token."""
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"no token of C++ at {text[position : position + 20]!r}")
        kind = match.lastgroup or "sign"
        if kind != "skip":
            kind = "string" if kind in ("raw", "mark") else kind
            token_text = match[0]
            if kind == "directive":
                token_text = " ".join(_COMMENT.sub(" ", token_text.replace("\\\n", " ")).split())
            found.append(CppToken(token_text, position, match.end(), kind))
        position = match.end()
    return found


def match_brackets(tokens: Sequence[CppToken]) -> dict[int, int]:
    """Return for each bracket's index the index of its partner; brackets without one are left out.

    `<` and `>` are no brackets here: they also compare.
    """
    partners: dict[int, int] = {}
    open_brackets: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind != "sign":
            continue
        if token.text in _OPENING:
            open_brackets.append(index)
        elif token.text in _CLOSING:
            # Branches of the preprocessor may open a bracket twice: the nearest one fits.
            while open_brackets and _OPENING[tokens[open_brackets[-1]].text] != token.text:
                open_brackets.pop()
            if open_brackets:
                opening = open_brackets.pop()
                partners[opening], partners[index] = index, opening
    return partners


@dataclass(frozen=True, slots=True)
class CppDefinition:
    """A function, or a struct with its members."""

    name: str  # with its structs: 'StoreKernel.run'
    first: int  # token indices
    end: int
    parameters: tuple[int, int] | None  # of the brackets around a function's parameters
    body: int  # of its opening brace


@dataclass(frozen=True)
class CppText:
    """The text of one source; read into tokens once."""

    text: str

    @cached_property
    def tokens(self) -> list[CppToken]:
        return tokenize_text(self.text)

    @cached_property
    def partners(self) -> dict[int, int]:
        return match_brackets(self.tokens)

    @cached_property
    def definitions(self) -> list[CppDefinition]:
        return list(_iterate_definitions(self.tokens, self.partners, 0, len(self.tokens), ""))


def _iterate_definitions(
    tokens: list[CppToken], partners: dict[int, int], start: int, end: int, prefix: str
) -> Iterator[CppDefinition]:
    """Yield the definitions between two tokens of a file, a namespace or a struct."""
    first = index = start  # `first` begins the current declaration
    while index < end:
        text, kind = tokens[index].text, tokens[index].kind
        if kind == "directive" or text in (";", "}"):
            first = index + 1
        elif text in _LABELS and index + 1 < end and tokens[index + 1].text == ":":
            index += 1
            first = index + 1
        elif text == "{" and index in partners:
            closing = partners[index]
            header = tokens[first:index]
            definition = _read_header(tokens, partners, first, index)
            if definition is not None:
                name, parameters, is_type = definition
                qualified = f"{prefix}{name}"
                yield CppDefinition(qualified, first, closing + 1, parameters, index)
                if is_type:
                    yield from _iterate_definitions(
                        tokens, partners, index + 1, closing, f"{qualified}."
                    )
            elif any(token.text in ("namespace", "extern") for token in header):
                yield from _iterate_definitions(tokens, partners, index + 1, closing, prefix)
                first = closing + 1
            index = closing
            if definition is not None and not definition[2]:
                first = closing + 1
        elif text in _OPENING and index in partners:
            index = partners[index]
        index += 1


def _read_header(
    tokens: list[CppToken], partners: dict[int, int], first: int, brace: int
) -> tuple[str, tuple[int, int] | None, bool] | None:
    """Read what is defined in front of a brace: its name, its parameters, whether it is a type."""
    index = first
    while index < brace and tokens[index].text == "template" and tokens[index + 1].text == "<":
        index = _skip_angles(tokens, index + 1, brace)
    is_type = any(token.text in _TYPE_WORDS for token in tokens[index:brace])
    while index < brace:
        token = tokens[index]
        following = tokens[index + 1].text if index + 1 <= brace else ""
        if token.text == "=":
            return None  # a variable's initial value
        if token.kind == "word" and following == "(" and index + 1 in partners:
            if token.text not in _CONTROL_WORDS and not is_type:
                return token.text, (index + 1, partners[index + 1]), False
            index = partners[index + 1]
        elif token.text in _TYPE_WORDS:
            return _read_type_name(tokens, partners, index + 1, brace)
        index += 1
    return None


def _read_type_name(
    tokens: list[CppToken], partners: dict[int, int], index: int, brace: int
) -> tuple[str, None, bool] | None:
    while index < brace:
        token = tokens[index]
        if token.kind == "word":
            if tokens[index + 1].text == "(" and index + 1 in partners:
                index = partners[index + 1] + 1  # an attribute
                continue
            return token.text, None, True
        index += 1
    return None


def _skip_angles(tokens: list[CppToken], index: int, end: int) -> int:
    """Return the index behind the `>` that closes a template's parameters."""
    depth = 0
    while index < end:
        text = tokens[index].text
        depth += {"<": 1, ">": -1, ">>": -2, ">>>": -3}.get(text, 0)
        index += 1
        if depth <= 0:
            break
    return index
