"""CUDA modules that are built while this process runs, on a GPU and under check.

Each export of a module is called as a host call, so that reports name its tensors. Checks begin
with the first module that is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.core.after_import import call_after_import, rebind_in_all_modules
from harness.core.errors import NotReadyError
from harness.core.stderr import report_to_stderr
from harness.sanitizer import plugins
from harness.sanitizer.cuda import driver_library
from harness.sanitizer.cuda.checked_toolchain import CheckedToolkit, get_checked_toolkit
from harness.sanitizer.cuda.host_signatures import ExportingModule

if TYPE_CHECKING:
    from harness.sanitizer.cuda.checked_launches import CheckedCudaLaunches

_TVM_LOADER = "tvm_ffi.module"
_START = ctypes.CFUNCTYPE(None)
_loaded: list[Any] = []  # the driver's stand-in and the function that it calls


def install_at_startup() -> None:
    """Check the modules of this process, if its environment has a checked toolkit."""
    toolkit = get_checked_toolkit()
    if toolkit is not None:
        build_with_checks(toolkit, start_checks)
        call_after_import({_TVM_LOADER: _wrap_load_module})
        # Of all plug-ins: the program's folder, which may hold a package, is not on the path yet.
        for plugin in plugins.list_all():
            call_after_import(plugin.find_loader_hooks())


def build_with_checks(toolkit: CheckedToolkit, start_checks: Callable[[], Any]) -> None:
    """Load the driver's stand-in, then have this process build with checks.

    `start_checks` is called before the first checked module is loaded. Invariant: no kernel is
    built with a parameter that its launch here would lack. So a process that cannot load the
    driver's stand-in must end (an error is raised); without a driver, nothing is launched.
    """
    if importlib.util.find_spec("torch") is None:  # checks need it
        toolkit.restore_variables(os.environ)
        return
    if toolkit.driver.exists():
        driver = driver_library.load_standin(toolkit.driver)
        start = _START(lambda: _start_session(start_checks))
        driver.unfix_set_start_hook(start)
        _loaded.extend((driver, start))
    elif driver_library.has_driver():
        raise NotReadyError(f"{toolkit.driver} is missing, and this machine has a driver")
    toolkit.set_variables(os.environ)


def _start_session(start_checks: Callable[[], Any]) -> None:
    try:
        start_checks()
    except BaseException as error:  # its launches say that they have no checks
        report_to_stderr(f"checks of CUDA kernels do not start: {error!r}")


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
