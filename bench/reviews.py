"""Reviews of real changes of SGLang, each taken from the difference of two wheels.

    python -m bench.reviews FOLDER [--record FILE] [NAME…]

A checkout is built in FOLDER from the sources of the wheels, one commit and tag for each, and a
branch for each change: the files of one fix or feature, as the later wheel has them. Each branch is
reviewed by `unfix pr`; a review that is in FOLDER already is not run again. `review_cases.yaml` has
the changes, and for each the judgement of a person who read the report beside the diff: what it
says rightly, and what it does not say. The record repeats it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench import recording
from harness.core import paths
from harness.core.git_repository import GitRepository, strip_git_variables
from harness.releases import managed_releases, pins
from harness.releases.managed_releases import Release

OLDER, NEWER = "0.5.22", "0.5.23"
CASES = Path(__file__).parent / "review_cases.yaml"
AUTHOR = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")


class WheelChange(msgspec.Struct, forbid_unknown_fields=True):
    """The files of one fix or feature, what it is by its diff, and a judgement of its review."""

    name: str
    kind: str
    about: str
    files: list[str]
    judgement: str = "not read"


def read_changes() -> list[WheelChange]:
    return msgspec.convert(yaml.safe_load(CASES.read_text()), list[WheelChange])


def main() -> None:
    parser = recording.make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    changes = read_changes()
    checkout = build_checkout(folder / "sglang", changes)
    chosen = [one for one in changes if not arguments.names or one.name in arguments.names]
    results = [review_change(checkout, folder, change) for change in chosen]
    recording.record_result({"older": OLDER, "newer": NEWER, "reviews": results}, arguments.record)


def build_checkout(folder: Path, changes: list[WheelChange]) -> GitRepository:
    """Build a checkout with a commit for each wheel, and a branch for each change."""
    repository = GitRepository(folder)
    if not (folder / ".git").exists():
        folder.mkdir(parents=True)
        run_git(repository, "init", "-q", "-b", "main")
        for version in (OLDER, NEWER):
            commit_release(repository, managed_releases.get_release(version))
    for change in changes:
        if repository.try_git("rev-parse", "--verify", "-q", change.name).returncode:
            run_git(repository, "checkout", "-q", "-B", change.name, f"v{OLDER}")
            files = [f"python/sglang/{file}" for file in change.files]
            run_git(repository, "checkout", "-q", f"v{NEWER}", "--", *files)
            run_git(repository, "commit", "-q", "-m", change.about)
            run_git(repository, "checkout", "-q", "main")
    return repository


def commit_release(repository: GitRepository, release: Release) -> None:
    """Commit the sources of a release's wheel, with its tag."""
    write_sources(release, repository.folder / "python")
    commit_all(repository, f"SGLang {release.name}")
    run_git(repository, "tag", f"v{release.name}")


def commit_all(repository: GitRepository, subject: str) -> None:
    run_git(repository, "add", "-A")
    run_git(repository, "commit", "-q", "-m", subject)


def write_sources(release: Release, folder: Path) -> None:
    """Write a wheel's sources and its pins as a checkout has them."""
    wheel = release.any_wheel
    assert wheel is not None, f"`unfix releases add --sources {release.name}` fetches its wheel"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        names = [one for one in archive.namelist() if one.startswith("sglang/")]
        built = (".so", "/_version.py")  # no checkout has them
        archive.extractall(folder, [one for one in names if not one.endswith(built)])
    required = ",\n".join(f"  {str(one)!r}" for one in pins.read_wheel_requirements(wheel))
    project = (
        f'[project]\nname = "sglang"\ndynamic = ["version"]\ndependencies = [\n{required}\n]\n'
    )
    (folder / "pyproject.toml").write_text(project)


def run_git(repository: GitRepository, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(repository.folder), *AUTHOR, *words],
        check=True,
        env=strip_git_variables(),
    )


def review_change(checkout: GitRepository, folder: Path, change: WheelChange) -> dict[str, Any]:
    record = folder / f"{change.name}.json"
    if not record.exists():
        ends = f"v{OLDER}..{change.name}"
        words = ["pr", str(checkout.folder), ends, "--record", str(record)]
        words += ["--markdown", str(record.with_suffix(".md"))]
        done = subprocess.run([paths.project_folder() / "unfix", *words], stdout=subprocess.DEVNULL)
        assert done.returncode in (0, 1), done.returncode
    report = json.loads(record.read_text())
    for name in ("machine", "settings", "checkout", "runs", "command"):
        report.pop(name, None)
    about = {"name": change.name, "kind": change.kind, "about": change.about}
    return {**about, "judgement": change.judgement, "review": report}


if __name__ == "__main__":
    sys.exit(main())
