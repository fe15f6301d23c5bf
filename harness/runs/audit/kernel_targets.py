"""The targets of an audit: which kernels the words of a call name."""

from __future__ import annotations

from collections.abc import Sequence


def is_targeted(module: str, kernel: str, targets: Sequence[str]) -> bool:
    """Return whether a target names the kernel, its module, a folder on the way, or its file."""
    path = module.replace(".", "/")
    return not targets or any(
        target in (kernel, module, f"{module}:{kernel}")
        or module.startswith(f"{target}.")
        or target in module.split(".")
        or target.removesuffix(".py").endswith(path)
        for target in targets
    )
