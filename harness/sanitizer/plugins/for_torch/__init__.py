"""torch's own extensions (`load`, `load_inline`), called directly or as operators, on this CPU."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

from harness.sanitizer.plugins import SanitizerPlugin

_BUILDER = "torch.utils.cpp_extension"


@functools.cache  # each session of `checked_cuda` calls it
def _build_cuda_kernels() -> None:
    from harness.core.after_import import call_after_import
    from harness.sanitizer.check import virtual_check
    from harness.sanitizer.plugins.for_torch import extensions

    call_after_import({_BUILDER: extensions.hook_builds})
    virtual_check.SESSION_EXTENSIONS.append(_check_launches)


def _check_launches(check: Any) -> contextlib.AbstractContextManager[None]:
    """Check the launches of a session, if its process imports what builds them."""
    if _BUILDER not in sys.modules:
        return contextlib.nullcontext()
    from harness.sanitizer.cuda import session

    return session.check_launches(check)


PLUGIN = SanitizerPlugin(build_cuda_kernels=_build_cuda_kernels)
