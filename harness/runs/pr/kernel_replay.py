"""Runs launches on two versions of a kernel and compares what each leaves in memory.

Both versions are read from their sources and compiled for this CPU, so neither end is imported.
Invariant: both get the same bytes. Example: `x * y + z` becomes `z + y * x`; every float agrees to
its last bit but one, so the answers are within rounding, not the same bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from harness.checking import UncheckableKernel, Violation
from harness.sanitizer.check import session
from harness.sanitizer.check.launch_capture import MAX_BYTES, CapturedLaunch, CapturedTensor
from harness.store.pr.part_results import KernelAnswer

ROUNDING_STEPS = 16  # of the type, at the tensor's largest magnitude
MAX_LISTED_ARGUMENTS = 40
_LONGER, _MORE_STRIDE = 4, 16  # so many times the memory; a multiple of what Triton specializes on


@dataclass(frozen=True)
class LaunchComparison:
    """The answers of one launch on both versions."""

    answer: KernelAnswer
    why: str = ""
    tensor: str = ""  # of the element that differs most
    index: tuple[int, ...] = ()
    before: float | int | bool = 0
    after: float | int | bool = 0


def describe_parameter_change(later: Any, launch: CapturedLaunch) -> str:
    """Return why a launch of the earlier kernel is none of the later one; '' if it is one."""
    parameters = inspect.signature(later.fn).parameters
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in launch.arguments
    ]
    if required:
        return f"its parameters changed: {', '.join(required)} is new"
    gone = [name for name in launch.arguments if name not in parameters]
    if gone and len(gone) == len(launch.arguments):
        return "all of its parameters changed"
    return ""


def compare_launch(earlier: Any, later: Any, launch: CapturedLaunch) -> LaunchComparison:
    """Run a launch on both versions of a kernel, and compare each tensor."""
    before, old_problem = launch_copy(earlier, launch)
    after, new_problem = launch_copy(later, launch)
    if isinstance(old_problem, UncheckableKernel) or isinstance(new_problem, UncheckableKernel):
        return LaunchComparison(KernelAnswer.NOT_COMPARED, str(new_problem or old_problem))
    if old_problem is not None:
        same = type(old_problem) is type(new_problem)
        text = "both versions" if same else "the earlier version"
        return LaunchComparison(KernelAnswer.NOT_COMPARED, f"{text} end with: {old_problem}")
    if isinstance(new_problem, Violation):
        return LaunchComparison(KernelAnswer.REPORTED, str(new_problem))
    if new_problem is not None:
        return LaunchComparison(KernelAnswer.NOT_COMPARED, f"it ends with: {new_problem}")
    differences = [
        _compare_tensors(name, value, after[name])
        for name, value in before.items()
        if isinstance(value, torch.Tensor)
    ]
    order = list(KernelAnswer)
    return min(
        differences,
        key=lambda one: order.index(one.answer),
        default=LaunchComparison(KernelAnswer.NOT_COMPARED, "it has no tensors"),
    )


def launch_copy(kernel: Any, launch: CapturedLaunch) -> tuple[dict[str, Any], Exception | None]:
    arguments = launch.make_arguments()
    parameters = inspect.signature(kernel.fn).parameters
    passed = {name: value for name, value in arguments.items() if name in parameters}
    try:
        with session.run_kernels_on_cpu():
            kernel[launch.grid](**passed)
    except Exception as error:  # a report, a refusal, or an error of Triton's front end
        return arguments, error
    return arguments, None


def _compare_tensors(name: str, before: torch.Tensor, after: torch.Tensor) -> LaunchComparison:
    if _read_bytes(before) == _read_bytes(after):
        return LaunchComparison(KernelAnswer.SAME)
    wide = torch.float64 if before.dtype.is_floating_point else torch.int64
    old, new = before.to(wide), after.to(wide)
    differs = (
        ~((old == new) | (old.isnan() & new.isnan())) if old.is_floating_point() else old != new
    )
    count = int(differs.sum())
    if not count:
        return LaunchComparison(KernelAnswer.SAME)  # NaN of other bits
    where = tuple(int(axis) for axis in differs.nonzero()[0])
    largest = float((old - new).abs()[differs].nan_to_num(float("inf")).max())
    words = (
        f"{name}: {count} of {before.numel()} elements differ, first at {list(where)}: "
        f"{before[where].item()} before, {after[where].item()} after; at most by {largest:.3g}"
    )
    if before.dtype.is_floating_point:
        magnitude = float(old[old.isfinite()].abs().max()) if bool(old.isfinite().any()) else 0.0
        if largest <= ROUNDING_STEPS * torch.finfo(before.dtype).eps * magnitude:
            return LaunchComparison(KernelAnswer.ROUNDING, words)
    distances = (old - new).abs().to(torch.float64).nan_to_num(float("inf")) * differs
    most = tuple(int(axis) for axis in (distances == distances.max()).nonzero()[0])
    element = name, most, before[most].item(), after[most].item()
    return LaunchComparison(KernelAnswer.DIFFERENT, words, *element)


def _read_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def iterate_draws(launch: CapturedLaunch) -> Iterator[CapturedLaunch]:
    """Yield launches around one: strides unlike each other, smaller counts, empty rows, ties.

    Some are none that SGLang would make. The earlier version is run under check, and one that it
    does not survive is no launch to compare.
    """
    yield from _iterate_wider_strides(launch)
    for name, value in launch.arguments.items():
        if isinstance(value, CapturedTensor):
            for change in _CHANGES:
                drawn = _change_tensor(launch, name, change)
                if drawn.memories != launch.memories:
                    yield drawn
        elif _is_count(name, value):
            for smaller in dict.fromkeys((value - 1, value // 2)):
                yield replace(launch, arguments=launch.arguments | {name: smaller})


def _iterate_wider_strides(launch: CapturedLaunch) -> Iterator[CapturedLaunch]:
    """Raise each stride in turn, over longer memory: strides that are equal hide one another.

    Example: keys and values of one shape; a kernel that reads values by the keys' stride is right.
    """
    if _LONGER * launch.byte_count > MAX_BYTES:
        return
    wide = {name: _lengthen_tensor(value, launch) for name, value in launch.arguments.items()}
    memories = tuple(memory * _LONGER for memory in launch.memories)
    for name, value in launch.arguments.items():
        if "stride" in name.lower() and isinstance(value, int) and value > 1:
            raised = wide | {name: value + _MORE_STRIDE}
            yield replace(launch, arguments=raised, memories=memories)


def _lengthen_tensor(value: Any, launch: CapturedLaunch) -> Any:
    """Let a tensor reach from its first element to the end of the longer memory."""
    if not isinstance(value, CapturedTensor):
        return value
    count = _LONGER * len(launch.memories[value.memory]) // value.dtype.itemsize
    return replace(value, shape=(count - value.offset,), strides=(1,))


def _is_count(name: str, value: Any) -> bool:
    """Return whether an argument may be a count: no stride, no size of a block, no flag."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 1
    return is_number and name == name.lower() and "stride" not in name


