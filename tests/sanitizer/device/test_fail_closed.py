"""A name that the virtual device does not implement raises, and says who used it."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from harness.sanitizer.device import stand_ins
from harness.sanitizer.device.record import RECORD
from harness.sanitizer.device.refusals import UnansweredName
from harness.sanitizer.plugins.for_sglang import operators

HERE = __file__


@pytest.fixture
def doubling() -> Iterator[str]:
    """A stand-in of these tests alone."""
    stand_ins.stand_in("sgl_kernel.double_it", source="these tests")(lambda tensor: tensor * 2)
    yield "sgl_kernel.double_it"
    del stand_ins.STAND_INS["sgl_kernel.double_it"]


@pytest.mark.parametrize("name", ["temperature", "memory_snapshot", "list_gpu_processes"])
def test_a_function_of_torch_cuda_without_an_answer_names_itself_and_its_caller(name: str) -> None:
    with pytest.raises(UnansweredName, match=rf"torch\.cuda.*{name}.*{HERE}:\d+"):
        getattr(torch.cuda, name)()


@pytest.mark.parametrize(
    "path", ["sgl_kernel.fly", "flashinfer.decode.fly", "deep_gemm.fly", "flash_mla.deep.er.fly"]
)
def test_a_function_of_a_package_without_a_stand_in_raises_when_it_is_called(path: str) -> None:
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(module), name)  # importing it raises nothing
    with pytest.raises(UnansweredName, match=rf"{path}\(float32\[2\], eps=1\).*{HERE}:\d+"):
        function(torch.ones(2, device="cuda"), eps=1)


def test_the_refusal_is_no_error_that_programs_take_for_another_machine() -> None:
    assert not issubclass(UnansweredName, (AttributeError, ImportError, RuntimeError)) or (
        issubclass(UnansweredName, NotImplementedError)
        and not issubclass(UnansweredName, (AttributeError, ImportError))
    )


def test_a_refusal_that_is_caught_is_still_counted() -> None:
    import sgl_kernel

    before = RECORD.refusals.total()
    with pytest.raises(UnansweredName):
        sgl_kernel.fly_away()
    assert RECORD.refusals.total() == before + 1
    assert any("sgl_kernel.fly_away" in message for message in RECORD.as_dict()["refusals"])


def test_an_import_without_a_stand_in_is_counted() -> None:
    before = RECORD.imports["sgl_kernel.swim"]
    importlib.import_module("sgl_kernel").swim  # noqa: B018
    assert RECORD.imports["sgl_kernel.swim"] == before + 1


def test_a_stand_in_computes_and_is_counted(doubling: str) -> None:
    import sgl_kernel

    before = RECORD.stand_ins[doubling]
    assert sgl_kernel.double_it(torch.ones(2, device="cuda")).tolist() == [2, 2]
    assert RECORD.stand_ins[doubling] == before + 1


def test_a_stand_in_is_found_below_a_submodule_that_re_exports_it(doubling: str) -> None:
    module: Any = importlib.import_module("sgl_kernel.elementwise")
    assert module.double_it(torch.ones(1, device="cuda")).tolist() == [2]


def test_a_stand_in_is_found_as_an_operator_of_torch(doubling: str) -> None:
    assert torch.ops.sgl_kernel.double_it(torch.ones(1, device="cuda")).tolist() == [2]
    assert torch.ops.sgl_kernel.double_it.default(torch.ones(1, device="cuda")).tolist() == [2]
    with pytest.raises(UnansweredName, match=r"sgl_kernel\.dive"):
        torch.ops.sgl_kernel.dive()


def test_shapes_of_a_packages_operators_are_skipped() -> None:
    torch.library.register_fake("sgl_kernel::dive")(lambda: None)


def test_two_stand_ins_for_one_name_are_an_error(doubling: str) -> None:
    with pytest.raises(ValueError, match=doubling):
        stand_ins.stand_in(doubling, source="these tests")(lambda tensor: tensor)


def test_an_operator_without_a_kernel_for_the_device_raises() -> None:
    library = torch.library.Library("unfix_test", "DEF")
    library.define("only_on_cpu(Tensor x) -> Tensor")
    library.impl("only_on_cpu", lambda x: x, "CPU")
    with pytest.raises(UnansweredName, match=r"unfix_test::only_on_cpu"):
        torch.ops.unfix_test.only_on_cpu(torch.ones(1, device="cuda"))


def test_an_operator_registered_for_cuda_runs_as_on_a_gpu() -> None:
    library = torch.library.Library("unfix_cuda", "DEF")
    library.define("negate(Tensor x) -> Tensor")
    library.impl("negate", lambda x: -x, "CUDA")
    assert torch.ops.unfix_cuda.negate(torch.ones(1, device="cuda")).tolist() == [-1]


def test_a_property_of_the_card_without_an_answer_raises() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert properties.multi_processor_count == 132
    with pytest.raises(UnansweredName, match="clock_rate"):
        properties.clock_rate  # noqa: B018
    assert not hasattr(properties, "gcnArchName")  # AMD's, which code probes


def test_a_package_has_a_version() -> None:
    assert importlib.metadata.version("sglang-kernel")
    assert importlib.import_module("flashinfer").__version__
    # SGLang's fp8 products of MLA go another way before 12.9.
    assert importlib.metadata.version("nvidia-cublas").startswith(f"{torch.version.cuda}.")


def test_each_stand_in_names_its_specification() -> None:
    entries = operators.load_stand_ins()
    assert len(entries) > 10
    assert [name for name, entry in entries.items() if not entry.source] == []


def test_a_name_of_a_package_as_an_argument_is_described_and_has_no_elements() -> None:
    import flashinfer
    import sgl_kernel

    with pytest.raises(UnansweredName, match=r"fly_with\(PackageName\)"):
        sgl_kernel.fly_with(flashinfer.Kind.fast)
    with pytest.raises(UnansweredName, match=rf"no elements.*{HERE}:\d+"):
        list(flashinfer.Kind)
