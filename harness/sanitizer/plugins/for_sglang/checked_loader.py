"""Modules of SGLang's `load_jit` on a GPU: built with checks, and their exports are host calls."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from harness.core.after_import import AfterImport, rebind_in_all_modules
from harness.sanitizer.cuda import checked_modules

# Since 0.5.18. It stands here because each process asks for it at its start, and imports no torch.
OWN_LOADER = "sglang.kernels.jit.utils.compile.loader"


def _wrap_load_jit(loader: Any) -> None:
    load_jit = loader.load_jit

    @functools.wraps(load_jit)
    def load_checked(
        *args: str, cuda_wrappers: Any = None, cpp_wrappers: Any = None, **options: Any
    ) -> Any:
        module = load_jit(*args, cuda_wrappers=cuda_wrappers, cpp_wrappers=cpp_wrappers, **options)
        if not options.get("cuda_files"):
            return module
        checked_modules.start_checks()
        exports = dict([*(cuda_wrappers or ()), *(cpp_wrappers or ())])
        files = loader.resolve_sources(options["cuda_files"])
        return checked_modules.CheckedModule(module, "_".join(map(str, args)), exports, files)

    rebind_in_all_modules("load_jit", load_jit, load_checked)


HOOKS: Mapping[str, AfterImport] = {OWN_LOADER: _wrap_load_jit}
