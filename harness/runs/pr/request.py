"""A call of `unfix pr` as typed arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import UnfixError
from harness.core.git_repository import GitRepository, open_repository
from harness.store.pr.values import PrPart

_RANGE = re.compile(r"^(?P<base>[^\s.]\S*?)(?P<dots>\.\.\.?)(?P<head>[^\s.]\S*)?$")


@dataclass(frozen=True)
class PrRequest:
    """One valid call."""

    checkout: Path
    range: str
    parts: list[PrPart]
    profile: str
    jobs: int | None
    memory: float | None
    fault_limit: int
    seed: int
    zoo_limit: int | None  # as many as the budget allows
    deployment_limit: int | None
    accepted: list[str]  # results that are green all the same
    budget: float  # seconds that the review is to take, the base's recording left out
    toggles: list[Path]

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UnfixError(f"-j is a number of tests at a time, not {self.jobs}")
        limits = (self.fault_limit, self.zoo_limit or 0, self.deployment_limit or 0)
        if min(limits) < 0:
            raise UnfixError("--faults, --architectures and --deployments are numbers, 0 or more")


@dataclass(frozen=True)
class CommitRange:
    """Both ends of a change in a checkout; without a head, the files as they are."""

    repository: GitRepository
    base: str
    head: str | None

    @property
    def base_word(self) -> str:
        return f"{self.repository.folder}@{self.base}"

    @property
    def head_word(self) -> str:
        folder = self.repository.folder
        return str(folder) if self.head is None else f"{folder}@{self.head}"

    def list_changed_paths(self) -> list[str]:
        """List the files that differ, as paths in the checkout."""
        ends = [self.base, *([self.head] if self.head else [])]
        words = ["diff", "--name-only", "--no-renames", "-z", *ends]
        paths = self.repository.run_git(*words).split("\0")
        if self.head is None:
            untracked = self.repository.run_git("ls-files", "-z", "--others", "--exclude-standard")
            paths += untracked.split("\0")
        return sorted({path for path in paths if path})

    def list_subjects(self) -> list[str]:
        """List the commits' subjects, the newest first."""
        ends = f"{self.base}..{self.head or 'HEAD'}"
        lines = self.repository.run_git("log", "--format=%h %s", ends).splitlines()
        return lines if self.head else ["the files as they are", *lines]


def find_range(checkout: Path, text: str) -> CommitRange:
    """Resolve BASE..HEAD, BASE...HEAD (since they parted), or BASE.. (to the files as they are)."""
    match = _RANGE.match(text)
    if match is None:
        raise UnfixError(
            f"'{text}' is no range: say BASE..HEAD (main..feature), BASE...HEAD for what HEAD "
            "changed since it left BASE, or BASE.. for the files as they are"
        )
    folder = checkout.expanduser().resolve()
    repository = open_repository(folder)
    repository = GitRepository(Path(repository.run_git("rev-parse", "--show-toplevel")))
    base = repository.resolve_commit(match["base"])
    head = repository.resolve_commit(match["head"]) if match["head"] else None
    if match["dots"] == "...":
        found = repository.try_git("merge-base", base, head or "HEAD")
        if found.returncode:
            raise UnfixError(
                f"{match['base']} and {match['head'] or 'HEAD'} have no common ancestor in "
                f"{folder}: fetch more of its history (`git fetch --unshallow`), or say BASE..HEAD"
            )
        base = found.stdout.strip()
    if base == head:
        raise UnfixError(f"{text} is one commit, {base[:12]}: there is no change to review")
    return CommitRange(repository, base, head)
