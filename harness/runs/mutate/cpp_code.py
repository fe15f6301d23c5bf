"""A C++ function for operators: its tokens, its statements, and the parts that a fault may change.

A statement is a run of tokens: up to a `;`, or a header up to its bracket. Example: in

    for (int i = tid; i < n; i += stride) {
      if (i == 0) out[i] = 1;
    }

the statements are the header of the loop, the header of the test, and the assignment.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import CppDefinition, CppToken, match_brackets, tokenize_text
from harness.runs.mutate.code_comparison import ChangedStatement
from harness.runs.mutate.function_code import CodeChange
from harness.store.mutate.faults import MutationFault

Span = tuple[int, int]  # token indices; the second is exclusive

_HEADERS = frozenset({"if", "for", "while", "switch"})
_BLOCK_BEFORE = frozenset({")", "else", "do", "{", "}", ";", "]", "try", "const", "noexcept"})
# Words that stand before an expression and are no part of it.
_BEFORE_EXPRESSION = frozenset({"return", "co_return", "case", "else", "goto", "throw"})
_DEVICE_WORDS = frozenset({"__global__", "__device__"})
_DEVICE_MACRO = re.compile(r"^[A-Z]+_DEVICE")  # SGL_DEVICE, FLASHINFER_DEVICE
# Checks, messages and declarations of types: nothing that a launch computes.
_NEVER_MUTATED = re.compile(
    r"^(static_assert|assert|printf|using|typedef|throw|asm|\w*Check\w*|\w*CHECK\w*|TensorMatcher"
    r"|Symbolic\w+|DLOG|LOG|TVM_FFI_\w+|cudaGetLastError|goto)$"
)


class CppModuleCode:
    """The text of one C++ source, and its functions by qualified name."""

    def __init__(self, source: CppSource) -> None:
        self.source = source
        self.text = source.text
        self.code = source.code
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", source.text))]

    @cached_property
    def functions(self) -> list[CppFunctionCode]:
        return [
            CppFunctionCode(self, definition)
            for definition in self.code.definitions
            if definition.parameters is not None
        ]

    def get_line(self, offset: int) -> int:
        """Return the line of an offset, from 1."""
        return bisect.bisect_right(self._line_starts, offset)


class CppFunctionCode:
    """One function or kernel, with the tokens that a fault may change."""

    def __init__(self, module: CppModuleCode, definition: CppDefinition) -> None:
        self.module = module
        self.definition = definition
        self.qualname = definition.name
        self.tokens = module.code.tokens
        self.partners = module.code.partners

    @cached_property
    def is_kernel(self) -> bool:
        """Whether a GPU runs it: a kernel, or a function that kernels call."""
        header = self.tokens[self.definition.first : self.definition.body]
        return any(
            token.text in _DEVICE_WORDS or _DEVICE_MACRO.match(token.text) for token in header
        )

    @property
    def lines(self) -> range:
        """The lines of the whole definition."""
        return self.get_span_lines((self.definition.first, self.definition.end))

    @property
    def body_lines(self) -> range:
        return self.get_span_lines((self.definition.body, self.definition.end))

    @cached_property
    def statements(self) -> list[Span]:
        """Return every statement of the body, in the order of the text."""
        return list(self._iterate_statements(self.definition.body + 1, self.definition.end - 1))

    @cached_property
    def mutable_statements(self) -> list[Span]:
        """The statements that operators change; `drop_barrier` alone reads all `statements`."""
        return [span for span in self.statements if not self._is_never_mutated(span)]

    def _iterate_statements(self, start: int, end: int) -> Iterator[Span]:
        first = index = start
        while index < end:
            text = self.tokens[index].text
            if self.tokens[index].kind == "directive":
                first = index + 1
            elif text == ";":
                if first < index:
                    yield first, index + 1
                first = index + 1
            elif text == "}" or (text == "{" and self._begins_block(index, first)):
                if first < index:
                    yield first, index
                first = index + 1
            elif text in ("(", "[", "{") and index in self.partners:
                is_header = first < index and self.tokens[first].text in _HEADERS
                closing = self.partners[index]
                if text == "(" and is_header and index - first <= 2:  # `if constexpr (`
                    yield first, closing + 1
                    first = closing + 1
                    index = closing
                elif not self._holds_block(index, closing):
                    index = closing
            index += 1
        if first < end:
            yield first, end

    def _begins_block(self, index: int, first: int) -> bool:
        return index == first or self.tokens[index - 1].text in _BLOCK_BEFORE

    def _holds_block(self, opening: int, closing: int) -> bool:
        """Return whether brackets hold a block, as the arguments of a call that takes a lambda."""
        return any(
            self.tokens[place].text == "{" and self.tokens[place - 1].text in (")", "]")
            for place in range(opening + 1, closing)
        )

    def _is_never_mutated(self, span: Span) -> bool:
        words = (token.text for token in self.tokens[span[0] : span[1]] if token.kind == "word")
        return any(_NEVER_MUTATED.match(word) for word in words)

    def get_text(self, span: Span) -> str:
        """Return the source of a run of tokens, as it is written."""
        if span[0] >= span[1]:
            return ""
        return self.module.text[self.tokens[span[0]].start : self.tokens[span[1] - 1].end]

    def get_span_lines(self, span: Span) -> range:
        get_line = self.module.get_line
        first, last = self.tokens[span[0]], self.tokens[span[1] - 1]
        return range(get_line(first.start), get_line(last.end - 1) + 1)

    def replace(self, span: Span, replacement: str, description: str) -> CodeChange:
        start, end = self.tokens[span[0]].start, self.tokens[span[1] - 1].end
        return CodeChange(start, end, replacement, description)

    def find_tokens(self, texts: Iterable[str]) -> Iterator[tuple[int, Span]]:
        """Yield the mutable tokens with one of these texts, each with its statement."""
        wanted = set(texts)
        for span in self.mutable_statements:
            for index in range(*span):
                if self.tokens[index].text in wanted:
                    yield index, span

    def find_words(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, Span]]:
        """Yield the mutable words that match, each with its statement."""
        for span in self.mutable_statements:
            for index in range(*span):
                token = self.tokens[index]
                if token.kind == "word" and pattern.search(token.text):
                    yield index, span

    def split(self, span: Span, separators: frozenset[str]) -> list[Span]:
        """Split a run at these signs, outside of all brackets."""
        parts, first, index = [], span[0], span[0]
        while index < span[1]:
            if self.tokens[index].text in separators:
                parts.append((first, index))
                first = index + 1
            elif self.partners.get(index, -1) > index:
                index = min(self.partners[index], span[1] - 1)
            index += 1
        return [*parts, (first, span[1])]

    def split_arguments(self, opening: int) -> list[Span]:
        """Return the arguments between a bracket and its partner."""
        span = (opening + 1, self.partners[opening])
        return [] if span[0] == span[1] else self.split(span, frozenset({","}))

    def find_name_start(self, index: int) -> int:
        """Return the first token of a qualified name: that of `std` in `std::min`."""
        while index >= 1 and self.tokens[index - 1].text == "::":
            index -= 1
            if self.tokens[index - 1].kind == "word":
                index -= 1
        return index

    def get_last_word(self, index: int) -> str:
        """Return the name that ends before a token: `loc` for the `[` of `(args.loc)[i]`."""
        while index and self.tokens[index - 1].text in (")", "]"):
            closing = index - 1
            if self.tokens[closing].text == ")":
                words = range(self.partners.get(closing, closing), closing)
                names = [self.tokens[n].text for n in words if self.tokens[n].kind == "word"]
                return names[-1] if names else ""
            index = self.partners.get(closing, closing)
        before = self.tokens[index - 1]
        return before.text if before.kind == "word" else ""

    def find_expression_start(self, index: int) -> int:
        """Return the first token of what a subscript's `[` follows: `static_cast` in the above."""
        while index:
            before = self.tokens[index - 1]
            if before.text in (")", "]") and index - 1 in self.partners:
                index = self.partners[index - 1]
            elif before.text == ">":
                depth, index = 1, index - 1
                while depth and index:
                    index -= 1
                    depth += {">": 1, "<": -1}.get(self.tokens[index].text, 0)
            elif before.text in _BEFORE_EXPRESSION:
                break
            elif before.kind == "word" or before.text in (".", "->", "::"):
                index -= 1
            else:
                break
        return index

    def iterate_subscripts(self) -> Iterator[tuple[int, int, Span]]:
        """Yield each `[…]` behind a value: its bracket, its partner, and its statement."""
        for index, span in self.find_tokens("["):
            before = self.tokens[index - 1]
            is_value = before.kind == "word" or before.text in (")", "]")
            closing = self.partners.get(index)
            if is_value and closing is not None and closing < span[1] and closing > index + 1:
                yield index, closing, span

    def is_declaration(self, index: int, span: Span) -> bool:
        """Return whether a subscript declares an array: a type stands in front of its name."""
        name, kind = self.tokens[index - 1], self.tokens[index - 2]
        return (
            name.kind == "word"
            and index - 2 >= span[0]
            and (kind.kind == "word" or kind.text in (">", "*"))
            and kind.text not in ("return", "case", "else")
        )

    def is_comparison(self, token: CppToken) -> bool:
        """Return whether a `<` compares: in formatted code a template's has no space around it."""
        if token.text in ("<=", ">="):
            return True
        text = self.module.text
        return text[token.start - 1 : token.start].isspace() and text[token.end].isspace()