def _empty_some_rows(tensor: torch.Tensor) -> None:
    """Set each third integer to 0: an empty row, the first slot."""
    if not tensor.is_floating_point() and tensor.dtype is not torch.bool:
        tensor.view(-1)[::3] = 0


def _lower_integers(tensor: torch.Tensor) -> None:
    """Halve each second integer: a rank below the largest, a row that ends early."""
    if not tensor.is_floating_point() and tensor.dtype is not torch.bool:
        tensor.view(-1)[1::2] //= 2


def _make_ties(tensor: torch.Tensor) -> None:
    """Round floats to halves, so that many are equal."""
    if tensor.is_floating_point() and tensor.dtype.itemsize > 1:
        tensor.copy_((tensor.float() * 2).round() / 2)


_CHANGES = (_empty_some_rows, _lower_integers, _make_ties)


def _change_tensor(
    launch: CapturedLaunch, name: str, change: Callable[[torch.Tensor], None]
) -> CapturedLaunch:
    tensor, number = launch.make_arguments()[name], launch.arguments[name].memory
    if not tensor.is_contiguous() or not tensor.numel():
        return launch
    change(tensor)
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    memories = list(launch.memories)
    memories[number] = bytes(whole.numpy().tobytes())[: len(memories[number])]
    return replace(launch, memories=tuple(memories))


def describe_launch(launch: CapturedLaunch) -> list[str]:
    """Describe a launch, a line for the grid and each argument."""
    lines = [f"grid = {launch.grid}"]
    for name, value in launch.make_arguments().items():
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            numbers = f" = {value.tolist()}" if value.numel() <= 8 else ""
            lines.append(f"{name}: {dtype}{list(value.shape)}{numbers}")
        else:
            lines.append(f"{name} = {value!r}")
    if len(lines) > MAX_LISTED_ARGUMENTS:
        lines = [*lines[:MAX_LISTED_ARGUMENTS], f"and {len(lines) - MAX_LISTED_ARGUMENTS} more"]
    return lines
