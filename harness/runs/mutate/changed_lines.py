"""The lines that changed in SGLang between two releases, or two commits of a checkout."""

from __future__ import annotations

import difflib
import functools
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.core.git_repository import SHORT_HASH_LENGTH, GitRepository, open_repository
from harness.core.source_scopes import ModuleSource
from harness.fixes.registry.schema import CodeTarget
from harness.releases import managed_releases
from harness.releases.source_trees import SGLANG_PACKAGE, SourceTree
from harness.runs.mutate.cpp_code import CppFunctionCode, CppModuleCode
from harness.runs.mutate.function_code import FunctionCode, ModuleCode

RANGE_PATTERN = re.compile(r"^(?P<older>[^\s.]\S*?)\.\.\.?(?P<newer>[^\s.]\S*)$")
PACKAGE_ROOTS = ("python/", "")  # the places of the package in a checkout


def parse_range(text: str) -> tuple[str, str]:
    """Return the two ends of `A..B`."""
    match = RANGE_PATTERN.match(text)
    if match is None:
        raise UnfixError(f"'{text}' is no range: two releases or two commits, as in 0.5.18..0.5.23")
    return match["older"], match["newer"]


def read_changed_lines(
    older: str, newer: str, folder: Path | None = None, modules: Iterable[str] | None = None
) -> tuple[SourceTree, dict[str, set[int]], str]:
    """Read the newer sources, the new lines of each module, and their label.

    The ends are two managed releases, or else two commits of the checkout in `folder` (the current
    folder). In a moved module all lines are new. `modules` limits the comparison, since nearly
    every module changes within five releases.
    """
    older, newer = resolve_range(older, newer, folder)
    releases = {release.name: release for release in managed_releases.list_known_releases()}
    if older in releases:
        installed = releases[newer].open_sources()
        return installed, compare_trees(releases[older].open_sources(), installed, modules), newer
    repository = open_repository(folder or Path.cwd())
    before, after = (CommitTree(repository, end) for end in (older, newer))
    return after, compare_trees(before, after, modules), after.name


def resolve_range(older: str, newer: str, folder: Path | None = None) -> tuple[str, str]:
    """Return two releases by name, or the hashes of two commits."""
    releases = {release.name for release in managed_releases.list_known_releases()}
    if older in releases and newer in releases:
        return older, newer
    checkout = folder or Path.cwd()
    for end in (older, newer):
        if end not in releases and _is_version(end) and not _is_commit(end, checkout):
            known = ", ".join(release.name for release in managed_releases.list_known_releases())
            raise UnfixError(f"'{end}' is no managed release; there are {known}")
    if older in releases or newer in releases:
        raise UnfixError(f"{older} and {newer} are a release and a commit: name two of one kind")
    repository = open_repository(checkout)
    return repository.resolve_commit(older), repository.resolve_commit(newer)


def _is_version(text: str) -> bool:
    """Return whether a word is a release: `0.5.20`, but not `v0.5.20`, which may be a tag."""
    try:
        return text[0].isdigit() and len(Version(text).release) > 1
    except InvalidVersion:
        return False


def _is_commit(text: str, folder: Path) -> bool:
    try:
        return bool(open_repository(folder).resolve_commit(text))
    except UnfixError:
        return False


def list_changed_functions(
    sources: SourceTree,
    lines: Mapping[str, set[int]],
    covered_lines: Mapping[str, set[int]] | None = None,
) -> list[CodeTarget]:
    """List the functions with some of these lines: the targets of a diff's faults.

    With `covered_lines`, the lines that guards run, list only functions whose body a guard runs.
    """
    targets = []
    for module, new in lines.items():
        covered = None if covered_lines is None else covered_lines.get(module, set())
        source = None if covered is not None and not covered else sources.read(module)
        for function in _read_functions(source):
            if new.isdisjoint(function.lines):
                continue
            if covered is None or not covered.isdisjoint(function.body_lines):
                targets.append(CodeTarget(module, function.qualname))
    return targets


def _read_functions(
    source: ModuleSource | None,
) -> Sequence[FunctionCode] | Sequence[CppFunctionCode]:
    if isinstance(source, CppSource):
        return CppModuleCode(source).functions
    return ModuleCode(source).functions if source is not None else ()


def read_module_text(sources: SourceTree, module: str) -> str | None:
    source = sources.read(module)
    return source.text if source is not None else None


