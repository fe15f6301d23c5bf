"""A fix as a git diff of SGLang's repository, and copies of a release to apply it to."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import NotReadyError, PatchError
from harness.core.git_repository import strip_git_variables
from harness.fixes.patch_plan import Direction, PatchedModule, ToggleChoice, make_plan
from harness.fixes.registry.schema import Toggle
from harness.releases.source_trees import SGLANG_PACKAGE, FolderSourceTree, SourceTree

CHANGED_FILE = re.compile(r"^\+\+\+ b/(.*)$", re.MULTILINE)
PACKAGE_PARENT = "python"  # the folder of the package in SGLang's repository


def make_fix_patch(toggle: Toggle, sources: SourceTree) -> str:
    """Make the diff that enables a fix, with paths as in SGLang's repository."""
    plan = make_plan([ToggleChoice(toggle, Direction.ENABLE)], sources, str(sources.version))
    return "".join(_format_module(module, sources) for module in plan.modules)


def _format_module(module: PatchedModule, sources: SourceTree) -> str:
    source = sources.read(module.module)
    assert source is not None, "a plan has the modules that it read"
    path = f"{PACKAGE_PARENT}/{find_file(module)}"
    before, after = (text.splitlines(keepends=True) for text in (source.text, module.text))
    lines = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    marked = (x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in lines)
    return f"diff --git a/{path} b/{path}\n{''.join(marked)}"


def find_file(module: PatchedModule) -> str:
    """Return a module's file, below the folder of the package."""
    if is_cpp_path(module.module):
        return module.module
    stem = module.module.replace(".", "/")
    return f"{stem}/__init__.py" if module.path.endswith("/__init__.py") else f"{stem}.py"


@dataclass(frozen=True)
class ReleaseCopy:
    """A release's package in a folder like a checkout of SGLang, which patches may change."""

    folder: Path

    @property
    def import_folder(self) -> Path:
        return self.folder / PACKAGE_PARENT

    @contextlib.contextmanager
    def apply_patch(self, patch: str) -> Iterator[None]:
        apply_patch(self.folder, patch)
        try:
            yield
        finally:
            apply_patch(self.folder, patch, "--reverse")


@contextlib.contextmanager
def copy_release(sources: SourceTree) -> Iterator[ReleaseCopy]:
    """Copy a release's package as links, which git replaces and never writes through."""
    if not isinstance(sources, FolderSourceTree):
        raise NotReadyError(
            f"SGLang {sources.name} is not installed: `unfix releases add {sources.name}`"
        )
    with tempfile.TemporaryDirectory(prefix="unfix-upstream-") as folder:
        copy = ReleaseCopy(Path(folder))
        target = copy.import_folder / SGLANG_PACKAGE
        package = (sources.folder / SGLANG_PACKAGE).resolve()
        shutil.copytree(package, target, copy_function=_link_or_copy)
        yield copy


def _link_or_copy(file: str, target: str) -> None:
    try:
        os.link(file, target)
    except OSError:  # another file system
        shutil.copy2(file, target)


def check_patch(patch: str, sources: SourceTree, checkout: Path | None) -> None:
    """See whether a patch applies to a release, and to a checkout of SGLang if one is given."""
    with tempfile.TemporaryDirectory(prefix="unfix-upstream-") as folder:
        for path in CHANGED_FILE.findall(patch):
            content = sources.read_bytes(path.removeprefix(f"{PACKAGE_PARENT}/"))
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_bytes(content or b"")
        apply_patch(Path(folder), patch, "--check")
    if checkout is not None:
        apply_patch(checkout, patch, "--check")


def apply_patch(checkout: Path, patch: str, *options: str) -> None:
    """Apply a patch to a checkout; with `--check` only see whether it applies."""
    completed = subprocess.run(
        ["git", "apply", *options, "-"],
        input=patch,
        text=True,
        capture_output=True,
        cwd=checkout,
        env=strip_git_variables(),
    )
    if completed.returncode:
        raise PatchError(f"git apply {' '.join(options)}: {completed.stderr.strip()}")
