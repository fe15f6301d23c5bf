"""Packs a checkout of SGLang, as it is or at a commit, into a wheel, without building anything.

The wheel holds the `sglang` folder and the dependencies of `pyproject.toml`. Compiled parts are in
it only where the checkout has them. It is a copy, so later changes of the checkout do not reach
processes of the release; packing it again takes a second or two.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.core.code_digest import compute_digest
from harness.core.errors import NotReadyError, UnfixError
from harness.core.git_repository import SHORT_HASH_LENGTH, GitRepository, open_repository
from harness.releases import lock_solver, pins, source_trees
from harness.releases.source_trees import SGLANG_PACKAGE, FolderSourceTree

NOT_PACKED = ("__pycache__", ".git")
EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class CheckoutSources:
    """The sources to pack: a commit of a repository, with or without the changes of its files."""

    repository: GitRepository
    commit: str
    is_as_it_is: bool  # the files in the folder, not those of the commit
    changed_files: tuple[str, ...] = ()  # relative to the repository

    @property
    def name(self) -> str:
        """The release's name: as git describes a commit, and `+dirty` if files differ from it."""
        return f"g{self.commit[:SHORT_HASH_LENGTH]}{'+dirty' if self.changed_files else ''}"

    @property
    def origin(self) -> str:
        number = len(self.changed_files)
        files = f", with {number} changed file{'s' if number > 1 else ''}" if number else ""
        return f"{self.repository.folder}, commit {self.commit[:SHORT_HASH_LENGTH]}{files}"

    def digest_contents(self) -> str:
        files = [self.repository.folder / name for name in self.changed_files]
        contents = [file.read_bytes() if file.is_file() else b"removed" for file in files]
        return compute_digest(self.commit, *self.changed_files, *contents)

    def pack(self, folder: Path) -> str:
        """Write the wheel into a folder; return a remark about its version, or ''."""
        with self._open_files() as root:
            tree = source_trees.open_tree(root)
            assert isinstance(tree, FolderSourceTree)
            required = pins.read_project_requirements(tree.folder / "pyproject.toml")
            version = self._describe_version()
            remark = ""
            if version is None:
                nearest = lock_solver.find_nearest_lock(pins.select_applicable(required), None)
                version = Version(f"{nearest.name}.post1")
                remark = (
                    f"{self.repository.folder} has no version tag: taken for {nearest.name}, whose "
                    "pins are the nearest (`git fetch --tags` brings the tags)"
                )
            local = self.name.replace("+", ".")
            _write_wheel(tree.folder, folder, f"{version}+{local}", required)
        return remark

    @contextlib.contextmanager
    def _open_files(self) -> Iterator[Path]:
        if self.is_as_it_is:
            yield self.repository.folder
        else:
            with self.repository.add_worktree(self.commit) as worktree:
                yield Path(worktree)

    def _describe_version(self) -> Version | None:
        """Return the version of the last tag, and the changes since then as a post-release.

        Example: 0.5.23.post12 for twelve commits after v0.5.23, or eleven and changed files. So it
        comes after the release in the ranges of toggles, where its code may have another form.
        """
        described = self.repository.try_git(
            "describe", "--tags", "--long", "--match", "v[0-9]*", self.commit
        )
        if described.returncode:
            return None
        tag, count, _ = described.stdout.strip().rsplit("-", 2)
        changes = int(count) + bool(self.changed_files)
        try:
            version = Version(tag.removeprefix("v"))
        except InvalidVersion:
            return None
        if not changes or version.is_postrelease or version.is_prerelease:
            return version
        return Version(f"{version}.post{changes}")


def find_checkout(word: str) -> CheckoutSources:
    """Find the checkout that `PATH` or `PATH@COMMIT` names."""
    path, revision = Path(word).expanduser(), ""
    if not path.exists() and "@" in word:
        before, _, revision = word.rpartition("@")
        path = Path(before).expanduser()
    if not path.is_dir():
        raise UnfixError(
            f"there is no checkout {path}: `unfix releases add` takes a folder that git tracks, "
            "with a commit or branch if you like (~/sglang@main), a wheel, or a version"
        )
    try:
        repository = open_repository(path.resolve())
    except UnfixError as error:
        raise UnfixError(
            f"{error}, and a checkout is named by its commit; `unfix drift --from {path}` and "
            "`unfix audit --from` read sources without one"
        ) from None
    repository = GitRepository(Path(repository.run_git("rev-parse", "--show-toplevel")))
    if revision:
        return CheckoutSources(repository, repository.resolve_commit(revision), is_as_it_is=False)
    try:
        tree = source_trees.open_tree(repository.folder)
    except NotReadyError as error:
        raise UnfixError(str(error)) from None
    assert isinstance(tree, FolderSourceTree)
    packed = [tree.folder / SGLANG_PACKAGE, tree.folder / "pyproject.toml"]
    status = repository.try_git(
        "status", "--porcelain", "-z", "--no-renames", "-uall", "--", *map(str, packed)
    )
    changed = sorted(entry[3:] for entry in status.stdout.split("\0") if entry)
    return CheckoutSources(repository, repository.resolve_commit("HEAD"), True, tuple(changed))


def _write_wheel(root: Path, folder: Path, version: str, required: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{SGLANG_PACKAGE}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {SGLANG_PACKAGE}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {one}" for one in required]
    tags = "Wheel-Version: 1.0\nGenerator: unfix\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    wheel = folder / f"{SGLANG_PACKAGE}-{version}-py3-none-any.whl"
    partial = wheel.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        names = []
        for file in sorted((root / SGLANG_PACKAGE).rglob("*")):
            name = file.relative_to(root).as_posix()
            if file.is_file() and not any(part in NOT_PACKED for part in file.parts):
                _add_file(archive, name, file.read_bytes())
                names.append(name)
        for name, text in (("METADATA", "\n".join(metadata) + "\n"), ("WHEEL", tags)):
            _add_file(archive, f"{info}/{name}", text.encode())
            names.append(f"{info}/{name}")
        record = f"{info}/RECORD"
        _add_file(archive, record, "".join(f'"{one}",,\n' for one in [*names, record]).encode())
    partial.rename(wheel)


def _add_file(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file without its time, so that the same sources make the same wheel."""
    archive.writestr(zipfile.ZipInfo(name, EARLIEST_TIME), content, zipfile.ZIP_DEFLATED, 1)
