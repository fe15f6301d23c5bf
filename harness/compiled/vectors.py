"""Along which axis a pointer's lanes lie side by side: there one instruction may move several.

Triton sees it again when it chooses instructions. Here it is asked only where a mask of ours may be
called the same for neighbours; a value of which nothing is known runs nowhere.
"""

from __future__ import annotations

from harness.kernels import flow
from harness.kernels.graph import Graph, Operation, Value

_STILL, _STEP = 0, 1  # from a lane to the next along an axis
Run = tuple[int | None, ...]


class Runs:
    def __init__(self, graph: Graph) -> None:
        carried = flow.carried(graph)
        makers = {
            result: one
            for one in graph.operations()
            for result in one.results
            if result not in carried
        }
        self._known: dict[Value, Run] = dict.fromkeys(graph.parameters, ())
        changed = True
        while changed:  # what a loop hands on is taken to run as it came, until it is seen not to
            before = dict(self._known)
            for value, maker in makers.items():
                self._meet(value, [self._made(maker, (None,) * len(value.kind.shape))])
            for value, given in carried.items():
                self._meet(value, [self._known.get(one) for one in given])
            changed = before != self._known

    def axis(self, pointer: Value) -> int | None:
        """The axis along which each lane lies behind the one before."""
        run = self._known.get(pointer, ())
        return run.index(_STEP) if _STEP in run else None

    def _meet(self, value: Value, given: list[Run | None]) -> None:
        rank = len(value.kind.shape)
        # What a reduction's body hands on is of another shape, and says nothing of the result.
        runs = [run if len(run) == rank else (None,) * rank for run in given if run is not None]
        if value in self._known:
            runs.append(self._known[value])
        if runs:
            axes = zip(*runs, strict=True)
            self._known[value] = tuple(steps[0] if len(set(steps)) == 1 else None for steps in axes)

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
