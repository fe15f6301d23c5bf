"""What time costs: hours of what was used, and money where somebody said a price."""

from __future__ import annotations

import math

import msgspec

from harness.core.errors import UnfixError

SECONDS_PER_HOUR = 3600.0


class ResourcePrices(msgspec.Struct, frozen=True):
    """By what is paid for, an hour of it."""

    per_hour: dict[str, float] = {}

    def compute_cost(self, resource: str, seconds: float) -> float | None:
        """None: nobody said what that costs."""
        price = self.find_price(resource)
        return None if price is None else price * seconds / SECONDS_PER_HOUR

    def find_price(self, resource: str) -> float | None:
        """'h200' is the price of an NVIDIA H200, and of whatever else has that in its name."""
        name = resource.lower()
        if name in self.per_hour:
            return self.per_hour[name]
        found = [word for word in self.per_hour if word != "cpu" and word in name]
        return self.per_hour[max(found, key=len)] if found else None


def parse_prices(options: list[str]) -> ResourcePrices:
    """From words like cpu=0.05."""
    found: dict[str, float] = {}
    for word in options:
        name, equals, price = word.partition("=")
        try:
            value = float(price)
        except ValueError:
            value = math.nan
        if not name.strip() or not equals or not 0 <= value < math.inf:
            raise UnfixError(f"--price {word} is no price: say what an hour costs, as cpu=0.05")
        if found.setdefault(name.strip().lower(), value) != value:
            raise UnfixError(f"--price says twice what {name.strip()} costs")
    return ResourcePrices(found)
