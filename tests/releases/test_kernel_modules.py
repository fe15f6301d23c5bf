"""A suite says that a release has no kernel only where no module of its kernels has the name."""

from __future__ import annotations

import pytest

from fixtures.release_modules import has_module

if not has_module("sglang.kernels.jit.utils.compile.loader"):
    pytest.skip("n/a: this release builds its CUDA kernels in another way", allow_module_level=True)

from fixtures import cuda_kernels

# These have moved from release to release: from `attention.dsv4.moe` to `moe.dsv4`, for example.
MOVED = ("mask_topk_ids", "compute_n_gram_ids", "fused_rope_inplace", "fused_metadata_copy_cuda")


@pytest.mark.parametrize("name", MOVED)
def test_a_kernel_is_found_in_any_module(name: str) -> None:
    kernel = cuda_kernels.require_kernel("no_such_module", name)
    assert kernel.__name__ == name


def test_a_kernel_that_no_module_has_is_not_applicable() -> None:
    with pytest.raises(pytest.skip.Exception, match="this release has no add_three_of_nothing"):
        cuda_kernels.require_kernel("elementwise.add3", "add_three_of_nothing")
