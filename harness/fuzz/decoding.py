"""Whether an example still means what it meant when it was written down.

Hypothesis takes choices that no longer fit for others that do, without a word. So the arguments
are kept in words beside the choices, and have to come out the same.
"""

from __future__ import annotations

import re

from harness.fuzz.values import Repro

NOT_THE_SHAPE = "shape of the test data"  # Hypothesis's words, where it does notice
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def words(named: dict[str, object]) -> list[str]:
    """An example's arguments as people read them."""
    return [f"{name}={value!r}" for name, value in named.items()]


def same(some: list[str], others: list[str]) -> bool:
    return [ADDRESS.sub("", each) for each in some] == [ADDRESS.sub("", each) for each in others]


def no_longer_decodes(failure: Repro, now: list[str]) -> str:
    """What a strategy that has changed makes of an example."""
    was = ", ".join(failure.arguments)
    is_now = f"is now {', '.join(now)}" if now else "is now none at all"
    return (
        f"the example of {failure.test} no longer decodes: the strategy has changed since "
        f"{failure.date}. It was {was} and {is_now}. Write it as an @example of the test, or find "
        "it again"
    )
