"""Which configuration of an autotuned kernel is launched: the first one that a card takes.

A card's autotuner drops a configuration that needs too many threads or too much shared memory, or
whose static assertion fails. Nothing runs here to find that out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources

from harness.sanitizer.check import launch_limits
from harness.sanitizer.check.launch_log import KernelLaunch, to_full_grid
from harness.sanitizer.triton import frontend


def make_configuration_check(launcher: Any) -> Callable[..., None]:
    """Make what stands for `JITFunction.run` while the autotuner measures a CpuLauncher's."""

    def check(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        try:
            _check_configuration(launcher, kernel, args, grid, options)
        except (OutOfResources, CompileTimeAssertionFailure):
            raise
        except Exception:  # the launch raises it again
            return

    return check


def _check_configuration(
    launcher: Any, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]
) -> None:
    name, binder = str(kernel.fn.__name__), frontend.get_binder(kernel)
    bound = launcher.bind_call(binder, args, options)
    sides = grid(dict(bound.values)) if callable(grid) else grid
    own = {key: value for key, value in options.items() if key not in bound.values}
    launch = KernelLaunch(name, to_full_grid(sides), dict(bound.values), options=own)
    launch_limits.refuse_grid(launch)
    program, _ = launcher.get_program(name, kernel, binder, bound)
    launch_limits.refuse_shared_memory(launch, program.lowered, kernel)
