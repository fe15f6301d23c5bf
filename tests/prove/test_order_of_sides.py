"""Which side of a guard runs first: a seed draws it, and the run stores the seed."""

from __future__ import annotations

import json

from proving import Prove


def orders_of(prove: Prove, *words: str) -> tuple[dict[str, list[str]], int]:
    """Return the order of each guard's sides by its name, and the seed that the run stores."""
    run = json.loads(prove.run("--json", "-j", "1", *words).stdout)
    assert {cell["verdict"] for cell in run["cells"]} == {"proven"}
    names = [cell["guard"].partition("::")[2] for cell in run["cells"]]
    orders = [cell["order"] for cell in run["cells"]]
    return dict(zip(names, orders, strict=True)), run["settings"]["seed"]


def test_the_order_of_the_sides_is_drawn_by_a_seed_that_the_run_stores(prove: Prove) -> None:
    """It depends on the seed and the guard, not on what else is run."""
    guard = "@guards('toy-plain')\ndef test_{}():\n    assert not buggy()\n"
    prove.write("".join(map(guard.format, range(6))))
    orders, stored = orders_of(prove, "--seed", "3")
    assert stored == 3
    assert len(orders) == 6
    assert {tuple(sorted(set(order))) for order in orders.values()} == {("buggy", "fixed")}
    assert len({tuple(order) for order in orders.values()}) > 2
    assert {order[0] for order in orders.values()} == {"buggy", "fixed"}
    again, _ = orders_of(prove, "--seed", "3", "-k", "test_5")
    assert again == {"test_5": orders["test_5"]}
    assert "seed 3" in prove.again("report").stdout
    assert orders_of(prove, "--seed", "4", "-k", "test_5")[0] != again
    seeds = [orders_of(prove, "-k", "test_5")[1] for _ in range(2)]
    assert len({3, *seeds}) == 3  # a new one each time
