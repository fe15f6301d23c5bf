"""`unfix kernels`: each kernel of a release with who reaches it, or with what would."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit import release_audit
from harness.runs.kernels import inventory

FILES = {
    "sglang/__init__.py": "",
    "sglang/version.py": "__version__ = '0.5.23'\n",
    "sglang/kernels/ops/toy/a.py": """
import triton
import triton.language as tl


@triton.jit
def helper(x_ptr):
    return tl.load(x_ptr)


@triton.jit
def reached_kernel(x_ptr, WIDE: tl.constexpr):
    x = helper(x_ptr)
    if WIDE:
        tl.store(x_ptr, x + 1)


@triton.jit
def lonely_kernel(x_ptr):
    tl.store(x_ptr, 1)


@triton.jit
def tested_kernel(x_ptr):
    tl.store(x_ptr, 1)


@triton.jit
def model_kernel(x_ptr):
    tl.store(x_ptr, 1)


def launch_reached(x):
    reached_kernel[(1,)](x, False)


def launch_tested(x):
    tested_kernel[(1,)](x)


def launch_model(x):
    model_kernel[(1,)](x)


def run_model(x):
    launch_model(x)
""",
    "sglang/test/test_a.py": """
from sglang.kernels.ops.toy.a import launch_tested


def test_it():
    launch_tested(1)
""",
    "sglang/srt/models/toy_moe.py": """
from sglang.kernels.ops.toy.a import run_model


class ToyModel:
    def forward(self, x):
        if server_args.enable_toy_path and is_hip:
            run_model(x)
""",
    "sglang/kernels/ops/toy/built.py": """
def _toy_module():
    return load_jit("toy", cuda_files=["toy/built.cuh"])


def toy(x):
    _toy_module().toy(x)
""",
    "sglang/kernels/jit/csrc/toy/built.cuh": """
#include "included.h"
// __global__ void in_a_comment(int n) {}
template <int N>
__global__ __launch_bounds__(N * 32) void built_kernel(const int* __restrict__ x) {}
""",
    "sglang/kernels/jit/csrc/toy/included.h": """
__global__ void included_kernel(
    int n) {}
