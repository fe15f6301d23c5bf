"""Every page of the site has the headings of its source, and every local link leads somewhere."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.core import paths

ROOT = paths.project_folder()
CODE = re.compile(r"^ *```.*?^ *```|^    .*?$", re.M | re.S)
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.M)
RENDERED = re.compile(r"<h([1-6]) id=.*?>(.*?)</h\1>", re.S)
LINK = re.compile(r"\]\(([^)#\s]+)")


def list_source_headings(text: str) -> list[tuple[int, str]]:
    headings = HEADING.findall(CODE.sub("", text))
    return [(len(marks), simplify_text(heading)) for marks, heading in headings]


def list_rendered_headings(page: str) -> list[tuple[int, str]]:
    article = page.partition("<article")[2].partition("</article>")[0]
    return [
        (int(level), simplify_text(heading.partition('<a class="headerlink"')[0]))
        for level, heading in RENDERED.findall(article)
    ]


def simplify_text(heading: str) -> str:
    """Return the words of a heading without the marks of Markdown or HTML."""
    words = html.unescape(re.sub(r"<[^>]+>", "", heading))
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", words).replace("`", "").strip()


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs MkDocs: pip install -e '.[dev]'")
def test_each_page_has_the_headings_of_its_source(tmp_path: Path) -> None:
    """A list item that begins with `#25015` would be one more, in large letters."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    for source in (ROOT / "docs").rglob("*.md"):
        page = tmp_path / source.relative_to(ROOT / "docs").with_suffix(".html")
        page = page.with_name("index.html") if page.name == "README.html" else page
        expected = list_source_headings(source.read_text())
        assert list_rendered_headings(page.read_text()) == expected, source


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_a_link_of_a_page_outside_of_the_site_leads_somewhere(name: str) -> None:
    for link in LINK.findall((ROOT / name).read_text()):
        assert "://" in link or (ROOT / link).exists(), link
