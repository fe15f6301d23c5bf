"""torch's own extensions, called directly or as operators, on this CPU.

They are built by `load` and `load_inline` while a program runs, or by a `setup.py` before.
"""

from __future__ import annotations

import functools

from harness.sanitizer.plugins import SanitizerPlugin

_BUILDER, _OPERATORS = "torch.utils.cpp_extension", "torch._ops"


@functools.cache  # each session of `checked_cuda` calls it
def _build_cuda_kernels() -> None:
    from harness.core.after_import import call_after_import
    from harness.sanitizer.check import virtual_check
    from harness.sanitizer.plugins.for_torch import built_extensions, extensions, open_sessions

    call_after_import({_BUILDER: extensions.hook_builds, _OPERATORS: built_extensions.hook_loads})
    built_extensions.hook_imports()
    virtual_check.SESSION_EXTENSIONS.append(open_sessions.check_launches)


PLUGIN = SanitizerPlugin(build_cuda_kernels=_build_cuda_kernels)