""",
    "sglang/kernels/jit/csrc/toy/unbuilt.cuh": "__global__ void unbuilt_kernel() {}\n",
}
REACH = {
    "kernel": "sglang.kernels.ops.toy.a:reached_kernel",
    "release": "0.5.23",
    "by": ["suite suites/toy/test_a.py::test_it", "zoo llama"],
    "lines": {"sglang/kernels/ops/toy/a.py": [8, 13]},
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not CPU_BASE.is_current():
        pytest.skip("the releases' base is not installed here")
    root = tmp_path_factory.mktemp("kernels") / "release"
    for name, text in FILES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


class ToyListing:
    """The kernels of the toy release by name, with a record of launches."""

    def __init__(self, release: Path, record: Any) -> None:
        launches = release.parent / "launches"
        launches.write_text(json.dumps(record) + "\n")
        page = str(release.parent / "page.html")
        words = ["kernels", "--from", str(release), "--launches", str(launches), "--html", page]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert main([*words, "--json"]) == 0
        self.data = json.loads(output.getvalue())
        self.kernels = {kernel["name"]: kernel for kernel in self.data["kernels"]}
        self.page = Path(page).read_text()


@pytest.fixture(scope="module")
def listing(release: Path) -> ToyListing:
    return ToyListing(release, REACH)


def test_every_triton_and_cuda_kernel_is_listed(listing: ToyListing) -> None:
    assert {(one["kind"], one["name"]) for one in listing.data["kernels"]} == {
        ("triton", "helper"),
        ("triton", "reached_kernel"),
        ("triton", "lonely_kernel"),
        ("triton", "tested_kernel"),
        ("triton", "model_kernel"),
        ("cuda", "built_kernel"),
        ("cuda", "included_kernel"),
        ("cuda", "unbuilt_kernel"),
    }
    assert all(name in listing.page for name in listing.kernels)


def test_a_kernel_has_its_launchers_and_its_lines(listing: ToyListing) -> None:
    kernel = listing.kernels["reached_kernel"]
    assert kernel["reached_by"] == REACH["by"]
    # The `if` was folded away by the compiler; its body did not run.
    assert (kernel["reached_lines"], kernel["line_count"]) == (2, 3)
    assert kernel["unreached_lines"] == [15]  # the body
    assert re.search(r"lines that did not run.*>15<", listing.page, re.DOTALL)
    assert kernel["obstacle"] == ""


def test_a_helper_is_reached_by_its_lines(listing: ToyListing, release: Path) -> None:
    assert listing.kernels["helper"]["reached_by"] == REACH["by"]
    without = REACH | {"lines": {"sglang/kernels/ops/toy/a.py": [13]}}
    helper = ToyListing(release, without).kernels["helper"]
    assert helper["reached_by"] == []
    assert helper["obstacle"] == "only kernels that nothing reaches call it"


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [
        ("lonely_kernel", "nothing in the release launches it"),
        ("tested_kernel", "only tests and benchmarks lead to it"),
        ("model_kernel", "another backend or router of experts"),
        ("built_kernel", "CUDA C++: no run under check has executed it"),
        ("unbuilt_kernel", "nothing in the release launches it"),
    ],
)
def test_a_kernel_that_nothing_reaches_says_what_keeps_it_out(
    listing: ToyListing, name: str, obstacle: str
) -> None:
    assert listing.kernels[name]["obstacle"] == obstacle


def test_what_would_reach_a_kernel_is_named_with_its_conditions(listing: ToyListing) -> None:
    kernel = listing.kernels["model_kernel"]
    assert kernel["launch_sites"] == ["sglang/kernels/ops/toy/a.py:42 launch_model"]
    assert kernel["entries"] == ["sglang.srt.models.toy_moe:ToyModel"]
    assert kernel["conditions"] == ["--enable-toy-path", "is_hip"]


def test_a_loader_builds_the_kernels_of_its_files_and_of_their_headers(listing: ToyListing) -> None:
    for name in ("built_kernel", "included_kernel"):
        [site] = listing.kernels[name]["launch_sites"]
        assert site.endswith("built.py:3 _toy_module")


def test_a_refused_launch_is_not_reach(release: Path) -> None:
    refusal = REACH | {"by": [], "lines": {}, "refused": ["inline assembly"]}
    kernel = ToyListing(release, refusal).kernels["reached_kernel"]
    assert (kernel["reached_by"], kernel["obstacle"]) == ([], "the executor refuses it")


def test_lines_of_another_release_do_not_count(release: Path) -> None:
    listing = ToyListing(release, REACH | {"release": "0.5.9"})
    kernel = listing.kernels["reached_kernel"]
    assert (kernel["reached_by"], kernel["line_count"]) == (REACH["by"], 0)
    assert listing.data["recorded_on"] == ["0.5.9"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("kernels reached_kern", "is called reached_kern; near it: reached_kernel"),
        ("audit reached_kern", "is called reached_kern; near it: reached_kernel"),
        ("audit unbuilt_kernel", "unbuilt_kernel is a CUDA kernel of "),
    ],
)
def test_a_word_is_looked_up_before_any_kernel_is_read(
    words: str,
    problem: str,
    release: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inventory, "iterate_answers", None)  # it would start a process
    monkeypatch.setattr(release_audit, "iterate_answers", None)
    assert main([*words.split(), "--from", str(release)]) == 2
    assert problem in capsys.readouterr().err


def test_an_inventory_is_made_once_for_sources_and_launches(
    listing: ToyListing, release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "iterate_answers", None)
    assert ToyListing(release, REACH).data == listing.data
    with pytest.raises(TypeError):
        ToyListing(release, REACH | {"by": ["suite another"]})


def test_missing_lists_each_unreached_kernel_in_markdown(release: Path) -> None:
    launches, markdown = release.parent / "launches", release.parent / "summary.md"
    launches.write_text(json.dumps(REACH) + "\n")
    words = ["--from", str(release), "--launches", str(launches), "--markdown", str(markdown)]
    assert main(["kernels", *words, "--html", str(release.parent / "page.html")]) == 0
    assert "lonely" not in markdown.read_text()
    assert main(["kernels", *words, "--html", str(release.parent / "p.html"), "--missing"]) == 0
    assert "lonely" in markdown.read_text()
    assert "2 of 5 Triton kernels and 0 of 3 CUDA C++ kernels" in markdown.read_text()
