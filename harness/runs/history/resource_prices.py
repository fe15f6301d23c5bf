"""The cost of runs: hours of each resource, times its price if there is one."""

from __future__ import annotations

import math

import msgspec

from harness.core.errors import UnfixError

SECONDS_PER_HOUR = 3600.0


class ResourcePrices(msgspec.Struct, frozen=True):
    """The price of an hour, by resource."""

    per_hour: dict[str, float] = {}

    def compute_cost(self, resource: str, seconds: float) -> float | None:
        """Return the cost of these seconds; None without a price."""
        price = self.find_price(resource)
        return None if price is None else price * seconds / SECONDS_PER_HOUR

    def find_price(self, resource: str) -> float | None:
        """Return the price by full name or part of it: 'h200' is the price of an NVIDIA H200."""
        name = resource.lower()
        if name in self.per_hour:
            return self.per_hour[name]
        parts = [word for word in self.per_hour if word != "cpu" and word in name]
        return self.per_hour[max(parts, key=len)] if parts else None


def parse_prices(options: list[str]) -> ResourcePrices:
    """Parse options such as cpu=0.05."""
    prices: dict[str, float] = {}
    for word in options:
        name, equals, price = word.partition("=")
        try:
            value = float(price)
        except ValueError:
            value = math.nan
        if not name.strip() or not equals or not 0 <= value < math.inf:
            raise UnfixError(f"--price {word} is no price: say what an hour costs, as cpu=0.05")
        if prices.setdefault(name.strip().lower(), value) != value:
            raise UnfixError(f"--price says twice what {name.strip()} costs")
    return ResourcePrices(prices)
