"""Tables in the docs that come from records or code are as these are now."""

from __future__ import annotations

import re

from bench import tables


def test_every_generated_table_is_fresh() -> None:
    """`python -m bench.tables` writes them."""
    pages = {page.name: page.read_text() for page in tables.list_pages()}
    assert [name for name, text in pages.items() if tables.write_tables(text) != text] == []


def test_every_page_of_a_finding_is_fresh() -> None:
    fresh = tables.make_finding_pages()
    assert [page.name for page, text in fresh.items() if page.read_text() != text] == []


def test_every_table_is_on_a_page_and_every_mark_ends() -> None:
    texts = [page.read_text() for page in tables.list_pages()]
    marked = [block[2] for text in texts for block in tables.BLOCK.finditer(text)]
    begun = [name for text in texts for name in re.findall(r"<!-- generated: (\S+) -->", text)]
    assert sorted(marked) == sorted(begun) == sorted(tables.TABLES)
