"""No build and no message of one depends on where a checkout keeps its builds."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from fixtures.cuda_kernels import fail_on_refusal
from harness.core import paths
from harness.kernels.cuda.jit_loader import add_linked_roots


def normalize(text: str, roots: tuple[tuple[str, Path], ...]) -> str:
    """Replace the roots in a build file, as SGLang does."""
    for token, root in roots:
        text = text.replace(str(root), f"<{token}>")
    return text


def test_a_link_to_the_releases_is_no_part_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit = tmp_path / "main" / ".releases" / "cuda-toolkit"
    toolkit.mkdir(parents=True)
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / ".releases").symlink_to(tmp_path / "main" / ".releases")
    roots = [("toolkit", toolkit), ("sys", Path("/usr"))]
    texts = []
    for name in ("main", "clone"):
        monkeypatch.setattr(
            paths, "releases_folder", lambda name=name: tmp_path / name / ".releases"
        )
        nvcc = tmp_path / name / ".releases" / "cuda-toolkit" / "bin" / "nvcc"
        texts.append(normalize(f"command = {nvcc} -I/usr/include", add_linked_roots(roots)))
    assert texts == ["command = <toolkit>/bin/nvcc -I<sys>/include"] * 2


def test_a_refusal_by_the_host_code_names_its_source_from_the_package_on() -> None:
    def refuse() -> None:
        raise RuntimeError("Failed at /a/cuda-builds/sources/0a1b/sglang/b/c.cuh:499 in plan; /d/e")

    with pytest.raises(AssertionError) as refusal:
        fail_on_refusal(refuse)()
    words = "the host code refuses the call: Failed at sglang/b/c.cuh:499 in plan; /d/e"
    assert str(refusal.value) == words
    assert "0a1b" not in "".join(traceback.format_exception(refusal.value))
