"""What libraries ask of the virtual GPU beside kernels: CUDA's generators, times of benchmarks."""

from __future__ import annotations

import torch

from harness import checking


def test_a_default_generator_has_the_state_of_cudas() -> None:
    with checking.checked("virtual"):
        torch.manual_seed(7)
        [generator] = torch.cuda.default_generators
        seed, offset = generator.get_state().view(torch.int64).tolist()
        assert (seed, offset) == (7, 0)
        generator.set_state(torch.tensor([7, 4000]).view(torch.uint8))
        assert generator.get_offset() == 4000
        assert torch.rand(2, device="cuda", generator=generator).is_cuda
        torch.manual_seed(7)
        assert generator.get_offset() == 0


def test_a_benchmark_of_triton_measures_some_time() -> None:
    from triton import testing

    x = torch.zeros(8, device="cuda")
    times = testing.do_bench(lambda: x.add_(1), warmup=1, rep=2, quantiles=(0.5, 0.2, 0.8))
    assert len(times) == 3
    assert min(times) > 0
