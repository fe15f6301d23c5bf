"""Settings of GPU libraries that change how fast kernels run, not what they compute."""

from __future__ import annotations

from typing import Any

from harness.sanitizer.device.cards import get_card
from harness.sanitizer.device.stand_ins import stand_in


@stand_in(
    "deep_gemm.set_pdl",
    "deep_gemm.set_tc_util",
    "flashinfer.jit.core.logger.setLevel",
    source="deep_gemm/__init__.py, flashinfer/jit/core.py: tuning and logs of a process",
)
def set_tuning(*args: Any, **options: Any) -> None:
    """Ignore the setting."""


_multiprocessors: list[int] = []  # that DeepGEMM was told to use, last


@stand_in("deep_gemm.set_num_sms", source="deep_gemm/__init__.py")
def set_multiprocessor_count(count: int) -> None:
    _multiprocessors[:] = [count]


@stand_in("deep_gemm.get_num_sms", source="deep_gemm/__init__.py")
def get_multiprocessor_count() -> int:
    return _multiprocessors[0] if _multiprocessors else get_card().multiprocessors


@stand_in(
    "sgl_kernel.utils.is_arch_support_pdl",
    source="sgl-kernel/python/sgl_kernel/utils.py: programmatic dependent launch from Hopper on",
)
def is_arch_support_pdl() -> bool:
    return get_card().capability >= (9, 0)


@stand_in(
    "flashinfer.fused_moe.Fp8QuantizationType",
    "flashinfer.fused_moe.core.ActivationType",
    source="flashinfer/tllm_enums.py: enumerations, called with a member or its number",
)
def make_member(member: object) -> object:
    return member


@stand_in("flashinfer.fused_moe.Fp8QuantizationType.DeepSeekFp8", source="flashinfer/tllm_enums.py")
def get_blockwise_type() -> int:
    return 1
