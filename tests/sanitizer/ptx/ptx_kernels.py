"""Small kernels in PTX and their launches, for the tests of the executor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, Dimensions, ExecutorChecks

FOLDER = Path(__file__).parent
HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
_MEMORY = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}


def read_compiled(name: str, folder: Path = FOLDER) -> tuple[Path, str]:
    """Return a source, and its PTX with the source's own path."""
    source = folder / f"{name}.cu"
    text = source.with_suffix(".ptx").read_text()
    return source, text.replace(f'"{source.name}"', f'"{source}"')


def make_kernel(body: str, parameters: int = 1) -> str:
    """Write a kernel `k` whose parameters are the pointers %rd1, %rd2, …."""
    names = [f"k_param_{place}" for place in range(parameters)]
    loads = "".join(f"ld.param.u64 %rd{n}, [{name}];\n" for n, name in enumerate(names, 1))
    return (
        f"{HEAD}.visible .entry k({', '.join(f'.param .u64 {name}' for name in names)})\n{{\n"
        ".reg .pred %p<3>;\n.reg .b16 %rs<6>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
        f"{loads}{body}\nret;\n}}\n"
    )


def describe_array(name: str, array: Any) -> Allocation:
    strides = tuple(side // array.itemsize for side in array.strides)
    reach = sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)) + 1
    return Allocation(
        name,
        int(array.ctypes.data),
        reach * array.itemsize if array.size else 0,
        str(array.dtype),
        tuple(array.shape),
        strides,
    )


def pack_parameters(*values: Any) -> bytes:
    """Pack pointers (arrays) and integers of 8 bytes."""
    numbers = (value if isinstance(value, int) else int(value.ctypes.data) for value in values)
    return b"".join((number & ((1 << 64) - 1)).to_bytes(8, "little") for number in numbers)


def launch_text(
    text: str,
    parameters: bytes,
    tensors: dict[str, Any],
    grid: Dimensions = (1, 1, 1),
    block: Dimensions = (1, 1, 1),
    *,
    entry: str = "",
    shared: int = 0,
    checks: ExecutorChecks | None = None,
    fields: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> list[Exception]:
    """Launch the first kernel of this name; `fields` are further ones of a tensor's allocation."""
    module, fields = load_module(text), fields or {}
    entry = entry or module.entries[0]
    allocations = tuple(
        replace(describe_array(name, array), **fields.get(name, {}))
        for name, array in tensors.items()
    )
    launch = CudaLaunch(
        entry, entry, grid, block, shared, parameters, allocations, lambda _: None, **options
    )
    return module.run(launch, checks)


def run_text(text: str, parameters: bytes, tensors: dict[str, Any], **options: Any) -> None:
    """Launch a kernel, and raise its report."""
    for report in launch_text(text, parameters, tensors, **options):
        raise report


def apply_instruction(
    instruction: str, inputs: list[tuple[str, Any]], result: tuple[str, Any]
) -> Any:
    """Apply an instruction to each element: `add.s32 {d}, {0}, {1};`."""
    kind, template = result
    count = len(inputs[0][1])
    registers, body, statement = [], [], instruction
    for place, (one, array) in enumerate(inputs):
        memory = "u8" if one == "pred" else _MEMORY.get(one, one)
        size = array.itemsize
        register = f"%x{place}"
        loaded = register if one != "pred" else f"%m{place}"
        registers.append(f".reg .{get_register_type(one)} {register};")
        if one == "pred":
            registers.append(f".reg .b16 {loaded};")
        body += [
            f"ld.param.u64 %p, [in{place}];",
            f"mad.lo.u64 %a, %i, {size}, %p;",
            f"ld.global.{memory} {loaded}, [%a];",
        ]
        if one == "pred":
            body.append(f"setp.ne.u16 {register}, {loaded}, 0;")
        statement = statement.replace(f"{{{place}}}", register)
    registers.append(f".reg .{get_register_type(kind)} %d;")
    out = np.zeros(count, dtype=template)
    body += [
        statement.replace("{d}", "%d"),
        "ld.param.u64 %p, [out];",
        f"mad.lo.u64 %a, %i, {out.itemsize}, %p;",
    ]
    if kind == "pred":
        registers.append(".reg .u16 %m;")
        body += ["selp.u16 %m, 1, 0, %d;", "st.global.u8 [%a], %m;"]
    else:
        body.append(f"st.global.{_MEMORY.get(kind, kind)} [%a], %d;")
    parameters = ",".join(f".param .u64 in{place}" for place in range(len(inputs)))
    text = (
        f"{HEAD}.visible .entry apply({parameters}, .param .u64 out)\n{{\n"
        ".reg .b32 %t;\n.reg .b64 %i;\n.reg .b64 %p;\n.reg .b64 %a;\n"
        + "\n".join(registers)
        + "\nmov.u32 %t, %tid.x;\ncvt.u64.u32 %i, %t;\n"
        + "\n".join(body)
        + "\nret;\n}\n"
    )
    arrays = [array for _, array in inputs]
    tensors = {f"in{place}": array for place, array in enumerate(arrays)}
    run_text(text, pack_parameters(*arrays, out), {**tensors, "out": out}, block=(count, 1, 1))
    return out


def apply_operation(name: str, inputs: list[tuple[str, Any]], result: tuple[str, Any]) -> Any:
    """Apply an instruction whose operands are the inputs."""
    operands = ", ".join(f"{{{place}}}" for place in range(len(inputs)))
    return apply_instruction(f"{name} {{d}}, {operands};", inputs, result)


def get_register_type(kind: str) -> str:
    return {"u8": "b16", "s8": "b16"}.get(kind) or _MEMORY.get(kind, kind)
