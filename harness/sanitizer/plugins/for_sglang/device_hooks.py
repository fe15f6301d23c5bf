"""What of SGLang itself the virtual device replaces, once its module is imported.

`load_jit` compiles SGLang's CUDA sources; here it returns a module whose exports are stand-ins,
until a session asks for the kernels themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from harness.core.after_import import call_after_import, rebind_in_all_modules
from harness.sanitizer.device import graphs
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.device.stand_ins import JitBuild, call_stand_in
from harness.sanitizer.plugins.for_sglang import code_paths
from harness.sanitizer.plugins.for_sglang.checked_loader import OWN_LOADER


class JitModule:
    """A JIT module of SGLang: each export is called as a stand-in."""

    def __init__(
        self, marker: tuple[str, ...], kernels: dict[str, str], request: dict[str, Any]
    ) -> None:
        self._marker = marker
        self._kernels = kernels
        self._request = request  # the options of `load_jit`

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        build = JitBuild(self._marker, self._kernels.get(name, name), name, self._load_own)
        # Sizes in a module's name, as in `set_mla_kv_buffer_1024_128`, are template arguments.
        full = f"jit:{re.sub(r'(_[0-9]+)+$', '', self._marker[0])}.{name}"

        def call(*args: Any, **options: Any) -> Any:
            return call_stand_in(full, args, options, build)

        setattr(self, name, call)
        return call

    def _load_own(self) -> Any:
        """Load SGLang's own module beside the stand-ins: it is built."""
        with load_own_modules():
            return importlib.import_module(OWN_LOADER).load_jit(*self._marker, **self._request)


def load_stand_ins(*args: Any, **options: Any) -> JitModule:
    wrappers = (*(options.get("cuda_wrappers") or ()), *(options.get("cpp_wrappers") or ()))
    return JitModule(tuple(map(str, args)), dict(wrappers), options)


def _replace_load_jit(module: ModuleType) -> None:
    module.load_jit = load_stand_ins  # type: ignore[attr-defined]


def _choose_at_each_call(module: ModuleType) -> None:
    """Load stand-ins until SGLang's own modules are asked for.

    Others wrap `load_jit` as well, before or after this: so nothing is put back in its place.
    """
    load_own = module.load_jit

    def load_jit(*args: Any, **options: Any) -> Any:
        return (load_own if _runs_real_modules else load_stand_ins)(*args, **options)

    rebind_in_all_modules("load_jit", load_own, load_jit)


_runs_real_modules = False


def leave_load_jit() -> None:
    """Leave modules to SGLang's own `load_jit` from now on: they are built and run."""
    global _runs_real_modules
    _runs_real_modules = True


def loads_own_modules() -> bool:
    return _runs_real_modules


@contextlib.contextmanager
def load_own_modules() -> Iterator[None]:
    """Leave modules to SGLang's own `load_jit` meanwhile."""
    global _runs_real_modules
    before, _runs_real_modules = _runs_real_modules, True
    try:
        yield
    finally:
        _runs_real_modules = before


def _replace_message_queue(module: ModuleType) -> None:
    """Give no queue in shared memory: its other ends would be in processes that are not there."""
    queue: Any = module.MessageQueue
    queue.create_from_process_group = staticmethod(lambda *args, **options: None)


def _replace_memory_size(module: ModuleType) -> None:
    """Answer what older releases ask the program nvidia-smi for, in MiB."""
    module.get_nvgpu_memory_capacity = lambda: get_card().memory / (1 << 20)  # type: ignore[attr-defined]


def _replace_rope_module(module: ModuleType) -> None:
    """Build it without FlashInfer's headers, which 0.5.9 looks for in FlashInfer's folder."""
    name = "apply_rope_pos_ids_cos_sin_cache"
    setattr(module, f"_jit_{name}_module", lambda: load_stand_ins(name))


def _leave_nccl_disabled(module: ModuleType) -> None:
    """Leave SGLang's own binding of NCCL disabled, also while capturing: no library is loaded.

    Collectives are then those of torch's group, in graphs as outside of them.
    """
    communicator: Any = module.PyNcclCommunicator
    communicator.change_state = lambda self, *args, **options: contextlib.nullcontext()


def _ask_torch_for_captures(module: ModuleType) -> None:
    """Ask torch whether a stream is capturing: here a thread is, whichever stream it is on."""
    module._is_stream_capturing = lambda _: graphs.is_current_stream_capturing()  # type: ignore[attr-defined]


def _replace_clique_check(module: ModuleType) -> None:
    """Say that the ranks share no NVLink clique, which NVML is asked for: they are not there."""
    module.is_one_nvlink_clique = lambda *args, **options: False  # type: ignore[attr-defined]


_BREAKABLE_GRAPHS = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph"
_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    OWN_LOADER: _choose_at_each_call,
    "sglang.jit_kernel.utils": _replace_load_jit,
    "sglang.jit_kernel.rope": _replace_rope_module,
    "sglang.srt.utils.common": _replace_memory_size,
    "sglang.srt.distributed.device_communicators.shm_broadcast": _replace_message_queue,
    "sglang.srt.distributed.device_communicators.pynccl": _leave_nccl_disabled,
    f"{_BREAKABLE_GRAPHS}.breakable_cuda_graph": _ask_torch_for_captures,
    "sglang.srt.layers.flashinfer_comm_fusion": _replace_clique_check,
}


def install_hooks() -> None:
    call_after_import(_HOOKS)
    call_after_import(code_paths.HOOKS)  # of the same modules, partly
