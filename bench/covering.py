"""How few cells cover a matrix, and in what time: beside published sizes and two libraries.

    python -m bench.covering [--record FILE]

The published sizes are those of the table of tools at pairwise.org/efficiency.html, which was put
together from the tools' own papers and authors; the best of its 14 rows counts. TCAS stands for its
shape alone (2^7 3^2 4 10^2), whose 100 pairs of the two largest axes are a bound that is reached.
Where nothing is published (the matrices of this project, and twelve axes as a server has them) the
best known tool is the better of covertable and allpairspy, each run here on the same model.
Every size counts only if every tuple that is allowed is there, which `count` finds from the rows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import combinations
from typing import Any, NamedTuple

from bench.recording import make_parser, record_result
from harness.matrices import reader
from harness.runs.matrix import axis_checks, constraint_rules
from harness.runs.matrix.covering import covering_array, value_tuples
from harness.runs.matrix.covering.row_space import RowRule, RowSpace, ValueRow

ALLOWED = 1.15
SECONDS = {2: 5.0, 3: 60.0}
MOST_FOR_GREEDY = 5_000  # tuples; with more, covertable's default takes over a minute


class Model(NamedTuple):
    name: str
    space: RowSpace
    strength: int
    published: dict[str, int]


TOOLS = (
    "AETG IPO TConfig CTS Jenny TestCover DDA AllPairs PICT EXACT IPO-s ecFeed JCUnit CoverTable"
).split()
TABLE = {
    "3^4": ([3] * 4, "9 9 9 9 11 9 ? 9 9 9 9 10 10 9"),
    "3^13": ([3] * 13, "15 17 15 15 18 15 18 17 18 15 17 19 23 17"),
    "4^15 3^17 2^29": (
        [4] * 15 + [3] * 17 + [2] * 29,
        "41 34 40 39 38 29 35 34 37 ? 32 37 49 34",
    ),
    "4^1 3^39 2^35": (
        [4] + [3] * 39 + [2] * 35,
        "28 26 30 29 28 21 27 26 27 21 23 28 33 26",
    ),
    "2^100": ([2] * 100, "10 15 14 10 16 10 15 14 15 10 10 16 18 12"),
    "10^20": ([10] * 20, "180 212 231 210 193 181 201 197 210 ? 220 203 245 195"),
}


def list_models() -> list[Model]:
    found = []
    for name, (sizes, row) in TABLE.items():
        results = {tool: int(n) for tool, n in zip(TOOLS, row.split(), strict=True) if n != "?"}
        found.append(Model(name, RowSpace(sizes), 2, results))
    tcas = RowSpace([2] * 7 + [3] * 2 + [4] + [10] * 2)
    found.append(Model("TCAS' shape", tcas, 2, {"the bound": 100}))
    for name in ("cpu", "h200", "fleet"):
        _, matrix = axis_checks.read_matrix(reader.find_matrix_file(name))
        found.append(
            Model(f"{name}.yaml, pairs", constraint_rules.compile_constraints(matrix), 2, {})
        )
    serving = make_server_space()
    found.append(Model("12 axes, 8 rules, pairs", serving, 2, {}))
    found.append(Model("12 axes, pairs", serving.with_rules([]), 2, {}))
    found.append(Model("12 axes, 8 rules, triples", serving, 3, {}))
    found.append(Model("12 axes, triples", serving.with_rules([]), 3, {}))
    return found


def make_server_space() -> RowSpace:
    """Return twelve axes of two to six values, with eight rules drawn from a seed."""
    generator = random.Random(0)
    plain = RowSpace([4, 3, 6, 5, 2, 4, 5, 3, 3, 2, 2, 3])
    rules = []
    for number in range(8):
        axes = sorted(generator.sample(range(12), 2 if number < 6 else 3))
        masks = [1 << generator.choice(plain.list_values(axis)) for axis in axes]
        masks[0] |= 1 << generator.choice(plain.list_values(axes[0]))
        rules.append(RowRule(tuple(masks), tuple(axes), number))
    return plain.with_rules(rules)


def plan_rows(model: Model) -> list[ValueRow]:
    groups = [(list(model.space.axes), model.strength)]
    return covering_array.build_covering_rows(model.space, groups, [], 0).rows


def to_covertable_condition(
    masks: Sequence[int], axes: Sequence[int], space: RowSpace
) -> dict[str, Any]:
    outside = [
        {
            "operator": "in",
            "left": axis,
            "values": [value for value in space.list_values(axis) if not mask >> value & 1],
        }
        for mask, axis in zip(masks, axes, strict=True)
    ]
    return {"operator": "or", "conditions": outside}


def by_covertable(criterion: str) -> Callable[[Model], list[ValueRow]]:
    def rows(model: Model) -> list[ValueRow]:
        from covertable import criteria, make

        space = model.space
        conditions = [to_covertable_condition(r.masks, r.axes, space) for r in space.rules]
        found: list[ValueRow] = make(
            [list(space.list_values(axis)) for axis in space.axes],
            strength=model.strength,
            criterion=getattr(criteria, criterion),
            constraints=conditions,
        )
        return found

    return rows


def by_allpairspy(model: Model) -> list[ValueRow]:
    from allpairspy import AllPairs

    def possible(row: ValueRow) -> bool:
        inside = {model.space.axis_of[value]: value for value in row}
        return not any(
            all(axis in inside and mask >> inside[axis] & 1 for mask, axis in parts)
            for parts in rules
        )

    rules = [list(zip(r.masks, r.axes, strict=True)) for r in model.space.rules]
    values = [list(model.space.list_values(axis)) for axis in model.space.axes]
    return [list(row) for row in AllPairs(values, filter_func=possible, n=model.strength)]


def measure_rows(model: Model, make: Callable[[Model], list[ValueRow]]) -> dict[str, Any]:
    wall, processor = time.perf_counter(), time.process_time()
    rows = make(model)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    counted = covering_array.count_group_tuples(
        model.space, list(model.space.axes), model.strength, rows
    )
    all_allowed = all(model.space.is_allowed(sum(1 << value for value in row)) for row in rows)
    return {
        "cells": len(rows),
        "seconds": round(wall, 2),
        "processor seconds": round(processor, 2),
        "complete": counted.covered == counted.allowed and all_allowed,
        "uncovered": counted.allowed - counted.covered,
    }


def count_lower_bound(model: Model) -> int:
    sets = list(combinations(model.space.axes, model.strength))
    allowed, _ = value_tuples.split_possible_tuples(model.space, sets, [], random.Random(0))
    return covering_array.count_fewest_rows(allowed, model.space)


def side_by_side(model: Model) -> dict[str, Any]:
    tuple_count = value_tuples.count_tuples(
        model.space, list(combinations(model.space.axes, model.strength))
    )
    result: dict[str, Any] = {
        "model": model.name,
        "tuples": tuple_count,
        "no fewer can do": count_lower_bound(model),
        "unfix": measure_rows(model, plan_rows),
        "covertable, simple": measure_rows(model, by_covertable("simple")),
    }
    if tuple_count <= MOST_FOR_GREEDY:
        result["covertable, greedy"] = measure_rows(model, by_covertable("greedy"))
    if model.strength == 2:
        result["allpairspy"] = measure_rows(model, by_allpairspy)
    libraries = {
        name: one["cells"]
        for name, one in result.items()
        if name.startswith(("covertable", "allpairspy")) and one["complete"]
    }
    known = libraries | model.published
    best = min(known, key=lambda name: known[name])
    mine = result["unfix"]
    return result | {
        "published": model.published,
        "best": f"{known[best]} ({best})",
        "times the best": round(mine["cells"] / known[best], 3),
        "holds": mine["complete"]
        and mine["cells"] <= ALLOWED * known[best]
        and mine["processor seconds"] <= SECONDS[model.strength],
    }


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    results = []
    for model in list_models():
        result = side_by_side(model)
        results.append(result)
        cell_counts = {
            k: v["cells"] for k, v in result.items() if isinstance(v, dict) and "cells" in v
        }
        print(model.name, cell_counts, result["best"], result["unfix"]["seconds"], flush=True)
    result = {
        "source of the published sizes": "pairwise.org/efficiency.html",
        "allowed": {"times the best": ALLOWED, "processor seconds by strength": SECONDS},
        "versions": {name: version(name) for name in ("covertable", "allpairspy")},
        "holds": all(result["holds"] for result in results),
        "models": results,
    }
    record_result(result, arguments.record, say=False)
    print("holds" if result["holds"] else "DOES NOT HOLD")
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
