"""Text as every report shows it: dates, visible control characters, shortened texts."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence


def format_time(started: str) -> str:
    """Return '2026-11-21 19:00:00 UTC'; a text that is no date stays as it is."""
    try:
        moment = datetime.datetime.fromisoformat(started)
    except ValueError:
        return started
    name = "UTC" if not moment.utcoffset() else moment.strftime("%z")
    return f"{moment:%Y-%m-%d %H:%M:%S} {name}"


TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def make_visible(text: str) -> str:
    """Replace each invisible character by a sign, and drop terminal colours."""
    text = TERMINAL_COLOURS.sub("", text).replace("\r\n", "\n")
    return INVISIBLE_CHARACTERS.sub(lambda match: escape_character(match[0]), text)


def escape_character(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


MAX_NAME_LENGTH = 60
MIN_OMITTED_LETTERS = 40  # the sign for an omission would take as many


def to_single_line(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Put a name or a reason in one line."""
    line = " ".join(text.split())
    slack = 0 if len(line) > max_length + MIN_OMITTED_LETTERS else MIN_OMITTED_LETTERS
    return shorten_text(line, max_length + slack)


def shorten_text(text: str, max_length: int) -> str:
    """Make a text visible, and drop its middle if it is long."""
    shown = make_visible(text)
    if len(shown) <= max_length:
        return shown
    left = len(shown) - max_length
    return f"{shown[: max_length // 2]} … {left} letters … {shown[len(shown) - max_length // 2 :]}"


def shorten_path(file: str) -> str:
    """Shorten a path to the part from the package on."""
    parts = file.replace("!", "/").split("/")
    return "/".join(parts[parts.index("sglang") :]) if "sglang" in parts else file


def link_source(release: str, file: str, line: int) -> str:
    """Link a line of a released SGLang, by its path from the package on; '' for other sources."""
    if not re.fullmatch(r"\d+(\.\d+)+", release) or not file.startswith("sglang/"):
        return ""
    return f"https://github.com/sgl-project/sglang/blob/v{release}/python/{file}#L{line}"


def summarize_toggles(ids: Sequence[str], max_count: int = 3) -> str:
    """Return '27460, 27338', or '94 toggles' if there are more than a row can name."""
    return ", ".join(ids) if len(ids) <= max_count else f"{len(ids)} toggles"


MAX_OUTPUT_LENGTH = 60_000  # letters of a traceback or an output: a page must open fast


def truncate_start(text: str) -> str:
    """Return the end of a text, where a traceback has its message."""
    shown = make_visible(text)
    if len(shown) <= MAX_OUTPUT_LENGTH:
        return shown
    more = len(shown) - MAX_OUTPUT_LENGTH
    return f"… {more} more characters before this\n{shown[-MAX_OUTPUT_LENGTH:]}"
