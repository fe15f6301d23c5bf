"""A launch that two versions of a kernel answer differently, as the smallest test that shows it.

The test stands alone: it makes the tensors, launches the kernel, and compares one element with the
earlier version's answer. Floats are drawn anew from a seed, so that the test is short; integers
decide where a kernel reads, so they are written out. Invariant: the launch that is written has run
on both versions, and tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from harness.runs.pr.kernel_replay import LaunchComparison
from harness.sanitizer.check.launch_capture import CapturedLaunch, CapturedTensor
from harness.store.pr.part_results import KernelAnswer

MAX_LISTED = 256  # numbers of a memory
_TEMPLATE = '''\
"""The smallest launch by which a review told two versions of `{name}` apart.

On a GPU: python -m pytest FILE{option}
Without one: ./unfix exec --release RELEASE --device virtual{check} -- python -m pytest FILE
"""

import torch
from {module} import {name}


def test_{function}() -> None:
{memories}
    arguments = {{
{arguments}
    }}
    {name}[({grid},)](**arguments)
{end}
'''


def write_test(
    launch: CapturedLaunch, compare: Callable[[CapturedLaunch], LaunchComparison]
) -> str:
    """Write the test of a launch; '' if none that is short enough tells the versions apart."""
    dtypes = _find_dtypes(launch)
    if dtypes is None:
        return ""
    for tried in _iterate_short_launches(launch, dtypes):
        found = compare(tried)
        if found.answer in (KernelAnswer.DIFFERENT, KernelAnswer.REPORTED):
            return _render_test(tried, dtypes, found)
    return ""


def _iterate_short_launches(
    launch: CapturedLaunch, dtypes: list[torch.dtype]
) -> Iterator[CapturedLaunch]:
    """Yield the launch with floats from a seed, and as it is if all of it is short."""
    pairs = list(zip(launch.memories, dtypes, strict=True))
    long = [dtype for memory, dtype in pairs if len(memory) // dtype.itemsize > MAX_LISTED]
    if all(dtype.is_floating_point for dtype in long):
        yield replace(
            launch,
            memories=tuple(
                _draw_floats(memory, dtype, number) if dtype.is_floating_point else memory
                for number, (memory, dtype) in enumerate(pairs)
            ),
        )
    if not long:
        yield launch


def _find_dtypes(launch: CapturedLaunch) -> list[torch.dtype] | None:
    """Find the type of each memory; None if one has two, or an argument cannot be written."""
    dtypes: dict[int, torch.dtype] = {}
    for value in launch.arguments.values():
        if isinstance(value, CapturedTensor):
            if dtypes.setdefault(value.memory, value.dtype) is not value.dtype:
                return None
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            return None
    if any(len(launch.memories[number]) % dtypes[number].itemsize for number in dtypes):
        return None
    return [dtypes[number] for number in range(len(launch.memories))]


def _draw_floats(memory: bytes, dtype: torch.dtype, seed: int) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(memory) // dtype.itemsize, generator=generator).to(dtype)
    return bytes(drawn.view(torch.uint8).numpy().tobytes())


def _render_test(launch: CapturedLaunch, dtypes: list[torch.dtype], found: LaunchComparison) -> str:
    module, _, name = launch.kernel.partition(":")
    arguments = [
        f'        "{key}": {_write_argument(value)},' for key, value in launch.arguments.items()
    ]
    memories = [
        f"    memory_{number} = {_write_memory(memory, dtypes[number], number)}"
        for number, memory in enumerate(launch.memories)
    ]
    is_reported = found.answer is KernelAnswer.REPORTED
    return _TEMPLATE.format(
        name=name,
        module=module,
        function=name.strip("_"),
        option=" --sanitize=bounds,races" if is_reported else "",
        check=" --check bounds,races" if is_reported else "",
        memories="\n".join(memories),
        arguments="\n".join(arguments),
        grid=", ".join(map(str, launch.grid)),
        end=f"    # {' '.join(found.why.split())}" if is_reported else _write_comparison(found),
    )


def _write_argument(value: Any) -> str:
    if not isinstance(value, CapturedTensor):
        return repr(value)
    offset = f", {value.offset}" if value.offset else ""
    return f"memory_{value.memory}.as_strided({value.shape}, {value.strides}{offset})"


def _write_memory(memory: bytes, dtype: torch.dtype, seed: int) -> str:
    numbers = torch.frombuffer(bytearray(memory), dtype=dtype)
    if memory == _draw_floats(memory, dtype, seed) if dtype.is_floating_point else False:
        draw = f"torch.randn({len(numbers)}, generator=torch.Generator().manual_seed({seed}))"
        return f'{draw}.to("cuda", {dtype})'
    values = ", ".join(_write_number(one) for one in numbers.tolist())
    return f'torch.tensor([{values}], dtype={dtype}, device="cuda")'


def _write_number(number: float | int | bool) -> str:
    is_plain = not isinstance(number, float) or math.isfinite(number)
    return repr(number) if is_plain else f'float("{number}")'


def _write_comparison(found: LaunchComparison) -> str:
    index = ", ".join(map(str, found.index)) or "()"
    element = f'arguments["{found.tensor}"][{index}].item()'
    if isinstance(found.before, float) and math.isfinite(found.before - found.after):
        bound = abs(found.before - found.after) / 4
        text = f"assert abs({element} - {_write_number(found.before)}) < {bound:.2g}"
    else:
        text = f'assert str({element}) == "{found.before}"'
    return f"    {text}  # after the change: {found.after}"
