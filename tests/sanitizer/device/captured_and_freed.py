"""A program whose captured buffer is replaced: `unfix exec --check graphs` runs it."""

import torch
import triton
import triton.language as tl


@triton.jit
def double(source, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, BLOCK)
    tl.store(target + index, tl.load(source + index) * 2)


buffer, target = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    double[(1,)](buffer, target, BLOCK=8)
graph.replay()
buffer = torch.ones(16, device="cuda")
buffer.add_(1)
