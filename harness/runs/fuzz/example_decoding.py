"""Whether an example still means what it meant when it was written down.

Hypothesis takes choices that no longer fit for others that do, without a word. So the arguments
are kept in words beside the choices, and have to come out the same.
"""

from __future__ import annotations

import re

from harness.runs.fuzz.messages import FailureRecord

SHAPE_MISMATCH = "shape of the test data"  # Hypothesis's words, where it does notice
ADDRESS_PATTERN = re.compile(r" at 0x[0-9a-f]+")


def describe_arguments(arguments: dict[str, object]) -> list[str]:
    """An example's arguments as people read them."""
    return [f"{name}={value!r}" for name, value in arguments.items()]


def are_same_arguments(some: list[str], others: list[str]) -> bool:
    return [ADDRESS_PATTERN.sub("", each) for each in some] == [
        ADDRESS_PATTERN.sub("", each) for each in others
    ]


def describe_changed_strategy(failure: FailureRecord, arguments_now: list[str]) -> str:
    """What a strategy that has changed makes of an example."""
    was = ", ".join(failure.arguments)
    is_now = f"is now {', '.join(arguments_now)}" if arguments_now else "is now none at all"
    return (
        f"the example of {failure.test} no longer decodes: the strategy has changed since "
        f"{failure.date}. It was {was} and {is_now}. Write it as an @example of the test, or find "
        "it again"
    )
