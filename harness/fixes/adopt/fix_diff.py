"""Parses the output of `git diff`, `git show` and `git format-patch`, and a PR's `.diff`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError

HUNK_HEADER = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
PULL_REQUEST = re.compile(r"\(#(\d+)\)")
SUBJECT_HEADER = re.compile(r"^Subject: (?:\[PATCH[^\]]*\] )?(.*(?:\n .*)*)", re.MULTILINE)
SHOWN_COMMIT = re.compile(
    r"^commit [0-9a-f]{7,40}\b.*?\n\n    (\S[^\n]*)", re.MULTILINE | re.DOTALL
)
RUNTIME_MODULE = re.compile(r"^(?:python/)?(sglang/(?:srt|kernels|jit_kernel)/.+)\.py$")
CPP_SOURCE = re.compile(r"^(?:python/)?(sglang/(?:kernels|jit_kernel)/.+)$")


@dataclass(frozen=True, slots=True)
class DiffHunk:
    """The old and new lines of one hunk, with their first line numbers."""

    old_start: int
    new_start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass
class FileDiff:
    """The hunks of one file."""

    old: str
    new: str
    hunks: list[DiffHunk] = field(default_factory=list)
    binary: bool = False

    @property
    def path(self) -> str:
        return self.old if self.new == "/dev/null" else self.new

    @property
    def module(self) -> str:
        """The module of SGLang's runtime, or its C++ source; '' for any other file."""
        source = CPP_SOURCE.match(self.path) if is_cpp_path(self.path) else None
        if source:
            return source[1]
        found = RUNTIME_MODULE.match(self.path)
        return found[1].removesuffix("/__init__").replace("/", ".") if found else ""

    @property
    def exclusion_reason(self) -> str:
        """Why the file cannot be part of a toggle; '' if it can."""
        if self.binary:
            return "a binary file"
        if self.old == "/dev/null":
            return "a new file: a toggle changes existing code"
        if self.new == "/dev/null":
            return "a deleted file: a toggle cannot restore it"
        if not self.hunks:
            return "renamed, and nothing else" if self.old != self.new else "nothing but its mode"
        if not self.module:
            test = re.search(r"(^|/)(tests?|benchmark|bench|examples|docs)/", self.path)
            return f"{test[2]}, no code of the runtime" if test else "no code of SGLang's runtime"
        return ""


@dataclass(frozen=True)
class FixDiff:
    """A whole diff, with title and PR numbers from the commit message above it."""

    name: str
    title: str
    pull_requests: tuple[int, ...]
    files: tuple[FileDiff, ...]


def parse_diff(text: str, name: str) -> FixDiff:
    """Parse a diff; `name` names it in error messages."""
    if "\0" in text:
        raise UnfixError(f"{name} is a binary file, no diff")
    files: list[FileDiff] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("diff --git "):
            words = re.match(r'diff --git "?a/(.*?)"? "?b/(.*?)"?$', line)
            files.append(FileDiff(words[1], words[2]) if words else FileDiff("", ""))
        elif line.startswith("--- ") and lines[at + 1 : at + 2] and lines[at + 1][:4] == "+++ ":
            old, new = (_parse_path(one) for one in (line, lines[at + 1]))
            if files and not files[-1].hunks and files[-1].path.endswith((old, new)):
                files[-1].old, files[-1].new = old, new
            else:
                files.append(FileDiff(old, new))
            at += 1
        elif line.startswith(("Binary files ", "GIT binary patch")) and files:
            files[-1].binary = True
        elif line.startswith("rename from ") and files:
            files[-1].old = line.removeprefix("rename from ")
        elif (found := HUNK_HEADER.match(line)) and files:
            at = _parse_hunk(found, lines, at + 1, files[-1], name)
            continue
        at += 1
    if not files:
        raise UnfixError(
            f"{name} holds no diff: give what `git diff`, `git show` or `git format-patch` prints, "
            "or a pull request's .diff"
        )
    head = text[: text.find("diff --git")] if "diff --git" in text else ""
    subject = SUBJECT_HEADER.search(head) or SHOWN_COMMIT.search(head)
    title = " ".join(subject[1].split()) if subject else ""
    numbers = tuple(dict.fromkeys(int(number) for number in PULL_REQUEST.findall(title)))
    plain = re.sub(r"^(\[[^\]]*\]\s*)+", "", PULL_REQUEST.sub("", title)).strip()
    return FixDiff(name, plain, numbers, tuple(files))


def _parse_path(line: str) -> str:
    path = line[4:].split("\t")[0].strip().strip('"')
    return path[2:] if path.startswith(("a/", "b/")) else path


def _parse_hunk(
    header: re.Match[str], lines: Sequence[str], index: int, file: FileDiff, name: str
) -> int:
    first = index
    left, right = int(header[2] or 1), int(header[4] or 1)
    old: list[str] = []
    new: list[str] = []
    while (len(old) < left or len(new) < right) and index < len(lines):
        sign, rest = lines[index][:1], lines[index][1:]
        if sign not in ("", " ", "-", "+", "\\"):
            break
        if sign in ("", " ", "-"):
            old.append(rest)
        if sign in ("", " ", "+"):
            new.append(rest)
        index += 1
    if len(old) != left or len(new) != right:
        raise UnfixError(
            f"{name} is truncated or edited: line {first} begins a hunk of {left} and {right} "
            f"lines, but has {len(old)} and {len(new)}"
        )
    file.hunks.append(DiffHunk(int(header[1]), int(header[3]), tuple(old), tuple(new)))
    return index
