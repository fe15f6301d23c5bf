"""Checkouts that share `.releases` by a link have the same keys for SGLang's builds."""

from __future__ import annotations

from pathlib import Path

import pytest

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
