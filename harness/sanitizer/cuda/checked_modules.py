"""CUDA modules that are built while this process runs, on a GPU and under check.

Each export of a module is called as a host call, so that reports name its tensors. Checks begin
with the first module that is loaded.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.core.after_import import call_after_import, rebind_in_all_modules
from harness.sanitizer import plugins
from harness.sanitizer.cuda import checked_nvrtc
from harness.sanitizer.cuda.checked_toolchain import get_checked_toolkit
from harness.sanitizer.cuda.host_signatures import ExportingModule

if TYPE_CHECKING:
    from harness.sanitizer.cuda.checked_launches import CheckedCudaLaunches

_TVM_LOADER = "tvm_ffi.module"


def install_at_startup() -> None:
    """Check the modules of this process, if its environment has a checked toolkit."""
    toolkit = get_checked_toolkit()
    if toolkit is not None:
        checked_nvrtc.install_standins(toolkit, start_checks)
        call_after_import(
            {
                _TVM_LOADER: _wrap_load_module,
                "torch.cuda._utils": _wrap_torch_kernels,
                "torch.cuda.jiterator": _wrap_jiterator,
            }
        )
        for plugin in plugins.list_installed():
            call_after_import(plugin.find_loader_hooks())


_lock = threading.Lock()  # modules are loaded in several threads
_started: list[CheckedCudaLaunches] = []


def start_checks() -> CheckedCudaLaunches:
    """Return the launches of this process, which are checked from now on."""
    with _lock:
        if not _started:
            _started.append(_start_checks())
        return _started[0]


def _start_checks() -> CheckedCudaLaunches:
    from harness.sanitizer.cuda.checked_launches import CheckedCudaLaunches
    from harness.sanitizer.watch import activation, checked_process

    toolkit = get_checked_toolkit()
    assert toolkit is not None
    activation.start_checks()
    process = checked_process.ensure_process()
    launches = CheckedCudaLaunches(
        toolkit,
        process.launcher.summaries,
        process.describe_work,
        whole_storages=True,
        number_launch=process.launcher.number_launch if "races" in process.checks else None,
    )
    launches.install()
    return launches


class CheckedModule(ExportingModule):
    """A loaded module; a call of an export notes its tensors."""

    def _wrap_export(self, name: str, names: tuple[str, ...], function: Any) -> Any:
        launches = start_checks()

        def call(*args: Any, **options: Any) -> Any:
            with launches.note_call(f"{self._name}.{name}", names, args):
                return function(*args, **options)

        return call

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def _wrap_load_module(tvm: Any) -> None:
    load_module = tvm.load_module

    @functools.wraps(load_module)
    def load_checked(path: Any, *args: Any, **options: Any) -> Any:
        module = load_module(path, *args, **options)
        start_checks()
        return CheckedModule(module, str(path).rpartition("/")[2].removesuffix(".so"), {}, ())

    rebind_in_all_modules("load_module", load_module, load_checked)


def _wrap_torch_kernels(utils: Any) -> None:
    """Note the tensors of kernels that `torch.cuda._compile_kernel` has NVRTC compile.

    They are called as `kernel(grid, block, args)`.
    """

    def list_tensors(args: Any, options: Any) -> Any:
        return options.get("args") or (args[2] if len(args) > 2 else ())

    _note_calls(utils, "_CudaKernel", list_tensors)


def _wrap_jiterator(jiterator: Any) -> None:
    _note_calls(jiterator, "_JittedFunction", lambda args, options: args)


def _note_calls(module: Any, name: str, list_tensors: Callable[[Any, Any], Any]) -> None:
    """Have calls of a class's objects note their tensors; older torch has no such class."""
    cls = getattr(module, name, None)
    if cls is None:
        return
    call = cls.__call__

    @functools.wraps(call)
    def call_checked(launcher: Any, *args: Any, **options: Any) -> Any:
        tensors = tuple(list_tensors(args, options) or ())
        with start_checks().note_call(module.__name__, (), tensors):
            return call(launcher, *args, **options)

    cls.__call__ = call_checked