def find_function(code: CppModuleCode, fault: MutationFault) -> CppFunctionCode:
    """Find the function of a fault in the text that it was made for."""
    return next(
        function
        for function in code.functions
        if function.qualname == fault.qualname and fault.line in function.lines
    )


class OriginalCppFunction:
    """The unchanged function: its statements in normal form.

    A change that leaves brackets open is dropped here; whether the rest compiles, nvcc says when a
    fault is built.
    """

    def __init__(self, function: CppFunctionCode) -> None:
        self.function = function
        self.headers = tuple(
            " ".join(token.text for token in function.tokens[first:end])
            for first, end in function.statements
        )
        self.spans = [
            (function.tokens[first].start, function.tokens[end - 1].end)
            for first, end in function.statements
        ]

    def get_lines(self, index: int) -> range:
        return self.function.get_span_lines(self.function.statements[index])

    def compile_change(self, change: CodeChange, index: int) -> ChangedStatement:
        """Return a statement with a change in normal form, or the reason why it is no fault."""
        start, end = self.spans[index]
        end = max(end, change.end)
        text = self.function.module.text
        before = text[start:end]
        after = text[start : change.start] + change.replacement + text[change.end : end]
        try:
            old, new = tokenize_text(before), tokenize_text(after)
        except ValueError as error:
            return ChangedStatement(drop_reason=f"does not compile: {error}")
        if _list_open_brackets(old) != _list_open_brackets(new):
            return ChangedStatement(drop_reason="does not compile: a bracket stays open")
        words = [token.text for token in new]
        if words == [token.text for token in old]:
            return ChangedStatement(drop_reason="the same code, written in another way")
        return ChangedStatement(" ".join(words))


def _list_open_brackets(tokens: list[CppToken]) -> list[str]:
    partners = match_brackets(tokens)
    return [
        token.text
        for index, token in enumerate(tokens)
        if token.text in "()[]{}" and index not in partners
    ]


def wrap_in_brackets(code: str) -> str:
    """Put brackets around code of more than one word."""
    return code if re.fullmatch(r"[\w.:]+", code) else f"({code})"


def is_number(code: str) -> bool:
    return code[:1].isdigit()
