"""One kernel's verdict: proven for all launches, or the smallest launch that wraps.

Numbers of the host are known by quantities of the limits file. First every quantity is a range from
one to its largest: what stays in its type there is safe. What does not is looked for at single
launches, of each model's shape, and the load that it takes is found by halving.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection, Mapping
from dataclasses import replace

from harness.audit.case import AXES, Case, Place, axis_of, place_of
from harness.audit.conditions import Wrap
from harness.audit.expressions import words
from harness.audit.findings import Finding, Reach
from harness.audit.limits import Model
from harness.audit.ranges import Ranges
from harness.audit.shape import Shape
from harness.kernels.graph import Operation, Value


def examined(
    case: Case, module: str, lines: Collection[str] | None = None
) -> tuple[list[tuple[Finding, dict[str, int]]], set[str]]:
    """The findings, each with the load that it is seen at, and why something cannot be told.

    `lines`: no others are looked at, by their text.
    """
    reasons: set[str] = set()
    suspects = case.wraps(case.largest(), ranged=True)
    if not suspects:
        return [], reasons
    certain = {place_of(one.operation) for one in case.wraps(case.largest()) if one.known}
    leading = case.leads(case.largest())
    findings: list[tuple[Finding, dict[str, int]]] = []
    for place in sorted(
        {place_of(one.operation) for one in suspects}, key=lambda one: (one.file, one.line)
    ):
        if lines is not None and " ".join(_text(place).split()) not in lines:
            continue
        here = [one for one in suspects if place_of(one.operation) == place]
        if place in certain:
            found = _smallest(case, module, place)
            if found is not None and (sides := _of_nobody(case, found[0])):
                reasons.add(f"wraps with sides that no model is known to have: {sides}")
                continue
            if found is not None:
                findings.append(found)
                continue
        if place not in leading:
            continue  # what wraps there has wrapped before, and is told there
        why = sorted({reason for one in here for reason in one.range.why})
        reasons |= set(why[:2]) or {"ranges that are too coarse"}
    return findings, reasons


def _of_nobody(case: Case, found: Finding) -> str:
    """Sides of tensors that no name says anything of, grown beyond every model's shape."""
    if not found.model and ".shape[" in found.shape:
        return found.shape
    grown = f"{found.grows} = {found.value:,}"
    side = ".shape[" in found.grows and not case.limits.quantities[found.quantity].size
    return grown if side else ""


def _smallest(case: Case, module: str, place: Place) -> tuple[Finding, dict[str, int]] | None:
    """The least load at which this line wraps, of the model that comes to it first."""
    found: list[tuple[float, str, int, dict[str, int], str]] = []
    reaches = []
    known: dict[tuple[int, ...], tuple[str, int, dict[str, int]] | None] = {}
    for model in case.limits.models:
        shape = case.usual() | {
            name: value
            for name, value in model.values.items()
            if name in case.used and name not in case.sizes
        }
        key = (*shape.values(), _most(case, "context", model) if "context" in case.sizes else 0)
        if key not in known:
            known[key] = _threshold(case, shape, place, model)
        best = known[key]
        reaches.append(Reach(model.name, best[1] if best else 0))
        if best is not None:
            found.append((best[1] / _most(case, best[0], model), *best, model.name))
    if not found:
        best = _threshold(case, case.largest(), place, None)
        if best is None:
            return None
        found.append((1.0, *best, ""))
    _, name, threshold, at, model_name = min(found, key=lambda one: one[0])
    wrap = case.wraps_at(at, place)
    assert wrap is not None
    made = _finding(case, module, place, wrap, at, name, threshold, model_name, tuple(reaches))
    return made, at


def _most(case: Case, name: str, model: Model | None) -> int:
    largest = case.limits.quantities[name].largest
    if model is not None and name == "context":
        return min(largest, model.values.get("context", largest))
    return largest


def _threshold(
    case: Case, shape: dict[str, int], place: Place, model: Model | None
) -> tuple[str, int, dict[str, int]] | None:
    """What has to grow, from where on, and what else there is, as usual or as little as can be."""
    best: tuple[float, str, int, dict[str, int]] | None = None
    for name in case.sizes or case.used:
        most = _most(case, name, model)
        for others in (shape, shape | dict.fromkeys(case.sizes, 1)):
            if case.wraps_at({**others, name: most}, place) is None:
                continue
            if case.wraps_at({**others, name: 1}, place) is not None:
                continue  # it is something else that grows
            low, high = 1, most
            while high - low > 1:
                middle = (low + high) // 2
                if case.wraps_at({**others, name: middle}, place) is None:
                    low = middle
                else:
                    high = middle
            first = {**others, name: high}
            if case.wraps_at(first, place, own=True) is None:
                break  # what it is made of wraps before
            if best is None or high / most < best[0]:
                best = (high / most, name, high, first)
            break
    return None if best is None else best[1:]


