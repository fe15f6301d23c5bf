"""What keeps a kernel from being reached, in one phrase.

The first row whose pattern occurs in the kernel's path, or else in the names of what leads to it,
decides. So each unreached kernel counts once, and the sum of the phrases is the number of kernels.
"""

from __future__ import annotations

import re

from harness.runs.kernels.values import KernelKind, ListedKernel

REFUSED = "the executor refuses it"
NO_LAUNCH = "nothing in the release launches it"
ONLY_TESTS = "only tests and benchmarks lead to it"
ONLY_HELPER = "only kernels that nothing reaches call it"
NO_CUDA_EXECUTOR = "CUDA C++: no run under check has executed it"

_TESTS = re.compile(r"\.(?:test|tests|benchmark|benchmarks)\.|\.bench_|\.test_")
_AREAS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"hip\b|_hip|aiter|rocm|npu|xpu|musa|gfx9", "for cards that are not CUDA's"),
        (r"diffusion|multimodal_gen", "image and video generation"),
        (r"lora", "LoRA adapters"),
        (r"speculative|eagle|spec_", "speculative decoding"),
        (r"communication|all_?reduce|deepep|ep_moe|dcp|context_parallel|lplb", "several GPUs"),
        (r"hicache|kvcacheio|hisparse|disaggregation|mooncake", "caches outside of the GPU"),
        (r"canary|debug_utils", "debugging tools"),
        (r"sm100|sm120|blackwell|nvfp4|mxfp|fp4", "formats of Blackwell"),
        (r"dsa|nsa|dsv4|deepseek_v4|sparse|minimax", "sparse attention"),
        (r"quant|fp8|int8|awq|gptq|w8a8|gemm", "quantized weights or caches"),
        (r"multimodal|vision|vit|audio", "images and sound in prompts"),
        (r"moe", "another backend or router of experts"),
        (r"mamba|fla|linear|gdn|kda|causal_conv", "another mode of linear attention"),
        (r"attention|kvcache", "another attention backend or mode"),
        (r"sampl|logit|grammar", "sampling"),
    )
)  # fmt: skip
OTHER = "other code"


def find_obstacle(kernel: ListedKernel, is_recording_cuda: bool) -> str:
    """Name what keeps a kernel from being reached; nothing for one that is reached."""
    if kernel.is_reached:
        return ""
    if kernel.refusals:
        return REFUSED
    if kernel.helper_of:
        return ONLY_HELPER
    if not kernel.launch_sites:
        return NO_LAUNCH
    if kernel.kind is KernelKind.CUDA and not is_recording_cuda:
        return NO_CUDA_EXECUTOR
    entries = [entry for entry in kernel.entries if not _TESTS.search(entry.partition(":")[0])]
    if not entries:
        return ONLY_TESTS
    return find_area(kernel.file) or find_area(" ".join(entries)) or OTHER


def find_area(text: str) -> str:
    """Name the part of SGLang that a path or names of modules belong to."""
    return next((words for pattern, words in _AREAS if pattern.search(text)), "")