def compare_trees(
    before: SourceTree, after: SourceTree, modules: Iterable[str] | None = None
) -> dict[str, set[int]]:
    """Return the lines that are new in each of the newer modules; of C++ in those of `modules`."""
    changed = {}
    names = None if modules is None else set(modules)
    for path in after.iterate_files():
        if is_cpp_path(path) and path in (names or ()):
            module = path
        elif path.endswith(".py"):
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        else:
            continue
        if (names is not None and module not in names) or _has_same_blob(before, after, path):
            continue
        text, old = after.read_text(path), before.read_text(path)
        if text is not None and text != old:
            find_remarks = find_no_remarks if is_cpp_path(path) else find_python_remarks
            lines = find_new_lines(old or "", text, find_remarks)
            if lines:
                changed[module] = lines
    return changed


def _has_same_blob(before: SourceTree, after: SourceTree, path: str) -> bool:
    """Return whether git has the same hash for two texts, which then need no comparison."""
    if not isinstance(before, CommitTree) or not isinstance(after, CommitTree):
        return False
    return before.find_blob(path) == after.find_blob(path)


def find_no_remarks(text: str) -> set[int]:
    return set()


def find_python_remarks(text: str) -> set[int]:
    """Return the lines that are empty or a comment; those inside of a string are neither."""
    code: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _NO_CODE:
                code |= set(range(token.start[0], token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):
        return set()  # it cannot be read as Python: each line counts
    return set(range(1, text.count("\n") + 2)) - code


_NO_CODE = frozenset(
    getattr(tokenize, name) for name in "COMMENT NL NEWLINE INDENT DEDENT ENDMARKER".split()
)


def find_changed_blocks(before: str, after: str) -> list[tuple[range, range]]:
    """Return each run of lines that differs, as lines of both texts, from 1."""
    matcher = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"))
    return [
        (range(gone + 1, end + 1), range(first + 1, last + 1))
        for kind, gone, end, first, last in matcher.get_opcodes()
        if kind != "equal"
    ]


def find_new_lines(
    before: str, after: str, find_remarks: Callable[[str], set[int]] = find_no_remarks
) -> set[int]:
    """Return the new or changed lines of `after`, from 1, and both neighbours of removed lines.

    Places where only remarks differ are no change.
    """
    old, new = before.split("\n"), after.split("\n")
    lines: set[int] = set()
    find_remarks_once = functools.cache(find_remarks)  # of each text
    for kind, gone, end, first, last in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            continue
        block = [*old[gone:end], *new[first:last]]
        if all(not line.strip() or line.lstrip().startswith("#") for line in block):
            # Only now the texts are read whole, which takes longer than the comparison.
            remarks = set(range(gone + 1, end + 1)) <= find_remarks_once(before)
            if remarks and set(range(first + 1, last + 1)) <= find_remarks_once(after):
                continue
        if kind == "delete":
            lines |= {first, first + 1} & set(range(1, len(new) + 1))
        else:
            lines |= set(range(first + 1, last + 1))
    return lines


class CommitTree(SourceTree):
    """The package at one commit, read from git without a change of the checkout."""

    def __init__(self, repository: GitRepository, commit: str) -> None:
        super().__init__(commit[:SHORT_HASH_LENGTH])
        self.repository = repository
        self.commit = commit
        self._blob_ids = {}
        for line in repository.run_git("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
            facts, _, name = line.partition("\t")
            self._blob_ids[name] = facts.rpartition(" ")[2]
        roots = [
            r
            for r in PACKAGE_ROOTS
            if any(n.startswith(f"{r}{SGLANG_PACKAGE}/") for n in self._blob_ids)
        ]
        if not roots:
            raise UnfixError(f"{self.name} of {repository.folder} holds no {SGLANG_PACKAGE}")
        self.root = roots[0]

    def find_blob(self, path: str) -> str | None:
        return self._blob_ids.get(f"{self.root}{path}")

    def read_text(self, path: str) -> str | None:
        if self.find_blob(path) is None:
            return None
        # Not `run_git`, which strips white space and so shifts lines.
        return self.repository.try_git("show", f"{self.commit}:{self.root}{path}").stdout

    def describe_location(self, path: str) -> str:
        return f"{self.name}:{self.root}{path}"

    def iterate_files(self) -> Iterator[str]:
        for name in sorted(self._blob_ids):
            if name.startswith(f"{self.root}{SGLANG_PACKAGE}/"):
                yield name.removeprefix(self.root)

    def iterate_version_files(self) -> Iterator[str]:
        yield from (f"{SGLANG_PACKAGE}/_version.py", f"{SGLANG_PACKAGE}/version.py")
