"""What SGLang's engine is told on a machine without a GPU, and how its kernels are watched.

Runs inside SGLang's own processes. Nothing here computes an answer: on a CPU the speculative
modules are told to take the Triton tree kernels that SGLang itself ships (for XPU), since the
CUDA ones are a binary. What was told is said once, in the server's log, and kept with the run.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import zlib
from typing import Any

ADAPTATIONS_VARIABLE = "UNFIX_ENGINE"
TREE_KERNELS = "tree-kernels"
CHECKED_KERNELS = "checked"
RANDOM_WEIGHTS = "drawn-weights"
DESCRIPTIONS = {
    TREE_KERNELS: "SGLang's own Triton tree kernels stand in for the CUDA ones",
    CHECKED_KERNELS: "every Triton kernel of the scheduler is under check",
    RANDOM_WEIGHTS: "its weights are drawn by seed, not learned: its logits are compared, it knows nothing",
}
LM_HEAD_SCALE = 8.0  # of the last layer: logits far enough apart to name a token
EXPERT_SCALE = 0.125  # of experts: which of two as likely ones is taken must not decide the answer

# Where a release keeps the switch between the tree kernels, and what it is told there.
_TREE_KERNEL_MODULES = (
    "sglang.srt.speculative.eagle_utils",
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.speculative.eagle_worker_common",
    "sglang.kernels.ops.speculative.cache_locs",
    "sglang.kernels.ops.speculative.spec_tree",
    "sglang.srt.speculative.triton_ops.spec_tree",
    "sglang.srt.speculative.triton_ops.cache_locs",
    "sglang.srt.mem_cache.allocation",
)
_XPU_FUNCTIONS = ("sgl_build_tree_kernel_triton", "assign_extend_cache_locs_uniform_func")


def has_triton() -> bool:
    """Without Triton nothing is launched that would have to be compiled."""
    return importlib.util.find_spec("triton") is not None


def preload_kernels() -> None:
    """What a server's kernels need to be loaded, so that forks find it there."""
    if has_triton():
        from harness import checking

        checking.preload_checker()


def apply_adaptations(names: list[str]) -> None:
    """Make these adaptations in this process; what is forked from it has them, too."""
    if has_triton():
        _run_kernels_on_cpu(checked=CHECKED_KERNELS in names)
    for name in names:
        if name != CHECKED_KERNELS:
            {TREE_KERNELS: _use_triton_tree_kernels, RANDOM_WEIGHTS: _randomize_dummy_weights}[
                name
            ]()


def launch_server_process(arguments: list[str]) -> None:
    """Start the server with these words, and with one that some releases want on a CPU besides.

    Told to capture no graphs, they still capture those of prefills, which no CPU has.
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


def _use_triton_tree_kernels() -> None:
    told = []
    for name in _TREE_KERNEL_MODULES:
        try:
            module: Any = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "_is_cpu"):
            module._is_cpu = False
        if hasattr(module, "_is_xpu") and any(hasattr(module, kernel) for kernel in _XPU_FUNCTIONS):
            module._is_xpu = True
            told.append(name)
    if not told:
        raise RuntimeError(
            "this SGLang has no Triton tree kernels: speculative decoding needs CUDA here"
        )


def _run_kernels_on_cpu(checked: bool) -> None:
    """Have the scheduler's kernels run on this machine's CPU, which nothing else does.

    Its loop, which launches what answers, is under check if that was asked for.
    """
    from sglang.srt.managers.scheduler import Scheduler

    from harness import checking

    def within(method: Any, session: Any) -> Any:
        plain = getattr(method, "plain", method)

        def run(self: Any, *args: Any, **options: Any) -> Any:
            if _is_cuda_available():
                return plain(self, *args, **options)
            with session():
                return plain(self, *args, **options)

        run.plain = plain  # type: ignore[attr-defined]
        return functools.wraps(plain)(run)

    loop = (lambda: checking.checked("cpu")) if checked else checking.run_kernels_on_cpu
    Scheduler.__init__ = within(Scheduler.__init__, checking.run_kernels_on_cpu)
    Scheduler.event_loop_normal = within(Scheduler.event_loop_normal, loop)


def _is_cuda_available() -> bool:
    """Asked in the scheduler's own process: one that asked before a fork could not use it after."""
    import torch

    return bool(torch.cuda.is_available())


def _randomize_dummy_weights() -> None:
    """Have the weights of `--load-format dummy` drawn as an untrained model's are.

    SGLang's own are all but nothing, norms included, so every token would be as likely as any
    other, and whatever went wrong below would not show.
    """
    from sglang.srt.model_loader import loader, weight_utils

    for module in (loader, weight_utils):
        if not hasattr(module, "initialize_dummy_weights"):
            raise RuntimeError("this SGLang makes its dummy weights elsewhere")
        module.initialize_dummy_weights = fill_random_weights


def fill_random_weights(model: Any, *_: Any, **__: Any) -> None:
    """Each weight from its own name: a matrix keeps the size of what goes through it."""
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
        # In float32 on the way: the narrow types draw nothing themselves.
        values = torch.empty(weight.shape, device=weight.device)
        weight.data.copy_(values.normal_(0.0, scale, generator=draw))
