"""`audit --from` reads any package with Triton kernels; nothing found is an error."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.errors import UnfixError
from harness.runs.audit import release_files, size_limits

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
    assert main(["audit", "--from", str(checkout)]) == 2
    words = "rowpack has no Triton kernel: no function of rowpack is decorated"
    assert words in capsys.readouterr().err


def test_limits_of_another_package_name_no_setting_of_sglang() -> None:
    own, general = (
        size_limits.read_limits(path)
        for path in (size_limits.DEFAULT_LIMITS, size_limits.GENERAL_LIMITS)
    )
    assert any(each.setting.startswith("--") for each in own.quantities.values())
    assert not any(each.setting.startswith("--") for each in general.quantities.values())
    assert own.find_content("indices_ptr") is not None
    assert general.find_content("indices_ptr") is None


def test_a_finding_of_another_package_is_confirmed_like_any(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--from", str(checkout)]) == 1
    shown = capsys.readouterr()
    assert "is read as rowpack, which is not SGLang" in shown.err
    assert "1 kernel of rowpack" in shown.out
    assert "row * row_stride" in shown.out
    assert "confirmed" in shown.out
