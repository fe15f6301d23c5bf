"""Adaptations of SGLang's engine to a machine without a GPU, and the checks of its kernels.

Runs inside SGLang's own processes. Nothing here computes an answer. Example: on a CPU the
speculative modules use the Triton tree kernels that SGLang ships for XPU, since the CUDA kernels
are a binary. A run records its adaptations.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Sequence
from typing import Any

from harness.core import device
from harness.sanitizer.watch import virtual_process

ADAPTATIONS_VARIABLE = "UNFIX_ENGINE"
TREE_KERNELS = "tree-kernels"
CHECKED_KERNELS = "checked"
RANDOM_WEIGHTS = "drawn-weights"
DESCRIPTIONS = {
    TREE_KERNELS: "SGLang's own Triton tree kernels stand in for the CUDA ones",
    CHECKED_KERNELS: "every Triton kernel of the scheduler is checked",
    RANDOM_WEIGHTS: "its weights are random, from a seed: its logits can be compared, its answers "
    "mean nothing",
}
LM_HEAD_SCALE = 8.0  # for the last layer, so that logits differ enough to choose a token
EXPERT_SCALE = 0.125  # for experts, so that no tie between two decides the answer

# The modules that choose between the tree kernels, in any release.
TREE_MODULES = (
    "sglang.kernels.ops.speculative.spec_tree",
    "sglang.srt.speculative.triton_ops.spec_tree",
)
_TREE_KERNEL_MODULES = (
    *TREE_MODULES,
    "sglang.srt.speculative.eagle_utils",
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.speculative.eagle_worker_common",
    "sglang.kernels.ops.speculative.cache_locs",
    "sglang.srt.speculative.triton_ops.cache_locs",
    "sglang.srt.mem_cache.allocation",
)
_XPU_FUNCTIONS = ("sgl_build_tree_kernel_triton", "assign_extend_cache_locs_uniform_func")


def has_triton() -> bool:
    """Return whether this Python has Triton; without it there are no kernels to compile."""
    return importlib.util.find_spec("triton") is not None


def preload_kernels() -> None:
    """Load the modules that a server's kernels need, so that its forks share them."""
    if has_triton():
        from harness import checking

        checking.preload_checker()


def apply_adaptations(names: list[str]) -> None:
    """Apply adaptations in this process and its future forks."""
    if has_triton():
        _run_kernels_on_cpu(checked=CHECKED_KERNELS in names)
    for name in names:
        if name != CHECKED_KERNELS:
            {TREE_KERNELS: use_triton_tree_kernels, RANDOM_WEIGHTS: _randomize_dummy_weights}[
                name
            ]()


def launch_server_process(arguments: list[str]) -> None:
    """Start the server, on a CPU with an option that some releases need.

    Without it, `--disable-cuda-graph` still captures graphs of prefills, which fails on a CPU.
    """
    from sglang.srt import server_args
    from sglang.srt.entrypoints.http_server import launch_server

    if hasattr(server_args.ServerArgs, "disable_piecewise_cuda_graph"):
        import torch

        if not torch.cuda.is_available():
            arguments = [*arguments, "--disable-piecewise-cuda-graph"]
    sys.argv = ["sglang.launch_server", *arguments]
    launch_server(server_args.prepare_server_args(arguments))


def read_requested_names() -> list[str]:
    return [name for name in os.environ.get(ADAPTATIONS_VARIABLE, "").split(",") if name]


def use_triton_tree_kernels(modules: Sequence[str] = _TREE_KERNEL_MODULES) -> None:
    """Have these modules launch what SGLang launches on an XPU."""
    adapted = []
    for name in modules:
        try:
            module: Any = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        for other in ("_is_cpu", "_is_cuda"):
            if hasattr(module, other):
                setattr(module, other, False)
        if hasattr(module, "_is_xpu") and any(hasattr(module, kernel) for kernel in _XPU_FUNCTIONS):
            module._is_xpu = True
            adapted.append(name)
    if not adapted:
        raise RuntimeError(
            "this SGLang has no Triton tree kernels: speculative decoding needs CUDA here"
        )


def _run_kernels_on_cpu(checked: bool) -> None:
    """Run the scheduler's kernels, and no others, on this machine's CPU.

    With `checked`, the kernels that its event loop launches are checked. The virtual GPU runs all
    kernels by itself; with `checked`, the scheduler's are checked from its start on, graphs
    included. Functions under `torch.compile` run as they are written: to compile them for this CPU
    takes each scheduler longer than a hundred answers.
    """
    from sglang.srt.managers.scheduler import Scheduler

    from harness import checking

    if device.get_device() == device.VIRTUAL:
        if checked:
            Scheduler.__init__ = _check_before(Scheduler.__init__)
        return

    def wrap_in_session(method: Any, session: Any) -> Any:
        plain = getattr(method, "plain", method)

        def run_in_session(self: Any, *args: Any, **options: Any) -> Any:
            if _is_cuda_available():
                return plain(self, *args, **options)
            with session(), _run_uncompiled():
                return plain(self, *args, **options)

        run_in_session.plain = plain  # type: ignore[attr-defined]
        return functools.wraps(plain)(run_in_session)

    loop = (lambda: checking.checked("cpu")) if checked else checking.run_kernels_on_cpu
    Scheduler.__init__ = wrap_in_session(Scheduler.__init__, checking.run_kernels_on_cpu)
    Scheduler.event_loop_normal = wrap_in_session(Scheduler.event_loop_normal, loop)


def _check_before(method: Any) -> Any:
    @functools.wraps(method)
    def check_and_call(self: Any, *args: Any, **options: Any) -> Any:
        virtual_process.check_kernels()
        return method(self, *args, **options)

    return check_and_call


def _run_uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Run the functions of `torch.compile` uncompiled during the block."""
    import torch

    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _is_cuda_available() -> bool:
    """Query CUDA, in the scheduler's process only: a fork after this call cannot use CUDA."""
    import torch

    return bool(torch.cuda.is_available())


def _randomize_dummy_weights() -> None:
    """Draw the weights of `--load-format dummy` like those of an untrained model.

    SGLang's own dummy weights are nearly zero, norms included: every token would be equally likely,
    and no error below would show in the answer.
    """
    from sglang.srt.model_loader import loader, weight_utils

    for module in (loader, weight_utils):
        if not hasattr(module, "initialize_dummy_weights"):
            raise RuntimeError("this SGLang makes its dummy weights elsewhere")
        module.initialize_dummy_weights = fill_random_weights


def fill_random_weights(model: Any, *_: Any, **__: Any) -> None:
    """Draw each weight, seeded by its name; a matrix preserves the scale of its input."""
    import torch

    for name, weight in model.state_dict().items():
        if not torch.is_floating_point(weight):
            continue
        if weight.dim() < 2:
            weight.data.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        draw = torch.Generator(device=weight.device).manual_seed(zlib.crc32(name.encode()))
        scale = 1.0 if "embed" in name else weight.shape[-1] ** -0.5
        scale *= LM_HEAD_SCALE if "lm_head" in name else EXPERT_SCALE if weight.dim() > 2 else 1.0
        # Draw in float32: torch has no normal distribution for narrow types.
        values = torch.empty(weight.shape, device=weight.device)
        weight.data.copy_(values.normal_(0.0, scale, generator=draw))
