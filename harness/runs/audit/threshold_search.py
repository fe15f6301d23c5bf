"""One kernel's overflows by arithmetic: proven absent for all launches, or the smallest load.

First every quantity of the limits file is a range from one to its largest. A line that no launch in
these ranges can overflow is safe. Any other line is searched at single launches of each model's
shape: one quantity grows, and bisection finds the smallest load at which the line overflows.

Example: `row * stride` in int32 with the rows `tokens` and a stride of 4,096. At 1 token nothing
overflows, at the 16,777,216 tokens of the limits file it does; 23 bisections later the threshold is
524,289 tokens, whose last row begins at 524,288 * 4,096 = 2**31.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection, Iterator
from dataclasses import replace

from harness.runs.audit.expressions import render_expression
from harness.runs.audit.findings import AuditFinding, ModelThreshold
from harness.runs.audit.kernel_case import KernelCase, Loads
from harness.runs.audit.overflow_analysis import AddressOverflow, OverflowAnalysis
from harness.runs.audit.size_limits import ModelShape
from harness.sanitizer.ir.access_graph import AccessGraph
from harness.sanitizer.ir.graph import FileLine, IROperation, IRValue
from harness.sanitizer.ir.intervals import read_axis

FindingWithLoads = tuple[AuditFinding, dict[str, int]]
Threshold = tuple[str, int, dict[str, int]]  # the growing quantity, its threshold, all loads at it


def find_overflow_findings(
    case: KernelCase, module: str, lines: Collection[str] | None = None
) -> tuple[list[FindingWithLoads], set[str]]:
    """Find the lines that overflow, each with its loads, and the reasons why others are unknown.

    `lines` restricts the search to lines of this text.
    """
    reasons: set[str] = set()
    largest = case.make_largest_loads()
    suspects: dict[FileLine, set[str]] = {}
    for overflow in case.analyze_all_launches(largest).find_overflows(first_only=False):
        line = overflow.operation.source.line_key
        suspects.setdefault(line, set()).update(overflow.range.reasons)
    if not suspects:
        return [], reasons
    single = OverflowAnalysis(case.analyze_ranges(largest)).find_overflows(first_only=False)
    certain = {overflow.operation.source.line_key for overflow in single if overflow.is_known}
    first = {
        overflow.operation.source.line_key
        for overflow in case.analyze_all_launches(largest).find_overflows()
    }
    findings: list[FindingWithLoads] = []
    for line in sorted(suspects):
        if lines is not None and " ".join(_read_line_text(line).split()) not in lines:
            continue
        nearest = _find_nearest_finding(case, module, line) if line in certain else None
        if nearest is not None:
            if sides := _describe_unknown_sides(case, nearest[0]):
                reasons.add(f"overflows with sides that no model is known to have: {sides}")
            else:
                findings.append(nearest)
        elif line in first:  # an overflow that follows from another one is reported there
            reasons |= set(sorted(suspects[line])[:2]) or {"ranges that are too coarse"}
    return findings, reasons


def _describe_unknown_sides(case: KernelCase, finding: AuditFinding) -> str:
    """Name the sides of tensors that have to grow beyond every model's shape, if any."""
    if not finding.model and ".shape[" in finding.shape:
        return finding.shape
    is_side = ".shape[" in finding.grows and not case.limits.quantities[finding.quantity].size
    return f"{finding.grows} = {finding.value:,}" if is_side else ""


def _find_nearest_finding(case: KernelCase, module: str, line: FileLine) -> FindingWithLoads | None:
    """Find the overflow of the line that takes the smallest share of a limit, over all models."""
    nearest: list[tuple[float, Threshold, str]] = []
    reaches = []
    searched: dict[tuple[int, ...], Threshold | None] = {}
    for model in case.limits.models:
        shape = case.make_usual_loads() | {
            name: value
            for name, value in model.values.items()
            if name in case.used_quantities and name not in case.size_quantities
        }
        has_context = "context" in case.size_quantities
        key = (*shape.values(), _find_limit(case, "context", model) if has_context else 0)
        if key not in searched:
            searched[key] = _find_threshold(case, shape, line, model)
        best = searched[key]
        reaches.append(ModelThreshold(model.name, best[1] if best else 0))
        if best is not None:
            nearest.append((best[1] / _find_limit(case, best[0], model), best, model.name))
    if not nearest:
        best = _find_threshold(case, case.make_largest_loads(), line, None)
        if best is None:
            return None
        nearest.append((1.0, best, ""))
    _, (quantity, threshold, loads), model_name = min(nearest, key=lambda each: each[0])
    overflow = case.find_overflow_at(loads, line)
    assert overflow is not None
    finding = _make_finding(
        case, module, line, overflow, loads, quantity, threshold, model_name, tuple(reaches)
    )
    return finding, loads


def _find_limit(case: KernelCase, quantity: str, model: ModelShape | None) -> int:
    largest = case.limits.quantities[quantity].largest
    if model is not None and quantity == "context":
        return min(largest, model.values.get("context", largest))
    return largest


