"""One kernel's verdict: proven for all launches, or the smallest launch that wraps.

Numbers of the host are known by quantities of the limits file. First every quantity is a range from
one to its largest: what stays in its type there is safe. What does not is looked for at single
launches, of each model's shape, and the load that it takes is found by halving.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection, Mapping
from dataclasses import replace

from harness.kernels.ir.graph import IROperation, IRValue
from harness.runs.audit.access_graph import AccessGraph
from harness.runs.audit.expressions import render_expression
from harness.runs.audit.findings import AuditFinding, ModelThreshold
from harness.runs.audit.kernel_case import AXES, KernelCase, KernelLine, find_kernel_line, read_axis
from harness.runs.audit.overflow_analysis import AddressOverflow
from harness.runs.audit.range_analysis import IntegerRangeAnalysis
from harness.runs.audit.size_limits import ModelShape


def find_overflow_findings(
    case: KernelCase, module: str, lines: Collection[str] | None = None
) -> tuple[list[tuple[AuditFinding, dict[str, int]]], set[str]]:
    """The findings, each with the load that it is seen at, and why something cannot be told.

    `lines`: no others are looked at, by their text.
    """
    reasons: set[str] = set()
    suspects = case.find_overflows(case.make_largest_loads(), as_ranges=True)
    if not suspects:
        return [], reasons
    certain = {
        find_kernel_line(one.operation)
        for one in case.find_overflows(case.make_largest_loads())
        if one.is_known
    }
    leading = case.find_first_overflows(case.make_largest_loads())
    findings: list[tuple[AuditFinding, dict[str, int]]] = []
    for place in sorted(
        {find_kernel_line(one.operation) for one in suspects}, key=lambda one: (one.file, one.line)
    ):
        if lines is not None and " ".join(_read_line_text(place).split()) not in lines:
            continue
        here = [one for one in suspects if find_kernel_line(one.operation) == place]
        if place in certain:
            found = _find_nearest_finding(case, module, place)
            if found is not None and (sides := _describe_unknown_sides(case, found[0])):
                reasons.add(f"wraps with sides that no model is known to have: {sides}")
                continue
            if found is not None:
                findings.append(found)
                continue
        if place not in leading:
            continue  # what wraps there has wrapped before, and is told there
        why = sorted({reason for one in here for reason in one.range.reasons})
        reasons |= set(why[:2]) or {"ranges that are too coarse"}
    return findings, reasons


def _describe_unknown_sides(case: KernelCase, finding: AuditFinding) -> str:
    """Sides of tensors that no name says anything of, grown beyond every model's shape."""
    if not finding.model and ".shape[" in finding.shape:
        return finding.shape
    grown = f"{finding.grows} = {finding.value:,}"
    side = ".shape[" in finding.grows and not case.limits.quantities[finding.quantity].size
    return grown if side else ""


def _find_nearest_finding(
    case: KernelCase, module: str, kernel_line: KernelLine
) -> tuple[AuditFinding, dict[str, int]] | None:
    """The least load at which this line wraps, of the model that comes to it first."""
    found: list[tuple[float, str, int, dict[str, int], str]] = []
    reaches = []
    known: dict[tuple[int, ...], tuple[str, int, dict[str, int]] | None] = {}
    for model in case.limits.models:
        shape = case.make_usual_loads() | {
            name: value
            for name, value in model.values.items()
            if name in case.used_quantities and name not in case.size_quantities
        }
        key = (
            *shape.values(),
            _find_largest_load(case, "context", model) if "context" in case.size_quantities else 0,
        )
        if key not in known:
            known[key] = _find_threshold(case, shape, kernel_line, model)
        best = known[key]
        reaches.append(ModelThreshold(model.name, best[1] if best else 0))
        if best is not None:
            found.append((best[1] / _find_largest_load(case, best[0], model), *best, model.name))
    if not found:
        best = _find_threshold(case, case.make_largest_loads(), kernel_line, None)
        if best is None:
            return None
        found.append((1.0, *best, ""))
    _, name, threshold, at, model_name = min(found, key=lambda one: one[0])
    wrap = case.find_overflow_at(at, kernel_line)
    assert wrap is not None
    made = _make_finding(
        case, module, kernel_line, wrap, at, name, threshold, model_name, tuple(reaches)
    )
    return made, at


def _find_largest_load(case: KernelCase, quantity_name: str, model: ModelShape | None) -> int:
    largest = case.limits.quantities[quantity_name].largest
    if model is not None and quantity_name == "context":
        return min(largest, model.values.get("context", largest))
    return largest


def _find_threshold(
    case: KernelCase, shape: dict[str, int], kernel_line: KernelLine, model: ModelShape | None
) -> tuple[str, int, dict[str, int]] | None:
    """What has to grow, from where on, and what else there is, as usual or as little as can be."""
    best: tuple[float, str, int, dict[str, int]] | None = None
    for name in case.size_quantities or case.used_quantities:
        most = _find_largest_load(case, name, model)
        for others in (shape, shape | dict.fromkeys(case.size_quantities, 1)):
            if case.find_overflow_at({**others, name: most}, kernel_line) is None:
                continue
            if case.find_overflow_at({**others, name: 1}, kernel_line) is not None:
                continue  # it is something else that grows
            low, high = 1, most
            while high - low > 1:
                middle = (low + high) // 2
                if case.find_overflow_at({**others, name: middle}, kernel_line) is None:
                    low = middle
                else:
                    high = middle
            first = {**others, name: high}
            if case.find_overflow_at(first, kernel_line, first_only=True) is None:
                break  # what it is made of wraps before
            if best is None or high / most < best[0]:
                best = (high / most, name, high, first)
            break
    return None if best is None else best[1:]


