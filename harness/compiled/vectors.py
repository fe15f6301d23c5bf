"""Along which axis a pointer's lanes lie side by side: there one instruction may move several.

Triton sees it again when it chooses instructions. Here it is asked which lanes may be looked at as
one, and where a mask of ours may be called the same for neighbours; a value of which nothing is
known runs nowhere.
"""

from __future__ import annotations

from collections import defaultdict

from harness.kernels import flow
from harness.kernels.graph import Graph, Operation, Value

_STILL, _STEP = 0, 1  # from a lane to the next along an axis
Run = tuple[int | None, ...]


class Runs:
    """What a loop hands on is taken to run as it came, until it is seen not to."""

    def __init__(self, graph: Graph) -> None:
        self._carried = flow.carried(graph)
        self._makers = {
            result: one for result, one in flow.makers(graph).items() if result not in self._carried
        }
        users: dict[Value, list[Value]] = defaultdict(list)
        for result, maker in self._makers.items():
            for operand in maker.operands:
                users[operand].append(result)
        for target, given in self._carried.items():
            for value in given:
                users[value].append(target)
        self._known: dict[Value, Run] = dict.fromkeys(graph.parameters, ())
        waiting = dict.fromkeys([*self._makers, *self._carried])
        while waiting:
            value = next(iter(waiting))
            del waiting[value]
            if self._meet(value):
                waiting |= dict.fromkeys(users[value])

    def axis(self, pointer: Value) -> int | None:
        """The axis along which each lane lies behind the one before."""
        run = self._known.get(pointer, ())
        return run.index(_STEP) if _STEP in run else None

    def is_still(self, value: Value, axis: int) -> bool:
        """Whether all its lanes along the axis are the same."""
        return self._known.get(value, ())[axis : axis + 1] == (_STILL,)

    def _meet(self, value: Value) -> bool:
        """Whether another run is known of it now."""
        unknown: Run = (None,) * len(value.kind.shape)
        if value in self._carried:
            given = [self._known.get(one) for one in self._carried[value]]
        else:
            given = [self._made(self._makers[value], unknown)]
        before = self._known.get(value)
        # What a reduction's body hands on is of another shape, and says nothing of the result.
        runs = [run if len(run) == len(unknown) else unknown for run in given if run is not None]
        if before is not None:
            runs.append(before)
        if not runs:
            return False
        axes = zip(*runs, strict=True)
        now = tuple(steps[0] if len(set(steps)) == 1 else None for steps in axes)
        self._known[value] = now
        return now != before

    def _made(self, maker: Operation, unknown: Run) -> Run | None:
        """None while something that it is made of is not known yet."""
        name, still = maker.name, (_STILL,) * len(unknown)
        if name == "tt.make_range":
            return (_STEP,)
        if name == "tt.splat":
            return still
        if name == "arith.constant":
            return unknown if "[" in maker.attributes["value"] else still
        given = [self._known[one] for one in maker.operands if one in self._known]
        if len(given) < len(maker.operands):
            return None
        if name == "tt.expand_dims":
            axis = maker.number("axis")
            return (*given[0][:axis], _STILL, *given[0][axis:])
        if name == "tt.broadcast":
            before = maker.operands[0].kind.shape
            return tuple(
                _STILL if side == 1 else step for side, step in zip(before, given[0], strict=True)
            )
        if not name.startswith("arith.") and name != "tt.addptr":
            return unknown
        if any(len(run) != len(unknown) for run in given):
            return unknown
        return tuple(
            self._along(name, [run[axis] for run in given]) for axis in range(len(unknown))
        )

    @staticmethod
    def _along(name: str, steps: list[int | None]) -> int | None:
        if all(step == _STILL for step in steps):
            return _STILL
        if name in ("tt.addptr", "arith.addi") and sorted(map(str, steps)) == ["0", "1"]:
            return _STEP
        if name == "arith.subi" and steps == [_STEP, _STILL]:
            return _STEP
        return _STEP if name in ("arith.extsi", "arith.extui") and steps == [_STEP] else None
