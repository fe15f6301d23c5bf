"""`audit --from` reads any package with Triton kernels; nothing found is an error."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.errors import UnfixError
from harness.releases.managed_releases import Release
from harness.runs.audit import release_files

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def scatter_rows(out, value, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row * row_stride + tl.arange(0, BLOCK), value)


def scatter(out, value):
    scatter_rows[(out.shape[0],)](out, value, out.stride(0), BLOCK=64)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout with a package below src, its tests, and a package without kernels."""
    for name, text in (
        ("src/rowpack/__init__.py", ""),
        ("src/rowpack/ops/rows.py", KERNEL),
        ("src/plain/__init__.py", "def nothing(): pass\n"),
        ("tests/test_rows.py", "import triton\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_packages_of_a_checkout_are_found_wherever_they_are(checkout: Path) -> None:
    package = checkout / "src" / "rowpack"
    for path in (checkout, checkout / "src", package, package / "ops"):
        (package / "ops" / "__init__.py").touch()
        location = release_files.find_location(path)
        assert location == checkout / "src"
        assert release_files.find_packages(location) == ("rowpack",)
    assert [name for name, _ in release_files.iterate_sources(checkout / "src")] == [
        "rowpack/__init__.py",
        "rowpack/ops/__init__.py",
        "rowpack/ops/rows.py",
    ]


def test_sglang_is_read_alone_where_it_is(checkout: Path) -> None:
    folder = checkout / "src" / "sglang"
    folder.mkdir()
    (folder / "__init__.py").write_text("import triton\n")
    release_files.find_packages.cache_clear()
    assert release_files.find_packages(checkout / "src") == ("sglang",)


def test_a_wheel_is_read_as_it_is(checkout: Path) -> None:
    wheel = checkout / "rowpack-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("rowpack/ops/rows.py", KERNEL)
        packed.writestr("rowpack-1.0.dist-info/METADATA", "Name: rowpack\n")
    assert release_files.find_packages(wheel) == ("rowpack",)


def test_nothing_found_is_a_wrong_call(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnfixError, match="there is no folder or wheel"):
        release_files.find_location(checkout / "missing")
    (checkout / "src" / "rowpack" / "ops" / "rows.py").write_text("import triton\n")
    launches = write_launch(checkout / "launches", rows=8, columns=4096)
    assert main(["audit", "--from", str(checkout), "--launches", str(launches)]) == 2
    words = "rowpack has no Triton kernel: no function of rowpack is decorated"
    assert words in capsys.readouterr().err


def write_launch(file: Path, rows: int, columns: int, stride: int = 0) -> Path:
    """Write what `UNFIX_LAUNCHES` records of a launch of `scatter`."""
    mode = {
        "kernel": "rowpack.ops.rows:scatter_rows",
        "kinds": {"out": "*fp32", "value": "fp32", "row_stride": "i32", "BLOCK": "constexpr"},
        "constants": {"BLOCK": 64},
        "grid": [rows, 1, 1],
        "sizes": {
            "out": [[rows, columns], [columns, 1], 4],
            "row_stride": stride or columns,
            "BLOCK": 64,
        },
    }
    file.write_text(json.dumps(mode) + "\n")
    return file


def test_a_launch_of_another_package_grows_to_its_smallest_overflow(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = write_launch(checkout / "launches", rows=8, columns=4096)
    assert main(["audit", "--from", str(checkout), "--launches", str(launches), "--json"]) == 1
    shown = capsys.readouterr()
    assert "is read as rowpack, which is not SGLang" in shown.err
    [kernel] = json.loads(shown.out)["kernels"]
    [finding] = kernel["findings"]
    assert finding["text"].startswith("tl.store(out + row * row_stride")
    assert (finding["grows"], finding["threshold"]) == ("rows of out", 2**31 // 4096 + 1)
    assert (finding["confirmed"], finding["model"]) == ("confirmed", "its suite")


@pytest.mark.parametrize(
    ("rows", "columns", "stride"),
    [(64, 4096, 4096), (8, 8, 8), (8, 4096, 2)],
    ids=["the rows may be the block", "a square", "the memory of a card ends first"],
)
def test_nothing_is_guessed_of_another_package(
    checkout: Path, capsys: pytest.CaptureFixture[str], rows: int, columns: int, stride: int
) -> None:
    launches = write_launch(checkout / "launches", rows, columns, stride)
    main(["audit", "--from", str(checkout), "--launches", str(launches), "--json"])
    assert json.loads(capsys.readouterr().out)["kernels"][0]["findings"] == []


def test_another_package_is_audited_by_its_own_launches_and_python(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["audit", "--from", str(checkout)]) == 2
    assert "UNFIX_LAUNCHES=launches python -m pytest --sanitize" in capsys.readouterr().err
    monkeypatch.setattr(Release, "is_current", lambda self: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    launches = write_launch(checkout / "launches", rows=8, columns=4096)
    assert main(["audit", "--from", str(checkout), "--launches", str(launches)]) != 0
    assert "needs torch and Triton" in capsys.readouterr().err  # and SGLang is not installed
