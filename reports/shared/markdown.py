"""Markdown whose words are never read as markup: in a line, a table, a block of code."""

from __future__ import annotations

import html
import re

from reports.shared import formatting

MAX_BLOCK_LENGTH = 20_000  # letters of one block


def render_table(heads: list[str], rows: list[list[str]], align: str) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + f"{align}|" * (len(heads) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def escape_text(text: str) -> str:
    """Text in a line of Markdown or in a table: nothing in it is read as markup."""
    line = " ".join(formatting.make_visible(text).split())
    line = html.escape(line, quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", lambda match: f"&#{ord(match[0])};", line).replace(
        "@", "@\u2060"
    )


def render_code(text: str) -> str:
    """A name in the letters of code, safe in a table."""
    return f"<code>{escape_text(text)}</code>"


def render_code_block(text: str) -> str:
    """A fenced block, with a fence longer than any inside."""
    shown = formatting.make_visible(text)
    if len(shown) > MAX_BLOCK_LENGTH:
        shown = shown[:MAX_BLOCK_LENGTH] + f"\n… {len(shown) - MAX_BLOCK_LENGTH} more characters"
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{shown}\n{fence}"