def _find_threshold(
    case: KernelCase, shape: dict[str, int], line: FileLine, model: ModelShape | None
) -> Threshold | None:
    """Find the quantity that has to grow the least, relative to its limit.

    All other quantities have usual values, or 1 if the line overflows at those without growth.
    """
    best: tuple[float, Threshold] | None = None
    for quantity in case.size_quantities or case.used_quantities:
        limit = _find_limit(case, quantity, model)
        for others in (shape, shape | dict.fromkeys(case.size_quantities, 1)):
            low, high = 1, limit
            if case.find_overflow_at({**others, quantity: high}, line) is None:
                continue
            if case.find_overflow_at({**others, quantity: low}, line) is not None:
                continue  # another quantity causes it
            while high - low > 1:
                middle = (low + high) // 2
                if case.find_overflow_at({**others, quantity: middle}, line) is None:
                    low = middle
                else:
                    high = middle
            loads = {**others, quantity: high}
            first = case.find_overflow_at(loads, line, first_only=True) is not None
            if first and (best is None or high / limit < best[0]):
                best = (high / limit, (quantity, high, loads))
            break
    return None if best is None else best[1]


def _make_finding(
    case: KernelCase,
    module: str,
    line: FileLine,
    overflow: AddressOverflow,
    loads: Loads,
    quantity_name: str,
    threshold: int,
    model: str,
    reaches: tuple[ModelThreshold, ...],
) -> AuditFinding:
    cone = _list_cone(case.access_graph, overflow.operation)
    fixed: list[str] = []
    growing: tuple[str, int | None] | None = None
    for value in sorted(cone, key=lambda each: each.number):
        is_parameter = value in case.access_graph.parameter_indices
        parameter = case.parameters_by_name.get(value.name) if is_parameter else None
        if parameter is None or parameter.kind == "constexpr" or parameter.is_pointer:
            continue
        used = case.find_quantities(parameter.expression, parameter.name)
        number = case.evaluate_parameter(parameter, loads)
        if quantity_name in used and growing is None:
            growing = render_expression(parameter.expression), number
        elif used and quantity_name not in used:
            fixed.append(f"{render_expression(parameter.expression)} = {number:,}")
    growing = growing or next(_iterate_growing_sources(case, cone, loads, quantity_name), None)
    grows, value_there = growing or (quantity_name, threshold)
    quantity = case.limits.quantities[quantity_name]
    return AuditFinding(
        kernel=case.graph.name,
        module=module,
        file=line[0],
        line=line[1],
        text=_read_line_text(line),
        element=_describe_element(overflow),
        access=overflow.access.name.removeprefix("tt."),
        access_line=overflow.access.source.line,
        quantity=quantity_name,
        threshold=threshold,
        largest=quantity.largest,
        shape=", ".join(dict.fromkeys(fixed)),
        grows=grows,
        value=threshold - 1 if value_there is None else value_there,
        model=model,
        reaches=reaches,
        arithmetic=_describe_arithmetic(case, overflow, loads),
        launched=f"{case.launch.file}:{case.launch.line}" if case.launch else "",
        setting=quantity.setting,
        constants=case.constant_descriptions,
    )


def _iterate_growing_sources(
    case: KernelCase, cone: list[IRValue], loads: Loads, quantity_name: str
) -> Iterator[tuple[str, int | None]]:
    """Iterate the grid sides and the tensors of the growing quantity; a tensor has no number."""
    for value in cone:
        maker = case.access_graph.defining_operations.get(value)
        if maker is not None and maker.name == "tt.get_program_id":
            axis = read_axis(maker)
            side = case.find_grid_side(axis)
            if quantity_name in case.find_quantities(side, case.program_names[axis]):
                yield render_expression(side), case.make_program_ranges(loads)[axis].high + 1
        elif maker is not None and maker.name == "tt.load":
            origin = case.access_graph.pointer_origins.get(maker.operands[0])
            name = case.graph.parameters[origin].name if origin is not None else ""
            tensor = case.parameters_by_name.get(name)
            quantity = case.find_content_quantity(tensor) if tensor is not None else None
            if quantity is not None and quantity.name == quantity_name:
                yield f"what {name} holds", None


def restate_finding(
    case: KernelCase, finding: AuditFinding, loads: Loads, threshold: int
) -> AuditFinding:
    """Describe the same overflow at another load."""
    if threshold == finding.threshold:
        return finding
    overflow = case.find_overflow_at(loads, finding.line_key)
    if overflow is None:  # the ranges do not show it at this load yet
        return replace(finding, threshold=threshold, value=threshold)
    return _make_finding(
        case, finding.module, finding.line_key, overflow, loads, finding.quantity, threshold,
        finding.model, finding.reaches,
    )  # fmt: skip


def _describe_element(overflow: AddressOverflow) -> str:
    return overflow.operation.result.type.element.replace("i", "int")


def _describe_arithmetic(case: KernelCase, overflow: AddressOverflow, loads: Loads) -> str:
    ranges = case.analyze_ranges(loads)
    symbols = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.shli": "<<"}
    symbol = symbols.get(overflow.operation.name, "narrowed")
    numbers = f" {symbol} ".join(
        f"{ranges.get(operand).high:,}" for operand in overflow.operation.operands
    )
    element = _describe_element(overflow)
    return f"{numbers} is up to {overflow.range.high:,}, more than {element} holds"


def _list_cone(access_graph: AccessGraph, operation: IROperation) -> list[IRValue]:
    """List what an operation is computed from, back to loads, the nearest first."""
    cone: dict[IRValue, None] = {}
    pending = list(operation.operands)
    while pending:
        value = pending.pop(0)
        if value in cone:
            continue
        cone[value] = None
        pending += access_graph.control_flow_sources.get(value, ())
        maker = access_graph.defining_operations.get(value)
        if maker is not None and maker.name != "tt.load":
            pending += maker.operands
    return list(cone)


def _read_line_text(line: FileLine) -> str:
    return linecache.getline(*line).strip()
