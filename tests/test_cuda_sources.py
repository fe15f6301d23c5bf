"""CUDA sources by their definitions; exports by their parameters; kernels by readable names."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cpp_scopes import CppSource
from harness.patching.cuda_sources import find_package_path
from harness.sanitizer.cuda.host_signatures import find_parameter_names
from harness.sanitizer.cuda.kernel_names import unmangle_name

SOURCE = """
#include <cuda.h>
#define CHECK(x) do { if (!(x)) { fail(); } } while (0)
namespace sglang {
struct Params { void* out; int n; };

template <typename T, int kSize = (4 > 3)>
__global__ void __launch_bounds__(128) scale(const __grid_constant__ Params params) {
  if (params.n) { static_cast<T*>(params.out)[0] = 1; }  // } unbalanced, in a comment
}

#ifdef USE_ROCM
inline int width() { return 64; }
#else
inline int width() { return 32; }
#endif

template <typename T>
struct ScaleKernel {
  static constexpr auto kernel = scale<T>;
 public:
  static void run(tvm::ffi::TensorView out, const std::map<int, int>& sizes, int64_t n = 4) {
    auto call = [&](int x) { return x; };
    kernel<<<1, 128>>>(Params{out.data_ptr(), 1});
  }
};
}  // namespace sglang
"""


@pytest.fixture(scope="module")
def source() -> CppSource:
    return CppSource("sglang/scale.cuh", "scale.cuh", SOURCE)


def text_of(source: CppSource, name: str) -> list[str]:
    tokens = source.code.tokens
    return [
        source.text[tokens[scope.first].start : tokens[scope.end - 1].end]
        for scope in source.find_scopes(name)
    ]


def test_kernels_structs_and_methods_are_found_by_name(source: CppSource) -> None:
    assert list(source.iterate_definition_names()) == [
        "Params", "scale", "width", "ScaleKernel", "ScaleKernel.run",
    ]  # fmt: skip


def test_a_scope_holds_the_template_and_the_body(source: CppSource) -> None:
    (kernel,) = text_of(source, "scale")
    assert kernel.startswith("template <typename T, int kSize")
    assert kernel.endswith("comment\n}")


def test_both_branches_of_the_preprocessor_are_scopes(source: CppSource) -> None:
    assert text_of(source, "width") == [
        f"inline int width() {{ return {width}; }}" for width in (64, 32)
    ]


def test_parameters_are_named_by_the_host_function(tmp_path: Path) -> None:
    file = tmp_path / "scale.cuh"
    file.write_text(SOURCE)
    names = find_parameter_names("sglang::ScaleKernel<fp16_t, 3>::run", [str(file)])
    assert names == ("out", "sizes", "n")
    assert find_parameter_names("&missing<int>", [str(file)]) == ()


def test_a_mangled_kernel_reads_as_in_its_source() -> None:
    mangled = "_ZN6sglang5scaleIfLi4ELb1EEEvNS_6ParamsE"
    assert unmangle_name(mangled) == "scale<float, 4, true>"
    assert unmangle_name("plain_kernel") == "plain_kernel"


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("/x/site-packages/sglang/kernels/jit/csrc/a.cuh", "sglang/kernels/jit/csrc/a.cuh"),
        ("/x/sources/0a1b/sglang/kernels/jit/csrc/a.cuh", "sglang/kernels/jit/csrc/a.cuh"),
        ("/home/me/sglang/python/sglang/kernels/a.cuh", "sglang/kernels/a.cuh"),
        ("/usr/local/cuda/include/math.h", ""),
    ],
)
def test_a_compiled_file_is_named_from_the_package_on(file: str, path: str) -> None:
    assert find_package_path(file) == path
