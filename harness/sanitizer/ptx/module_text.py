"""A module in PTX: its variables, and its kernels, whose bodies are read when they are needed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.sanitizer.ptx.parser import (
    BodyReader,
    PtxHead,
    PtxKernel,
    PtxParameter,
    PtxSyntaxError,
    PtxVariable,
    bits_of_type,
    parse_variable,
    remove_block_comments,
)

_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s*(\.ptr\b)?[\s\w.]*?\s([\w$]+)(?:\[(\d+)\])?$"
)


class PtxText:
    """A module: its variables and the heads of its kernels; a body is read when it is needed."""

    def __init__(self, text: str) -> None:
        self._text = text = remove_block_comments(text)
        self._files = {
            int(match[1]): match[2]
            for match in re.finditer(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.MULTILINE)
        }
        self.variables = _parse_module_variables(text)
        self.heads = {head.name: head for head in _iterate_heads(text)}
        self._kernels: dict[str, PtxKernel] = {}

    def read_kernel(self, name: str) -> PtxKernel:
        """Read a kernel with its body; raises PtxSyntaxError for what is not understood."""
        if name not in self._kernels:
            kernel = PtxKernel(self.heads[name])
            _, start, end = kernel.head.positions
            BodyReader(kernel, self._files).read(self._text[start:end])
            self._kernels[name] = kernel
        return self._kernels[name]


def _iterate_heads(text: str) -> Iterator[PtxHead]:
    pattern = r"^[ \t]*(?:\.visible |\.weak |\.extern )*\.entry\b"
    for match in re.finditer(pattern, text, re.MULTILINE):
        head_end = _find_body(text, match.end())
        if text[head_end : head_end + 1] == "{":
            positions = match.end(), head_end + 1, _find_closing_brace(text, head_end)
            yield _parse_head(text[match.end() : head_end], positions)


def _find_body(text: str, start: int) -> int:
    match = re.compile(r"^\{|;", re.MULTILINE).search(text, start)
    return len(text) if match is None else match.start()


def _find_closing_brace(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.start()
    raise PtxSyntaxError("a body without an end")


def _parse_head(head: str, positions: tuple[int, int, int]) -> PtxHead:
    head = re.sub(r"//[^\n]*", "", head).strip()
    match = re.match(r"([\w$]+)\s*(?:\(([^)]*)\))?(.*)$", head, re.DOTALL)
    assert match is not None
    parameters, offset = [], 0
    for text in (match[2] or "").split(","):
        if not text.strip():
            continue
        found = _PARAMETER.match(" ".join(text.split()))
        if found is None:
            raise PtxSyntaxError(f"the parameter {text.strip()}")
        item = bits_of_type(found[2]) // 8
        size = item * int(found[5] or 1)
        alignment = int(found[1] or item) if found[3] is None else 8
        offset += -offset % alignment
        parameters.append(PtxParameter(found[4], offset, size))
        offset += size
    directives = {
        found[1]: tuple(int(number) for number in found[2].split(",") if number.strip())
        for found in re.finditer(r"\.(\w+)[ \t]+([\d, \t]+)", match[3])
    }
    return PtxHead(match[1], tuple(parameters), directives, positions)


def _parse_module_variables(text: str) -> dict[str, PtxVariable]:
    found = {}
    pattern = (
        r"^[ \t]*(?:\.visible |\.weak |\.extern |\.common )*(\.(?:global|const|shared) [^;]*);"
    )
    for match in re.finditer(pattern, text, re.MULTILINE):
        variable = parse_variable(match[1])
        if variable is not None:
            found[variable.name] = variable
    return found
