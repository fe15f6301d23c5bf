"""TorchInductor's kernels launched through Triton, so that checks can be compiled in.

Inductor compiles its kernels ahead, in other processes, and launches them past `JITFunction.run`.
They are Triton kernels whose source is at hand, so a launch of one becomes `kernel[grid](…)` with
the types and the configuration that Inductor chose. Only this module knows Inductor's internals.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from harness.sanitizer.triton import jit_kernels
from harness.sanitizer.violations.facts import shorten_path

INDUCTOR_MODULE = "torch._inductor.runtime.triton_heuristics"
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_COMPILE_OPTIONS = ("num_warps", "num_stages", "debug", "enable_fp_fusion")
_LAUNCH_FLAGS = ("launch_cooperative_grid", "launch_pdl")


class UnsupportedInductorLaunch(Exception):
    """A launch of Inductor's that cannot go through Triton; the message says why."""


@dataclass(frozen=True, slots=True)
class InductorLaunch:
    """A launch as `kernel[grid](**options)`."""

    kernel: Any
    grid: tuple[int, int, int]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _TunedKernel:
    """A kernel with the configuration that Inductor chose, for all its launches."""

    config: Any
    kernel: Any
    argument_names: tuple[str, ...]  # in order
    kernel_argument_count: int  # the other arguments are its grid's
    compute_grid: Callable[..., tuple[int, int, int]]
    fixed_options: dict[str, Any]


_tuned_kernels: WeakKeyDictionary[Any, _TunedKernel] = WeakKeyDictionary()


def replace_inductor_run(run: Callable[..., Any]) -> Callable[..., Any] | None:
    """Replace the launch of Inductor's kernels; return the old one, or None without Inductor."""
    module = sys.modules.get(INDUCTOR_MODULE)
    if module is None:
        return None
    cls: Any = module.CachingAutotuner
    before, cls.run = cls.__dict__["run"], run
    return before  # type: ignore[no-any-return]


def get_kernel_name(tuner: Any) -> str:
    return str((tuner.inductor_meta or {}).get("kernel_name") or tuner.fn.__name__)


def find_compiled_function() -> str:
    """Find the user's function: the kernels' own lines are in files that Inductor generated."""
    frame, behind = sys._getframe(1), False
    while frame.f_back is not None:
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        in_torch = module.startswith("torch.") or file.startswith(_TORCH_FOLDER)
        if behind and not in_torch:
            return f"{frame.f_code.co_name} ({shorten_path(file)}:{frame.f_lineno})"
        frame, behind = frame.f_back, behind or in_torch
    return ""


def to_triton_launch(
    tuner: Any, args: Sequence[Any], keyword_args: dict[str, Any]
) -> InductorLaunch:
    if keyword_args:
        raise UnsupportedInductorLaunch("Inductor passes arguments by name")
    if not tuner.launchers:
        tuner.precompile()
    # Of several, Inductor would time which is the fastest, without checks, and this launch may be
    # the one that loses the device.
    config = tuner.launchers[0].config
    chosen = _tuned_kernels.get(tuner)
    if chosen is None or chosen.config is not config:
        chosen = _tuned_kernels[tuner] = _resolve_tuned_kernel(tuner, config)
    if len(args) != len(chosen.argument_names):
        raise UnsupportedInductorLaunch(
            f"Inductor passes {len(args)} arguments, not {len(chosen.argument_names)}"
        )
    own = dict(zip(chosen.argument_names[: chosen.kernel_argument_count], args, strict=False))
    return InductorLaunch(
        chosen.kernel, chosen.compute_grid(*args), {**chosen.fixed_options, **own}
    )


def _resolve_tuned_kernel(tuner: Any, config: Any) -> _TunedKernel:
    if tuner.fn.fn is None:  # loaded from another process, without its function
        if (reload := getattr(tuner, "_reload_kernel", None)) is None:
            raise UnsupportedInductorLaunch("Inductor no longer has its source")
        tuner.fn = reload().fn
    kernel = tuner.fn
    meta = tuner._create_compile_meta(config)
    signature, constants = meta["signature"], meta["constants"]
    fixed_names = {kernel.arg_names[place] for place in kernel.constexprs}
    own = [name for name in signature if name not in fixed_names]
    more = tuner.inductor_meta.get("extra_launcher_args", ())
    fixed = {name: value for name, value in constants.items() if name in kernel.arg_names}
    fixed |= {name: meta[name] for name in _COMPILE_OPTIONS if name in meta}
    fixed |= {name: True for name in _LAUNCH_FLAGS if meta.get(name)}
    fixed["sanitize_overflow"] = False  # Inductor's own setting
    if meta.get("disable_ftz"):
        fixed["enable_reflect_ftz"] = False
    names = (*own, *more)
    return _TunedKernel(
        config,
        _annotate_kernel(kernel, signature),
        names,
        len(own),
        _compile_grid(tuner, config, names),
        fixed,
    )


def _compile_grid(
    tuner: Any, config: Any, argument_names: Sequence[str]
) -> Callable[..., tuple[int, int, int]]:
    """Compile Inductor's grid, which is text with the names of the arguments."""
    grid = sys.modules[INDUCTOR_MODULE].GridExpr.from_meta(tuner.inductor_meta, config)
    sides = f"return {grid.x_grid}, {grid.y_grid}, {grid.z_grid}"
    lines = "".join(f"    {line}\n" for line in (*grid.prefix, sides))
    scope: dict[str, Any] = {}
    exec(f"def grid({', '.join(argument_names)}):\n{lines}", scope)
    return scope["grid"]  # type: ignore[no-any-return]


def _annotate_kernel(kernel: Any, signature: dict[str, str]) -> Any:
    """Give the kernel the types that Inductor compiled it for; a launch would guess them."""
    parameters = [
        parameter.replace(annotation=kind)
        if (kind := _get_annotation(parameter, signature))
        else parameter
        for parameter in kernel.signature.parameters.values()
    ]
    signature_with_types = inspect.Signature(parameters)
    return jit_kernels.copy_with_signature(kernel, signature_with_types, kernel.src, [], [])


def _get_annotation(parameter: inspect.Parameter, signature: dict[str, str]) -> str:
    kind = signature.get(parameter.name, "constexpr")
    return (
        "" if kind.startswith("*") or parameter.annotation is not inspect.Parameter.empty else kind
    )
