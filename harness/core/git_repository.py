"""The one module that runs git on a checkout that the user names."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import UnfixError

SHORT_HASH_LENGTH = 12


@dataclass
class GitRepository:
    """A git checkout; its own files are never changed, commands work in a separate worktree."""

    folder: Path

    def run_git(self, *words: str, folder: Path | None = None) -> str:
        """Run git and return its output; raise UnfixError with git's message if it fails."""
        completed = self.try_git(*words, folder=folder)
        if completed.returncode:
            message = (completed.stderr or completed.stdout).strip()
            raise UnfixError(f"git {shlex.join(words)}: {message}")
        return completed.stdout.strip()

    def try_git(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(folder or self.folder), *words],
            capture_output=True,
            text=True,
            env=strip_git_variables(),
        )

    def resolve_commit(self, name: str) -> str:
        completed = self.try_git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if completed.returncode:
            raise UnfixError(f"{self.folder} has no commit '{name}'")
        return completed.stdout.strip()

    def find_parent(self, commit: str) -> str:
        """Return the first parent of a commit."""
        completed = self.try_git("rev-parse", "--verify", "--quiet", f"{commit}^")
        if completed.returncode:
            raise UnfixError(
                f"{self.folder} has no parent of {commit[:10]}: it is the first commit there, "
                "or the checkout is shallow (`git fetch --deepen 1`)"
            )
        return completed.stdout.strip()

    def is_ancestor(self, older: str, newer: str) -> bool:
        return not self.try_git("merge-base", "--is-ancestor", older, newer).returncode

    @contextlib.contextmanager
    def add_worktree(self, commit: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="unfix-") as folder:
            tree = Path(folder) / "tree"
            self.run_git("worktree", "add", "--quiet", "--detach", str(tree), commit)
            try:
                yield str(tree)
            finally:
                self.try_git("worktree", "remove", "--force", str(tree))
                self.try_git("worktree", "prune")


def strip_git_variables() -> dict[str, str]:
    """Return the environment without GIT_* variables, which a surrounding git hook may have set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def open_repository(folder: Path) -> GitRepository:
    if not folder.is_dir():
        raise UnfixError(f"there is no folder {folder}")
    repository = GitRepository(folder)
    if repository.try_git("rev-parse", "--git-dir").returncode:
        raise UnfixError(f"{folder} is no git repository")
    return repository
