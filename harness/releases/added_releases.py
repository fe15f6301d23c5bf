"""Adds releases that have no lock of ours: a version of the index, a wheel, a checkout, a commit.

Each becomes a record and, except for a version of the index, a wheel in `.releases/added/NAME`.
From then on it is a release like any other. Examples of words and names:

    0.5.22                                   0.5.22
    ~/sglang                                 g1a2b3c4d5e6f, or g1a2b3c4d5e6f+dirty
    ~/sglang@main                            gfedcba987654
    dist/sglang-0.5.24.dev3-py3-none-any.whl 0.5.24.dev3
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.core.errors import UnfixError
from harness.core.files import write_atomically
from harness.releases import checkout_wheels, installer, managed_releases
from harness.releases.installer import ReportMessage
from harness.releases.managed_releases import ADDED_RECORD, Release

OLDEST = "0.5.9"
WORDS_HINT = (
    f"a release is a version of the package index from {OLDEST} on (0.5.22), a wheel, a checkout "
    "of SGLang (~/sglang), or a commit or branch of one (~/sglang@main)"
)


@dataclass(frozen=True)
class AddedRecord:
    """What a release was added from; `contents` changes whenever its sources do."""

    origin: str
    contents: str


def find_release(word: str, device: str, report: ReportMessage) -> Release:
    """Find the release that a word names; one named by a path is added, or packed again."""
    return add_release(word, device, report) if managed_releases.is_path(word) else (
        managed_releases.get_release(word, device)
    )  # fmt: skip


def add_release(word: str, device: str, report: ReportMessage) -> Release:
    """Record a release, without its environment."""
    known = {release.name: release for release in managed_releases.list_known_releases(device)}
    if word in known:
        return known[word]
    if not managed_releases.is_path(word) and not Path(word).is_dir():
        return _add_version(word, device, report)
    path = Path(word).expanduser()
    if path.suffix == ".whl":
        return _add_wheel(path, device)
    return _add_checkout(word, device, report)


def read_record(release: Release) -> AddedRecord | None:
    """Read what a release was added from; None for one with a lock of ours."""
    try:
        return AddedRecord(**json.loads((release.added_folder / ADDED_RECORD).read_text()))
    except FileNotFoundError:
        return None


def _add_version(word: str, device: str, report: ReportMessage) -> Release:
    try:
        version = Version(word)
    except InvalidVersion:
        raise UnfixError(
            f"'{word}' is no version, and no such path is here: {WORDS_HINT}"
        ) from None
    if version < Version(OLDEST):
        raise UnfixError(f"SGLang {word} is older than {OLDEST}: {WORDS_HINT}")
    release = Release(str(version), device)
    if not release.has_sources:
        installer.fetch_release_sources(release, report)
    _write_record(release, AddedRecord("the package index", str(version)))
    return release


def _add_wheel(path: Path, device: str) -> Release:
    if not path.is_file():
        raise UnfixError(f"there is no wheel {path}")
    if not installer.is_whole_wheel(path):
        raise UnfixError(f"{path} is not a whole wheel: download or build it again")
    parts = path.name.split("-")
    if parts[0] != "sglang" or len(parts) < 5:
        raise UnfixError(f"{path.name} is no wheel of SGLang: its name would be sglang-VERSION-…")
    contents = hashlib.sha256(path.read_bytes()).hexdigest()
    name = parts[1]
    earlier = read_record(Release(name, device))
    taken = name in {one.name for one in managed_releases.list_releases()}
    if taken or (earlier is not None and earlier.contents != contents):
        name = f"{name}+whl{contents[:8]}"  # another wheel of the same version
    release = Release(name, device)
    if read_record(release) is None:
        release.added_folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, release.added_folder / path.name)
        _write_record(release, AddedRecord(f"the wheel {path.resolve()}", contents))
    return release


def _add_checkout(word: str, device: str, report: ReportMessage) -> Release:
    checkout = checkout_wheels.find_checkout(word)
    release = Release(checkout.name, device)
    record = AddedRecord(checkout.origin, checkout.digest_contents())
    known = read_record(release)
    if known is None or known.contents != record.contents or release.any_wheel is None:
        report(f"packing {checkout.origin} as SGLang {release.name}")
        shutil.rmtree(release.added_folder, ignore_errors=True)
        remark = checkout.pack(release.added_folder)
        if remark:
            report(remark)
        _write_record(release, record)
    return release


def _write_record(release: Release, record: AddedRecord) -> None:
    write_atomically(release.added_folder / ADDED_RECORD, json.dumps(asdict(record), indent=1))
