"""What a launch returns: Triton's own compiled kernel, compiled when the program asks for it.

Compiling for a card takes a second, and most programs drop what a launch returns. So a launch
returns a `LaunchedKernel`; its first attribute (`asm`, `metadata`, `n_regs`) compiles the call with
Triton's own code for the card that the driver names. Nothing of that runs: launched again, it is
the checked kernel.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from harness.core.preparation import announce_preparation
from harness.sanitizer.triton import frontend, jit_kernels

_lock = threading.RLock()


class LaunchedKernel:
    """One launch's kernel, in place of `triton.compiler.CompiledKernel`."""

    def __init__(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._kernel, self._args, self._options = kernel, args, options

    @functools.cached_property
    def _compiled(self) -> Any:
        compiled = compile_for_card(self._kernel, self._args, self._options)
        compiled._init_handles()  # raises OutOfResources where the card has too little
        return compiled

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._compiled, name)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        kernel = self._kernel
        names = kernel.signature.parameters
        options = {key: value for key, value in self._options.items() if key not in names}
        known = frontend.get_binder(kernel).bind(self._args, self._options).values

        def launch(*args: Any, stream: Any = None) -> None:
            whole = complete_arguments(kernel, args, known)
            kernel.run(*whole, grid=grid, warmup=False, **options)

        return launch

    def describe_launch(self, grid: Any, values: dict[str, Any]) -> Any:
        """Return what Triton passes to the hooks of a launch."""
        device = driver.active.get_current_device()
        stream = driver.active.get_current_stream(device)
        return self._compiled.launch_metadata(grid, stream, *values.values())


def complete_arguments(kernel: Any, args: tuple[Any, ...], known: dict[str, Any]) -> list[Any]:
    """Return all arguments of a compiled kernel, whose constants are fixed.

    A program may pass constants again, which a card does not read, or leave them out.
    """
    constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    left_out = len(args) == len(known) - len(constants)
    names = [name for name in known if not left_out or name not in constants]
    given = dict(zip(names, args, strict=False))
    return [known[name] if name in constants else given.get(name, known[name]) for name in known]


def compile_for_card(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Compile a call as `JITFunction.warmup` does, and return the compiled kernel."""
    run = jit_kernels.get_original_run(JITFunction)
    with _lock, announce_preparation():
        hooks, kernel.pre_run_hooks = kernel.pre_run_hooks, []  # they belong to the launch
        try:
            return run(kernel, *args, grid=None, warmup=True, **options)
        finally:
            kernel.pre_run_hooks = hooks


def show_to_hooks(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Compile a kernel for a card if the program has set hooks that observe this.

    Hooks of loading a kernel see nothing: SGLang's servers set one, and a second for each kernel is
    too long for them.
    """
    if _find_hooks(knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook):
        compile_for_card(kernel, args, options)


def _find_hooks(*hooks: Any) -> list[Any]:
    """List those that the program has set; a chain of hooks may be empty."""
    return [hook for hook in hooks if hook is not None and getattr(hook, "calls", True)]


@contextlib.contextmanager
def call_launch_hooks(
    launched: LaunchedKernel, grid: Any, values: dict[str, Any]
) -> Iterator[None]:
    """Call the hooks that the program has set for each launch, before and after this one."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    hooks = _find_hooks(enter, leave)
    if not hooks:
        yield
        return
    described = launched.describe_launch(grid, values)
    if enter in hooks:
        enter(described)
    yield
    if leave in hooks:
        leave(described)


def is_raised_by_triton(error: Exception) -> bool:
    """Return whether Triton's own code refuses the kernel, as it would for a card."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals["__name__"]).startswith("triton.")
