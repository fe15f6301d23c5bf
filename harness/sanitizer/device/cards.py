"""The card that the virtual device plays: a row of `cards.yaml`."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import UnfixError

CARD_VARIABLE = "UNFIX_VIRTUAL_CARD"  # the card's name; read by every process of a run
COUNT_VARIABLE = "UNFIX_VIRTUAL_COUNT"  # how many of them the machine has
DEFAULT_CARD = "H100"
MAX_THREADS = 1024  # of a block, on each card
GRID_LIMITS = ((1 << 31) - 1, 65535, 65535)  # blocks on each axis
BLOCK_LIMITS = (1024, 1024, 64)  # threads
_FILE = Path(__file__).parent / "cards.yaml"


@dataclass(frozen=True, slots=True)
class Card:
    """What the driver answers about one card; sizes in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    l2_cache: int

    @property
    def architecture(self) -> str:
        major, minor = self.capability
        return f"sm_{major}{minor}"


@functools.cache
def load_cards() -> dict[str, Card]:
    """Read the table of cards; once in a process, since each question about a device needs it."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load(_FILE.read_text())
    return {
        name: Card(**{**row, "capability": tuple(row["capability"])}) for name, row in rows.items()
    }


def get_card(name: str | None = None) -> Card:
    """Return a card by its name, by default the one that this process's environment names."""
    wanted = name or os.environ.get(CARD_VARIABLE) or DEFAULT_CARD
    cards = load_cards()
    if wanted not in cards:
        raise UnfixError(
            f"there is no card '{wanted}': the virtual device plays {', '.join(cards)}"
        )
    return cards[wanted]


def describe_beyond_limits(
    name: str, sides: tuple[int, ...], limits: tuple[int, ...], smallest: int = 1
) -> str:
    """Say why CUDA refuses a grid or a block; '' if it does not."""
    fits = all(smallest <= side <= most for side, most in zip(sides, limits, strict=True))
    return "" if fits else f"{name} of {sides}: at most {limits}"


def get_card_count() -> int:
    return int(os.environ.get(COUNT_VARIABLE) or 1)
