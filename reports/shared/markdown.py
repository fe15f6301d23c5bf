"""Markdown whose words are never read as markup: in a line, a table, a block of code."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from reports.shared import formatting
from reports.shared.marks import GOOD_TONES
from reports.shared.tables import ReportTable, TableCell

MAX_BLOCK_LENGTH = 20_000  # letters of one block
MAX_TABLE_ROWS = 200  # rows of a table; the others are counted


def render_heading(title: str, green: bool, bad_word: str = "red") -> str:
    sign, word = ("✓", "green") if green else ("✗" if bad_word == "red" else "○", bad_word.upper())
    return f"## {sign} {title}: {word}"


def join_parts(parts: Iterable[str]) -> str:
    """Join paragraphs, without the empty ones."""
    return "\n\n".join(part for part in parts if part) + "\n"


def render_list(lines: Iterable[str], max_items: int | None = None) -> str:
    """Render a list of bold sentences; those beyond the limit are counted."""
    items = [f"- **{escape_text(line)}**" for line in lines]
    shown = items[:max_items]
    more = [f"\n… and {len(items) - len(shown)} more."] if len(items) > len(shown) else []
    return "\n".join([*shown, *more])


def render_report_table(table: ReportTable, max_rows: int = MAX_TABLE_ROWS) -> str:
    """Render a section with a table; '' if the table has no rows."""
    if not table.rows:
        return ""
    rows = [[render_cell(cell) for cell in row] for row in table.rows[:max_rows]]
    more = f"\n\n… and {len(table.rows) - max_rows} more." if len(table.rows) > max_rows else ""
    heads = [escape_text(head.replace("\n", " ")) for head in table.heads]
    return f"### {table.title}\n\n{render_table(heads, rows, '---')}{more}"


def render_cell(cell: TableCell | str) -> str:
    if isinstance(cell, str):
        return escape_text(cell)
    if cell.nights:
        signs = (escape_text(mark.glyph) if mark else "" for mark in cell.nights)
        return "".join(sign or "&nbsp;" for sign in signs)
    if cell.mark is not None:
        word = escape_text(cell.text)
        is_fine = cell.tone in GOOD_TONES
        return f"{cell.mark.glyph} {word}" if is_fine else f"{cell.mark.glyph} **{word}**"
    return render_code(cell.text) if cell.is_name else escape_text(cell.text)


def render_table(heads: list[str], rows: list[list[str]], align: str) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + f"{align}|" * (len(heads) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def escape_text(text: str) -> str:
    """Escape text for a line of Markdown or a table: nothing in it is read as markup."""
    line = " ".join(formatting.make_visible(text).split())
    line = html.escape(line, quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", lambda match: f"&#{ord(match[0])};", line).replace(
        "@", "@\u2060"
    )


def render_code(text: str) -> str:
    """Render a name as code, safe in a table."""
    return f"<code>{escape_text(text)}</code>"


def render_code_block(text: str, language: str = "") -> str:
    """Render a fenced block, with a fence longer than any inside."""
    shown = formatting.make_visible(text)
    if len(shown) > MAX_BLOCK_LENGTH:
        shown = shown[:MAX_BLOCK_LENGTH] + f"\n… {len(shown) - MAX_BLOCK_LENGTH} more characters"
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def render_folded(title: str, parts: Iterable[str]) -> str:
    """Render paragraphs that open with a click on their title, which is HTML."""
    shown = [f"<details><summary>{title}</summary>", *(part for part in parts if part)]
    return "\n\n".join([*shown, "</details>"])
