"""Stands in for sgl_kernel_npu, the Ascend kernels that SGLang's NPU modules import by name."""

from harness.core.refusing_module import stand_in

stand_in(__name__)