def _make_finding(
    case: KernelCase,
    module: str,
    kernel_line: KernelLine,
    overflow: AddressOverflow,
    loads: Mapping[str, int],
    quantity_name: str,
    threshold: int,
    model: str,
    reaches: tuple[ModelThreshold, ...],
) -> AuditFinding:
    cone = _list_cone(case.access_graph, overflow.operation)
    near, grows, value_there = [], "", threshold
    places = {value: value.name for value in case.graph.parameters}
    for value in sorted(cone, key=lambda one: one.number):
        parameter = case.parameters_by_name.get(places.get(value, ""))
        if parameter is None or parameter.kind == "constexpr" or parameter.is_pointer:
            continue
        text = render_expression(parameter.expression)
        used = case.find_quantities(parameter.expression, parameter.name)
        if quantity_name in used and not grows:
            grows, value_there = text, case.evaluate_parameter(parameter, loads)
        elif used and quantity_name not in used:
            near.append(
                f"{text} = {case.evaluate(parameter.expression, parameter.name, loads).high:,}"
            )
    for value in cone:
        maker = case.access_graph.defining_operations.get(value)
        if grows or maker is None:
            continue
        if maker.name == "tt.get_program_id":
            axis = next(axis for axis in range(3) if AXES[axis] in read_axis(maker))
            side = case.find_grid_side(axis)
            if quantity_name in case.find_quantities(side, case.program_names[axis]):
                grows, value_there = (
                    render_expression(side),
                    case.make_launch_inputs(loads, False).programs[axis].high + 1,
                )
        elif maker.name == "tt.load":
            held = case.access_graph.pointer_origins.get(maker.operands[0])
            of = (
                case.parameters_by_name.get(case.graph.parameters[held].name)
                if held is not None
                else None
            )
            quantity = case.find_content_quantity(of) if of is not None else None
            if of is not None and quantity is not None and quantity.name == quantity_name:
                grows = f"what {of.name} holds"
                value_there = threshold - 1
    kind = overflow.operation.result.type.element
    return AuditFinding(
        kernel=case.graph.name,
        module=module,
        file=kernel_line.file,
        line=kernel_line.line,
        text=_read_line_text(kernel_line),
        element=kind.replace("i", "int"),
        access=overflow.access.name.removeprefix("tt."),
        access_line=overflow.access.source.line,
        quantity=quantity_name,
        threshold=threshold,
        largest=case.limits.quantities[quantity_name].largest,
        shape=", ".join(dict.fromkeys(near)),
        grows=grows or quantity_name,
        value=value_there,
        model=model,
        reaches=reaches,
        arithmetic=_describe_arithmetic(case, overflow, loads),
        launched=f"{case.launch.file}:{case.launch.line}" if case.launch else "",
        setting=case.limits.quantities[quantity_name].setting,
        constants=case.constant_descriptions,
    )


def restate_finding(
    case: KernelCase, finding: AuditFinding, loads: Mapping[str, int], threshold: int
) -> AuditFinding:
    """The same at another load."""
    if threshold == finding.threshold:
        return finding
    place = KernelLine(finding.file, finding.line)
    wrap = case.find_overflow_at(loads, place)
    if wrap is None:  # it wraps where arithmetic over ranges does not see it yet
        return replace(finding, threshold=threshold, value=threshold)
    return _make_finding(
        case, finding.module, place, wrap, loads, finding.quantity, threshold, finding.model,
        finding.reaches,
    )  # fmt: skip


def _describe_arithmetic(
    case: KernelCase, overflow: AddressOverflow, loads: Mapping[str, int]
) -> str:
    ranges = IntegerRangeAnalysis(case.access_graph, case.make_launch_inputs(loads, False))
    symbol = {"addi": "+", "subi": "-", "muli": "*", "shli": "<<"}.get(
        overflow.operation.name.removeprefix("arith."), "narrowed"
    )
    parts = [f"{ranges.get(one).high:,}" for one in overflow.operation.operands]
    kind = overflow.operation.result.type.element.replace("i", "int")
    return f"{f' {symbol} '.join(parts)} is up to {overflow.range.high:,}, more than {kind} holds"


def _list_cone(access_graph: AccessGraph, operation: IROperation) -> list[IRValue]:
    found: dict[IRValue, None] = {}
    waiting = list(operation.operands)
    while waiting:
        value = waiting.pop(0)
        if value in found:
            continue
        found[value] = None
        waiting += access_graph.control_flow_sources.get(value, ())
        maker = access_graph.defining_operations.get(value)
        if maker is not None and maker.name != "tt.load":
            waiting += maker.operands
    return list(found)


def _read_line_text(kernel_line: KernelLine) -> str:
    return linecache.getline(kernel_line.file, kernel_line.line).strip()
