"""Stands in for sgl_kernel_npu, the Ascend kernels that SGLang's NPU modules import by name."""

from harness.releases.standins._refusing import stand_in

stand_in(__name__)
