"""On PYTHONPATH under `unfix exec`: installs toggles and checks, then the next sitecustomize."""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_here = os.path.dirname(os.path.abspath(__file__))
_toggle_variables = ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR")
_other_variables = ("UNFIX_CHECK", "UNFIX_ORIGINS")
_on_virtual_device = os.environ.get("UNFIX_DEVICE") == "virtual"


def _install_hooks() -> None:
    folder = os.path.dirname(_here)
    if "harness" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "harness", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None
        assert spec.loader is not None
        harness = importlib.util.module_from_spec(spec)
        sys.modules["harness"] = harness
        spec.loader.exec_module(harness)
    from harness.patching import bootstrap, import_origins
    from harness.sanitizer.watch import activation as checks

    bootstrap.install_import_hook()
    import_origins.install_check(bootstrap.exit_process)
    checks.install_checks()
    if os.environ.get("UNFIX_CHECKED_CUDA"):
        from harness.sanitizer.cuda import checked_modules

        checked_modules.install_at_startup()
    if _on_virtual_device:  # its table of cards needs a reader of YAML
        from harness.sanitizer.watch import virtual_process

        if os.environ.get("UNFIX_CUDA_KERNELS"):
            _run_cuda_kernels()
        virtual_process.install_at_startup()


def _run_cuda_kernels() -> None:
    """Build and run CUDA C++ kernels, once torch is imported, under checks of sessions."""
    from types import ModuleType

    from harness.core.after_import import call_after_import
    from harness.releases import cuda_toolkit  # noqa: F401 - it builds them

    def install(torch: ModuleType) -> None:
        from harness.sanitizer import plugins
        from harness.sanitizer.cuda.host_calls import CALLS
        from harness.sanitizer.watch import virtual_process

        for plugin in plugins.list_installed():
            plugin.build_cuda_kernels()
        CALLS.prepare = virtual_process.open_first_session

    def extend_sessions(virtual_check: ModuleType) -> None:
        from harness.sanitizer.cuda.session import check_launches

        virtual_check.SESSION_EXTENSIONS.append(check_launches)

    call_after_import({"torch": install, "harness.sanitizer.check.virtual_check": extend_sessions})


def _run_next_sitecustomize() -> None:
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_toggles_requested = any(os.environ.get(name) for name in _toggle_variables)
_others_requested = any(os.environ.get(name) for name in _other_variables)
if _toggles_requested or _on_virtual_device or _others_requested:
    try:
        _install_hooks()
    except BaseException as error:
        subject = "toggles" if _toggles_requested else "checks or the virtual device"
        reason = repr(error)
        if "harness" in sys.modules:
            from harness.core.missing_package import describe_missing_package

            reason = describe_missing_package(error)
        sys.stderr.write(f"unfix: {subject} cannot be applied: {reason}\n")
        sys.stderr.flush()
        os._exit(3)
_run_next_sitecustomize()
