"""A program with one planted fault of a captured graph or of two streams, for a card.

    unfix exec --check graphs,streams -- python bench/launch_faults.py freed

The faults: `freed` (a captured buffer is replaced), `moved` (it is resized), `number` (a number
that the graph keeps has changed), `pool` (a graph's result is read when another graph of its pool
has overwritten it), `event` and `aten-event` (a launch does not wait for another one, the first one
a Triton kernel, the second torch's own), `reuse` (memory is given to another stream too early), and
`none`.
"""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl

SIZE = 1 << 16


@triton.jit
def add_one(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, BLOCK)
    inside = index < count
    tl.store(target + index, tl.load(source + index, mask=inside) + 1, mask=inside)


class ModelWithGraph:
    """A model whose forward is captured: it reads a buffer and a number of its own."""

    def __init__(self) -> None:
        self.buffer = torch.ones(SIZE, device="cuda")
        self.out = torch.zeros(SIZE, device="cuda")
        self.count = 8
        self.graph = torch.cuda.CUDAGraph()

    def forward(self) -> None:
        add_one[(1,)](self.buffer, self.out, self.count, BLOCK=8)

    def capture(self) -> None:
        self.forward()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.forward()
        self.graph.replay()


def plant_fault(kind: str, model: ModelWithGraph, side: torch.cuda.Stream) -> None:
    if kind == "freed":
        model.buffer = torch.ones(2 * SIZE, device="cuda")
    elif kind == "moved":
        model.buffer.resize_(64 * SIZE)
    elif kind == "number":
        model.count = 4
    elif kind == "pool":
        overwrite_result(model)
    elif kind in ("event", "none"):
        with torch.cuda.stream(side):
            add_one[(1,)](model.buffer, model.out, 8, BLOCK=8)
        if kind == "none":
            torch.cuda.current_stream().wait_stream(side)
        model.out.add_(1)
    elif kind == "aten-event":
        with torch.cuda.stream(side):
            model.out.add_(1)
        model.out.add_(1)
    elif kind == "reuse":
        source = torch.zeros(SIZE, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            source.sum()
        del source
        torch.ones(SIZE, device="cuda").add_(1)
    else:
        sys.exit(f"no fault is called {kind}")


def overwrite_result(model: ModelWithGraph) -> None:
    """Replay two graphs of one pool, the first one last: its temporary tensor had these bytes."""
    pool = torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        temporary = model.buffer + 1
        model.out.copy_(temporary)
        del temporary
    with torch.cuda.graph(second, pool=pool):
        result = model.buffer * 3
    second.replay()
    first.replay()
    result.sum()


def main() -> None:
    model = ModelWithGraph()
    model.capture()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    plant_fault(sys.argv[1], model, side)
    torch.ones(3, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    model.graph.replay()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
