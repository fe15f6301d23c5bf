"""The start of a time window, from a duration or a date, and the night of a moment."""

from __future__ import annotations

import datetime
import re

from harness.core.errors import UnfixError

UNITS = {"h": "hours", "d": "days", "w": "weeks"}
NOON_OFFSET = datetime.timedelta(hours=12)
MAX_CLOCK_SKEW = datetime.timedelta(hours=1)  # difference of two machines' clocks


def parse_since(text: str, now: datetime.datetime) -> datetime.datetime:
    """Return the noon at which the window's first night begins; a window has whole nights."""
    return find_night_start(night_from_moment(_parse_moment(text, now)))


def _parse_moment(text: str, now: datetime.datetime) -> datetime.datetime:
    wrong = UnfixError(f"--since {text} is no time: say 30d, 12h, 2w or a date as 2026-11-01")
    found = re.fullmatch(r"(\d+)([hdw])", text.strip())
    try:
        if found and int(found[1]):
            return now - datetime.timedelta(**{UNITS[found[2]]: int(found[1])})
        moment = datetime.datetime.combine(
            datetime.date.fromisoformat(text.strip()), datetime.time(12), datetime.UTC
        )
    except (ValueError, OverflowError) as error:
        raise wrong from error
    if moment > now + NOON_OFFSET:
        raise UnfixError(f"--since {text} is in the future")
    return moment


def night_from_moment(moment: datetime.datetime) -> datetime.date:
    """Return the night of a moment: jobs at 23:50 and at 00:10 belong to the same one."""
    return (moment.astimezone(datetime.UTC) - NOON_OFFSET).date()


def find_night_start(night: datetime.date) -> datetime.datetime:
    return datetime.datetime.combine(night, datetime.time(12), datetime.UTC)


def parse_started(started: str | float) -> datetime.datetime | None:
    """Parse the recorded start of a run; None if it is no time."""
    try:
        if isinstance(started, int | float):
            return datetime.datetime.fromtimestamp(started, datetime.UTC)
        moment = datetime.datetime.fromisoformat(started)
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
