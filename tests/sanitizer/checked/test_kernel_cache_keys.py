"""No cache of the kernels' analysis is stale: its keys change with our code and with Triton's.

The other caches' keys are tested by tests/test_cache_keys.py; this file runs where Triton is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

sys.path.append(str(Path(__file__).parents[2]))
from cache_keys import CacheCase, ChangedCode, pair_with_folders

from fixtures import accuracy
from harness import checking
from harness.core import code_digest
from harness.runs.audit import analysis_worker, release_kernels
from harness.runs.audit.release_kernels import ReleaseKernels
from harness.sanitizer.cuda import registers
from harness.sanitizer.gpu import InstrumentationRequest, compiler_hooks
from harness.sanitizer.llvm import stored_code
from harness.sanitizer.triton import adapter, frontend

PACKAGES = ("triton", "llvmlite", "torch", "numpy", "transformers", "tokenizers")
LAUNCHES = "harness.sanitizer.check.cpu_launcher"


@triton.jit
def fill(target, COUNT: tl.constexpr):
    tl.store(target + tl.arange(0, COUNT), 1)


def make_graph_key() -> str:
    bound = frontend.get_binder(fill).bind((torch.zeros(8), 8), {})
    return frontend.compute_cache_key(fill, bound)


def make_program_key() -> str:
    stored_code.hash_host.cache_clear()
    return stored_code.hash_host()


def make_release_key() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_kernels, "get_or_compute", lambda *_: [])
        return ReleaseKernels(Path(__file__).parent, "0")._key


def make_audit_key() -> str:
    release: Any = SimpleNamespace(
        load_kernel=lambda *_: fill,
        get_module=lambda *_: SimpleNamespace(path="a.py"),
    )
    kernel: Any = SimpleNamespace(module="a", name="f", launches=(), recorded_launches=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis_worker, "get_module", lambda *_: SimpleNamespace(path="a.py"))
        limits: Any = SimpleNamespace(text="")
        return analysis_worker._make_cache_key(release, kernel, limits)


def make_registers_key() -> str:
    stored_code.hash_host.cache_clear()
    return registers.make_cache_key(Path(sys.executable), ".version 8.0")


CASES = (
    CacheCase(
        "graphs",
        ("harness.sanitizer.triton.specialization", "harness.sanitizer.triton.graph_loader"),
        make_graph_key,
    ),
    CacheCase("programs", ("harness.sanitizer.cpu.program_cache", LAUNCHES), make_program_key),
    CacheCase(
        "checked kernels in Triton's own cache",
        ("harness.sanitizer.gpu.compiler_hooks", "harness.sanitizer.gpu.checked_launches"),
        lambda: compiler_hooks.hash_request(InstrumentationRequest(1, ("bounds",))),
    ),
    CacheCase(
        "answers", ("fixtures.accuracy",), lambda: accuracy._digest_model.__wrapped__("llama")
    ),
    CacheCase("kernels of a release", ("harness.runs.audit.release_kernels",), make_release_key),
    CacheCase("audited kernels", ("harness.runs.audit.analysis_worker",), make_audit_key),
    CacheCase("registers", ("harness.sanitizer.cuda.registers",), make_registers_key),
)


@pytest.fixture
def changed_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChangedCode]:
    yield ChangedCode(monkeypatch)
    code_digest.digest_code.cache_clear()
    stored_code.hash_host.cache_clear()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_code_gives_a_kernels_value_the_same_key(
    case: CacheCase, changed_code: ChangedCode
) -> None:
    """Else each test below would see another key whatever it changes."""
    assert changed_code.compute_key(case) == changed_code.get_unchanged_key(case)


@pytest.mark.parametrize(("case", "file"), pair_with_folders(CASES))
def test_a_byte_in_any_folder_that_a_kernels_value_stands_on_is_a_miss(
    case: CacheCase, file: Path, changed_code: ChangedCode
) -> None:
    assert changed_code.compute_key(case, changed=file) != changed_code.get_unchanged_key(case)


def test_a_byte_where_the_reference_is_asked_is_a_miss(changed_code: ChangedCode) -> None:
    """The fixture says how many tokens a reference answer has."""
    (answers,) = (case for case in CASES if case.name == "answers")
    file = Path(accuracy.__file__)
    assert changed_code.compute_key(answers, file) != changed_code.get_unchanged_key(answers)


@pytest.mark.parametrize(
    ("case", "package"),
    [
        *((CASES[0], name) for name in ("Python", "adapter")),
        *((CASES[1], name) for name in ("Python", "llvmlite")),
        *((CASES[-1], name) for name in ("Python", "llvmlite")),
        *((CASES[3], name) for name in ("Python", "torch", "transformers")),
        *(
            (case, name)
            for case in CASES[4:-1]
            for name in ("Python", "triton", "llvmlite", "torch")
        ),
    ],
    ids=str,
)
def test_another_version_below_a_kernels_value_is_a_miss(
    case: CacheCase, package: str, changed_code: ChangedCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dict.fromkeys(PACKAGES, "1.0")

    def list_distributions(name: str, **_: Any) -> Iterator[Any]:
        yield SimpleNamespace(version=found[name])

    monkeypatch.setattr(metadata, "distributions", list_distributions)
    before = changed_code.compute_key(case)
    if package == "Python":
        monkeypatch.setattr(sys, "version", "4.0")
    elif package == "adapter":
        monkeypatch.setattr(adapter, "TRITON_VERSION", "4.0")
    else:
        found[package] = "1.1"
    assert changed_code.compute_key(case) != before


class Settings:
    SIZE = 20


settings = ModuleType("settings")
settings.SIZE, settings.TABLE, settings.inner = 20, (20,), Settings  # type: ignore[attr-defined]


@triton.jit
def add_size(value):
    return value + settings.inner.SIZE


@triton.jit
def fill_from_module(target):
    tl.store(target, settings.SIZE)


@triton.jit
def fill_from_class(target):
    tl.store(target, settings.inner.SIZE)


@triton.jit
def fill_from_table(target):
    tl.store(target, settings.TABLE[0])


@triton.jit
def fill_from_attribute(target):
    tl.store(target, getattr(settings, "SIZE"))  # noqa: B009


@triton.jit
def fill_from_helper(target):
    tl.store(target, add_size(0))


settings.helpers = (add_size,)  # type: ignore[attr-defined]


@triton.jit
def fill_from_listed_helper(target):
    tl.store(target, settings.helpers[0](0))


@triton.jit
def fill_from_argument(target, function: tl.constexpr):
    tl.store(target, function(0))


def test_a_value_that_a_function_given_to_a_kernel_reads_is_in_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_kernel() -> int:
        target = torch.zeros(1, dtype=torch.int32)
        with checking.checked():
            fill_from_argument[(1,)](target, add_size)
        return int(target.item())

    assert run_kernel() == 20
    monkeypatch.setattr(Settings, "SIZE", 30)
    assert run_kernel() == 30


@pytest.mark.parametrize(
    ("kernel", "owner", "name", "value"),
    [
        (fill_from_module, settings, "SIZE", 30),
        (fill_from_class, Settings, "SIZE", 30),
        (fill_from_table, settings, "TABLE", (30,)),
        (fill_from_attribute, settings, "SIZE", 30),
        (fill_from_helper, Settings, "SIZE", 30),
        (fill_from_listed_helper, Settings, "SIZE", 30),
    ],
)
def test_a_value_that_a_kernel_reads_elsewhere_is_in_its_key(
    kernel: Any, owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's own key has the sources alone, so the compiled form of the old value would stay."""

    def run_kernel() -> tuple[int, str]:
        target = torch.zeros(1, dtype=torch.int32)
        with checking.checked():
            kernel[(1,)](target)
        bound = frontend.get_binder(kernel).bind((target,), {})
        return int(target.item()), frontend.compute_cache_key(kernel, bound)

    before, key = run_kernel()
    monkeypatch.setattr(owner, name, value)
    after, changed_key = run_kernel()
    assert (before, after) == (20, 30)
    assert key != changed_key
