"""The axis along which a pointer's lanes lie side by side (Triton's contiguity).

For each value and axis: 0 if all lanes along it are equal, 1 if each lane is one more than the one
before, 2 if that holds up to the remainder of a division, None if nothing is known. Example: `x +
row[:, None] * stride + lane` has (None, 1), and with `lane % width` in place of `lane` (None, 2).
Triton analyzes the same when it chooses vector instructions. Here it decides which lanes are
checked as one row, and where a mask of ours may carry a hint.
"""

from __future__ import annotations

from collections import defaultdict

from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph

# Steps from a lane to the next along an axis; _WRAPPED_STEP: those of a remainder.
_CONSTANT, _UNIT_STEP, _WRAPPED_STEP = 0, 1, 2
LaneSteps = tuple[int | None, ...]


class AxisContiguity:
    """The steps of all values; a carried one has those of its initial value until they differ."""

    def __init__(self, graph: KernelGraph) -> None:
        self._carried = flow.map_control_flow_sources(graph)
        self._definitions = {
            result: operation
            for result, operation in flow.map_defining_operations(graph).items()
            if result not in self._carried
        }
        users: dict[IRValue, list[IRValue]] = defaultdict(list)
        for result, definition in self._definitions.items():
            for operand in definition.operands:
                users[operand].append(result)
        for target, sources in self._carried.items():
            for value in sources:
                users[value].append(target)
        self._steps: dict[IRValue, LaneSteps] = dict.fromkeys(graph.parameters, ())
        waiting = dict.fromkeys([*self._definitions, *self._carried])
        while waiting:
            value = next(iter(waiting))
            del waiting[value]
            if self._update_steps(value):
                waiting |= dict.fromkeys(users[value])

    def find_contiguous_axis(self, pointer: IRValue) -> int | None:
        """Find the axis along which each lane follows the one before."""
        run = self._steps.get(pointer, ())
        return run.index(_UNIT_STEP) if _UNIT_STEP in run else None

    def find_wrapped_axis(self, pointer: IRValue) -> int | None:
        """Find the axis along which each lane follows the one before, by a remainder."""
        run = self._steps.get(pointer, ())
        return run.index(_WRAPPED_STEP) if _WRAPPED_STEP in run else None

    def is_wrapped_along(self, value: IRValue, axis: int) -> bool:
        """Return whether the lanes along the axis are those of a remainder plus a constant."""
        return self._steps.get(value, ())[axis : axis + 1] == (_WRAPPED_STEP,)

    def is_constant_along(self, value: IRValue, axis: int) -> bool:
        """Return whether all lanes along the axis are equal."""
        return self._steps.get(value, ())[axis : axis + 1] == (_CONSTANT,)

    def _update_steps(self, value: IRValue) -> bool:
        """Return whether the steps of a value have changed."""
        unknown: LaneSteps = (None,) * len(value.type.shape)
        if value in self._carried:
            candidates = [self._steps.get(source) for source in self._carried[value]]
        else:
            candidates = [self._infer_steps(self._definitions[value], unknown)]
        before = self._steps.get(value)
        # The values that a reduction's body yields have another shape than its result.
        runs = [
            run if len(run) == len(unknown) else unknown for run in candidates if run is not None
        ]
        if before is not None:
            runs.append(before)
        if not runs:
            return False
        axes = zip(*runs, strict=True)
        now = tuple(steps[0] if len(set(steps)) == 1 else None for steps in axes)
        self._steps[value] = now
        return now != before

    def _infer_steps(self, operation: IROperation, unknown: LaneSteps) -> LaneSteps | None:
        """Infer the steps of a result; None while those of an operand are not known yet."""
        name, still = operation.name, (_CONSTANT,) * len(unknown)
        if name == "tt.make_range":
            return (_UNIT_STEP,)
        if name == "tt.splat":
            return still
        if name == "arith.constant":
            return unknown if "[" in operation.attributes["value"] else still
        operand_steps = [
            self._steps[operand] for operand in operation.operands if operand in self._steps
        ]
        if len(operand_steps) < len(operation.operands):
            return None
        if name == "tt.expand_dims":
            axis = operation.get_int("axis")
            return (*operand_steps[0][:axis], _CONSTANT, *operand_steps[0][axis:])
        if name == "tt.broadcast":
            before = operation.operands[0].type.shape
            return tuple(
                _CONSTANT if side == 1 else step
                for side, step in zip(before, operand_steps[0], strict=True)
            )
        if not name.startswith("arith.") and name != "tt.addptr":
            return unknown
        if any(len(run) != len(unknown) for run in operand_steps):
            return unknown
        return tuple(
            self._combine_steps(name, [run[axis] for run in operand_steps])
            for axis in range(len(unknown))
        )

    @staticmethod
    def _combine_steps(name: str, steps: list[int | None]) -> int | None:
        if all(step == _CONSTANT for step in steps):
            return _CONSTANT
        if name == "arith.remsi" and steps == [_UNIT_STEP, _CONSTANT]:
            return _WRAPPED_STEP
        if name in ("tt.addptr", "arith.addi") and _CONSTANT in steps:
            return steps[1 - steps.index(_CONSTANT)]
        if name == "arith.subi" and steps[1] == _CONSTANT:
            return steps[0]
        return steps[0] if name in ("arith.extsi", "arith.extui") else None