def _finding(
    case: Case,
    module: str,
    place: Place,
    wrap: Wrap,
    at: Mapping[str, int],
    name: str,
    threshold: int,
    model: str,
    reaches: tuple[Reach, ...],
) -> Finding:
    cone = _cone(case.reading, wrap.operation)
    near, grows, value_there = [], "", threshold
    places = {value: value.name for value in case.graph.parameters}
    for value in sorted(cone, key=lambda one: one.number):
        parameter = case.named.get(places.get(value, ""))
        if parameter is None or parameter.kind == "constexpr" or parameter.is_pointer:
            continue
        text = words(parameter.expression)
        used = case.quantities_of(parameter.expression, parameter.name)
        if name in used and not grows:
            grows, value_there = text, case.number(parameter, at)
        elif used and name not in used:
            near.append(f"{text} = {case.value(parameter.expression, parameter.name, at).high:,}")
    for value in cone:
        maker = case.reading.makers.get(value)
        if grows or maker is None:
            continue
        if maker.name == "tt.get_program_id":
            axis = next(axis for axis in range(3) if AXES[axis] in axis_of(maker))
            side = case.side(axis)
            if name in case.quantities_of(side, case.programs[axis]):
                grows, value_there = words(side), case.world(at, False).programs[axis].high + 1
        elif maker.name == "tt.load":
            held = case.reading.origins.get(maker.operands[0])
            of = case.named.get(case.graph.parameters[held].name) if held is not None else None
            quantity = case.holds(of) if of is not None else None
            if of is not None and quantity is not None and quantity.name == name:
                grows = f"what {of.name} holds"
                value_there = threshold - 1
    kind = wrap.operation.result.kind.element
    return Finding(
        kernel=case.graph.name,
        module=module,
        file=place.file,
        line=place.line,
        text=_text(place),
        element=kind.replace("i", "int"),
        access=wrap.access.name.removeprefix("tt."),
        access_line=wrap.access.source.line,
        quantity=name,
        threshold=threshold,
        largest=case.limits.quantities[name].largest,
        shape=", ".join(dict.fromkeys(near)),
        grows=grows or name,
        value=value_there,
        model=model,
        reaches=reaches,
        arithmetic=_arithmetic(case, wrap, at),
        launched=f"{case.launch.file}:{case.launch.line}" if case.launch else "",
        setting=case.limits.quantities[name].setting,
        constants=case.said,
    )


def restated(case: Case, finding: Finding, at: Mapping[str, int], threshold: int) -> Finding:
    """The same at another load."""
    if threshold == finding.threshold:
        return finding
    place = Place(finding.file, finding.line)
    wrap = case.wraps_at(at, place)
    if wrap is None:  # it wraps where arithmetic over ranges does not see it yet
        return replace(finding, threshold=threshold, value=threshold)
    return _finding(
        case, finding.module, place, wrap, at, finding.quantity, threshold, finding.model,
        finding.reaches,
    )  # fmt: skip


def _arithmetic(case: Case, wrap: Wrap, at: Mapping[str, int]) -> str:
    ranges = Ranges(case.reading, case.world(at, False))
    symbol = {"addi": "+", "subi": "-", "muli": "*", "shli": "<<"}.get(
        wrap.operation.name.removeprefix("arith."), "narrowed"
    )
    parts = [f"{ranges.get(one).high:,}" for one in wrap.operation.operands]
    kind = wrap.operation.result.kind.element.replace("i", "int")
    return f"{f' {symbol} '.join(parts)} is up to {wrap.range.high:,}, more than {kind} holds"


def _cone(reading: Shape, operation: Operation) -> list[Value]:
    found: dict[Value, None] = {}
    waiting = list(operation.operands)
    while waiting:
        value = waiting.pop(0)
        if value in found:
            continue
        found[value] = None
        waiting += reading.carried.get(value, ())
        maker = reading.makers.get(value)
        if maker is not None and maker.name != "tt.load":
            waiting += maker.operands
    return list(found)


def _text(place: Place) -> str:
    return linecache.getline(place.file, place.line).strip()
