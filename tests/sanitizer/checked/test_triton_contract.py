"""The private parts of Triton that this project uses, each by name: one that moved fails here."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import triton
import triton.language as tl

from harness.sanitizer.triton import adapter, frontend, mlir_parser


@triton.jit
def add_constant(target, count, STEP: tl.constexpr):
    tl.store(target.to(tl.pointer_type(tl.int32)) + tl.program_id(0), count + STEP)


PRIVATE_PARTS = [
    ("triton._C.libtriton", "ir.load_dialects"),
    ("triton._C.libtriton", "ir.builder"),
    ("triton._C.libtriton", "ir.parse_mlir_module"),
    ("triton.backends.nvidia.compiler", "CUDABackend.add_stages"),
    ("triton.backends.nvidia.driver", "make_tensordesc_arg"),
    ("triton.compiler.code_generator", "_condition_types"),
    ("triton.compiler.compiler", "ASTSource.make_ir"),
    ("triton.compiler.compiler", "make_backend"),
    ("triton.compiler.compiler", "CompiledKernel._init_handles"),
    ("triton.compiler.compiler", "CompiledKernel.launch_metadata"),
    ("triton.knobs", "runtime.launch_enter_hook"),
    ("triton.knobs", "runtime.launch_exit_hook"),
    ("triton.knobs", "runtime.jit_cache_hook"),
    ("triton.knobs", "runtime.jit_post_compile_hook"),
    ("triton.language.core", "constexpr_type"),
    ("triton.language.semantic", "TritonSemantic.scalar_constant"),
    ("triton.runtime.autotuner", "Autotuner._bench"),
    ("triton.runtime.driver", "driver._active"),
    ("triton.runtime.driver", "driver.set_active"),
    ("triton.runtime.jit", "JITCallable.parse"),
    ("triton.runtime.jit", "JITCallable.cache_key"),
    ("triton.runtime.jit", "JITFunction.run"),
    ("triton.runtime.jit", "JITFunction.create_binder"),
    ("triton.runtime.jit", "create_function_from_signature"),
    ("triton.runtime.jit", "_triton_jit_function_registry"),
]


@pytest.mark.parametrize(("module", "name"), PRIVATE_PARTS)
def test_the_private_part_is_there(module: str, name: str) -> None:
    part: Any = importlib.import_module(module)
    for attribute in name.split("."):
        assert hasattr(part, attribute), f"{module} has no {name}"
        part = getattr(part, attribute)


@pytest.mark.parametrize(
    "attribute",
    ["device_caches", "hash", "params", "pre_run_hooks", "signature", "src", "used_global_vals"],
)
def test_a_kernel_has_the_attribute(attribute: str) -> None:
    assert hasattr(add_constant, attribute)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("JITFunction.run", ["self", "args", "grid", "warmup", "kwargs"]),
        ("create_function_from_signature", ["sig", "kparams", "backend"]),
    ],
)
def test_a_private_function_takes_these_parameters(function: str, parameters: list[str]) -> None:
    found: Any = importlib.import_module("triton.runtime.jit")
    for name in function.split("."):
        found = getattr(found, name)
    assert list(inspect.signature(found).parameters) == parameters


def test_the_binder_gives_values_and_types() -> None:
    values, specialized, _ = adapter.make_argument_binder(add_constant)(1 << 40, 20, STEP=3)
    assert (values["count"], values["STEP"]) == (20, 3)
    assert [kind for kind, *_ in specialized] == ["i64", "i32", "constexpr"]


def test_the_ir_is_printed_in_the_generic_form() -> None:
    binder = frontend.get_binder(add_constant)
    text = frontend.compile_to_mlir(add_constant, binder.bind((1 << 40, 20), {"STEP": 3}))
    assert '"tt.func"' in text
    assert "tt.store" in [operation.name for operation in mlir_parser.parse_mlir(text).walk()]
