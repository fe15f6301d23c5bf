"""Stands in for sgl_kernel, SGLang's CUDA binaries, which attention backends import by name."""

import sys
from typing import Any

from _refusing import stand_in

stand_in(__name__)


def _leave_out_what_is_absent(torch: Any) -> None:
    """Skip the shapes of missing operators: nothing calls these operators."""
    register = torch.library.register_fake

    def register_fake(operator: Any, *function: Any, **options: Any) -> Any:
        package, _, name = str(operator).partition("::")
        if package == "sgl_kernel" and not hasattr(torch.ops.sgl_kernel, name):
            return function[0] if function else lambda function: function
        return register(operator, *function, **options)

    torch.library.register_fake = register_fake


if "torch" in sys.modules:
    _leave_out_what_is_absent(sys.modules["torch"])
