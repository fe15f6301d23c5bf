"""Where a kernel tells: at the access, or once the loop around it is over.

A branch in each turn of a loop keeps Triton and the assembler from overlapping turns. So a loop
hands on the first that each of its accesses has to tell, where that fits into a register or two,
and tells it behind itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.compiled.building import NE, Builder
from harness.compiled.reporting import assembly, constraints
from harness.kernels.graph import Block, Kind, Operation, Region, Source, Value

_WIDEST = 16  # lanes that one report looks at


@dataclass(frozen=True, slots=True)
class Told:
    """What is to be put down of a site, if the word is not 0."""

    site: int
    source: Source
    word: Value
    address: Value
    operands: tuple[Value, ...] = ()  # of what wrapped: two, where something can have

    @property
    def values(self) -> tuple[Value, ...]:
        return self.word, self.address, *self.operands

    def of(self, values: Sequence[Value]) -> Told:
        return Told(self.site, self.source, values[0], values[1], tuple(values[2:]))


class Teller:
    def __init__(self, code: Builder, report: Value, launch: Value, threads: int) -> None:
        self._code, self._threads = code, threads
        self._report, self._launch = report, launch
        self._later: list[Told] | None = None  # of the loop whose body this is

    @contextmanager
    def waiting(self, in_loop: bool) -> Iterator[list[Told]]:
        """What is told meanwhile: of a loop it is to be handed on, and is put down at once else."""
        later: list[Told] = []
        outer, self._later = self._later, later if in_loop else None
        yield later
        self._later = outer

    def tell(self, told: Told) -> None:
        if self._later is not None and told.word.kind.lanes <= self._threads:
            self._later.append(told)
        else:
            self.put_down(told)

    def put_down(self, told: Told) -> None:
        code, shape = self._code, told.address.kind.shape
        widest = _WIDEST // 2 if told.operands else _WIDEST
        pack = max(1, min(widest, told.address.kind.lanes // self._threads)) if shape else 1
        both = (code.splat(self._report, shape), code.splat(self._launch, shape))
        wide = 1 + len(told.operands)
        code.source = told.source
        code.emit(
            "tt.elementwise_inline_asm",
            (*told.values, *both),
            Kind("i32", shape),
            asm_string=f'"{assembly(told.site, pack, wide)}"',
            constraints=f'"{constraints(pack, wide)}"',
            packed_element=f"{pack} : i32",
            pure="false",
        )

    def keeping(
        self, operation: Operation, block: Block, later: Sequence[Told]
    ) -> tuple[Operation, Block]:
        """The loop, and its body, with what it hands on of these: the first word that is not 0."""
        code = self._code
        now = [value for one in later for value in one.values]
        before = tuple(code.constant(0, value.kind) for value in now)
        inside, after = ([code.value(value.kind) for value in now] for _ in range(2))
        *operations, last = block.operations
        kept: list[Value] = []
        with code.at(operations):
            for one in later:
                at = len(kept)
                known = code.compare(NE, inside[at], code.constant(0, inside[at].kind))
                ways = range(at, at + len(one.values))
                kept += [code.chosen(known, inside[way], now[way]) for way in ways]
        return (
            replace(
                operation,
                operands=(*operation.operands, *before),
                results=(*operation.results, *after),
            ),
            replace(
                block,
                arguments=(*block.arguments, *inside),
                operations=(*operations, replace(last, operands=(*last.operands, *kept))),
            ),
        )

    def tell_kept(self, later: Sequence[Told], kept: Sequence[Value]) -> None:
        """Behind the loop."""
        for told in later:
            many = len(told.values)
            self.put_down(told.of(kept[:many]))
            kept = kept[many:]


def one_of(code: Builder, values: Sequence[Value]) -> list[Value]:
    """Of a lane whose first value is not 0, if there is one: what is told of many lanes at once is
    less to compile than what is told of each."""
    given = list(values)
    while shape := given[0].kind.shape:
        one, other = ([code.value(Kind(value.kind.element)) for value in given] for _ in range(2))
        with code.at([]) as body:
            known = code.compare(NE, one[0], code.constant(0, one[0].kind))
            ended = tuple(code.chosen(known, *both) for both in zip(one, other, strict=True))
            body.append(Operation("tt.reduce.return", ended, (), {}, code.source))
        region = Region((Block("bb0", (*one, *other), tuple(body)),))
        made = [code.value(Kind(value.kind.element, shape[:-1])) for value in given]
        axis = {"axis": f"{len(shape) - 1} : i32"}
        code.operations.append(
            Operation("tt.reduce", tuple(given), tuple(made), axis, code.source, (region,))
        )
        given = made
    return given
