"""Parts of a pack: each has at most its size, and nothing is installed unless all is there."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UnfixError
from harness.releases import pack_installer, wheel_parts
from harness.releases.pack_installer import PackManifest

PART = 40_000
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def make_wheel(folder: Path, name: str, size: int = 100, requires: str = "") -> Path:
    """Make a wheel that pip installs; its contents are not compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    required = f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-1.0.dist-info"
    files: dict[str, str | bytes] = {
        f"{name}/__init__.py": f"SIZE = {size}\n",
        f"{name}/data": (bytes(one * one % 251 for one in range(251)) * (size // 251 + 1))[:size],
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{required}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, contents in files.items():  # with one date, so that the digest is the same
            archive.writestr(zipfile.ZipInfo(file), contents)
    return wheel


def make_manifest(left_out: tuple[str, ...] = ()) -> PackManifest:
    return PackManifest("a made-up server", PYTHON, platform.machine(), True, left_out, ())


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """The folder of a pack of four wheels, one of which is larger than two parts."""
    source, folder = tmp_path / "fetched", tmp_path / "pack"
    for name, size in {"unfix_small": 100, "unfix_middle": 25_000, "unfix_other": 20_000}.items():
        make_wheel(source, name, size)
    make_wheel(source, "unfix_large", 90_000, "unfix-small")
    wheel_parts.write_parts(source, folder, PART, make_manifest())
    return folder


def read_manifest(pack: Path) -> dict[str, Any]:
    return dict(json.loads((pack / "manifest.json").read_text()))


def install_pack(pack: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(pack / "install.py"), *words]
    return subprocess.run(command, capture_output=True, text=True)


def list_files(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_no_part_exceeds_its_size_and_none_could_be_spared(pack: Path, tmp_path: Path) -> None:
    manifest = read_manifest(pack)
    sizes: dict[str, int] = {}
    for name, size in list_files(pack).items():
        if "/" in name:
            sizes[name.split("/")[0]] = sizes.get(name.split("/")[0], 0) + size
    assert all(size <= PART for size in sizes.values())
    assert sorted(sizes) == ["1", "2", "3", "4"]
    assert sum(sizes.values()) == sum(wheel["size"] for wheel in manifest["wheels"])
    pieces = {one["name"].split("-")[0]: len(one["pieces"]) for one in manifest["wheels"]}
    assert pieces == {"unfix_large": 3, "unfix_middle": 1, "unfix_other": 1, "unfix_small": 1}
    assert not list((tmp_path / "fetched").iterdir())


@pytest.mark.parametrize("is_flat", [False, True])
def test_the_parts_are_joined_as_they_are_or_in_one_folder(
    pack: Path, tmp_path: Path, is_flat: bool
) -> None:
    manifest = read_manifest(pack)
    if is_flat:
        for part in [path for path in pack.iterdir() if path.is_dir()]:
            for file in part.iterdir():
                file.rename(pack / file.name)
            part.rmdir()
    done = install_pack(pack, "--join", str(tmp_path / "wheels"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        f"export UNFIX_WHEELS={tmp_path / 'wheels'}",
    )
    joined = {one.name: pack_installer.compute_digest(one) for one in tmp_path.glob("wheels/*")}
    assert joined == {wheel["name"]: wheel["sha256"] for wheel in manifest["wheels"]}


def test_a_missing_piece_is_named_and_nothing_is_installed(pack: Path, tmp_path: Path) -> None:
    piece = next(pack.glob("*/unfix_large-*.piece002"))
    piece.unlink()
    for word in ("--join", "--target"):
        done = install_pack(pack, word, str(tmp_path / "out"))
        assert done.returncode == 3
        assert piece.name in done.stderr
        assert not (tmp_path / "out").exists()


def test_a_damaged_or_a_short_piece_is_named(pack: Path, tmp_path: Path) -> None:
    damaged = next(pack.glob("*/unfix_large-*.piece001"))
    short = next(pack.glob("*/unfix_middle-*"))
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    short.write_bytes(short.read_bytes()[:-1])
    done = install_pack(pack, "--join", str(tmp_path / "out"))
    assert done.returncode == 3
    assert f"{damaged.name} is damaged" in done.stderr
    assert f"{short.name} has {short.stat().st_size} bytes of" in done.stderr


def test_a_target_folder_has_the_packages_and_the_folders_of_path_files(
    pack: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    for name in ("inner", "other"):
        site.joinpath(name).mkdir(parents=True)
    (site / "some.pth").write_text("# a comment\ninner\nabsent\n")
    (site / "more.pth").write_text(f"import sys; sys.path.insert(0, {str(site / 'other')!r})\n")
    done = install_pack(pack, "--target", str(site))
    assert done.returncode == 0, done.stderr
    folders = f"{site}:{site / 'other'}:{site / 'inner'}"
    assert f"export PYTHONPATH={folders}" in done.stdout.splitlines()
    assert (site / "unfix_large" / "data").stat().st_size == 90_000
    assert not list(site.glob(".wheels-*"))


def test_another_python_and_a_pack_of_releases_are_refused(pack: Path, tmp_path: Path) -> None:
    manifest = read_manifest(pack)
    for change, message in (
        ({"python": "3.1"}, "these wheels are for Python 3.1, this is"),
        ({"machine": "vax"}, "these wheels are for vax"),
        ({"is_server": False}, "--join FOLDER instead"),
    ):
        (pack / "manifest.json").write_text(json.dumps(manifest | change))
        done = install_pack(pack, "--target", str(tmp_path / "site"))
        assert (done.returncode, message in done.stderr) == (3, True), change
    (pack / "manifest.json").unlink()
    assert "manifest.json is missing" in install_pack(pack, "--join", str(tmp_path / "out")).stderr


def test_a_size_has_a_unit_and_room_for_something() -> None:
    assert [wheel_parts.parse_size(text) for text in ("60MB", "1.5 GB", "2MiB")] == [
        60_000_000,
        1_500_000_000,
        2_097_152,
    ]
    for text in ("60", "MB", "60QB", "-1MB", "10kB", "1KB"):
        with pytest.raises(UnfixError):
            wheel_parts.parse_size(text)
