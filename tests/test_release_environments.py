"""The real managed releases on this machine: their shared base, and the stand-ins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import run_bare
from fixture_types import Output

from harness.cli.main import main
from harness.releases import installer, managed_releases, pins
from harness.releases.managed_releases import Release

INSTALLED = ("0.5.18", "0.5.23")
STANDINS = ("sgl_kernel", "flash_mla", "vllm")


@pytest.fixture(params=INSTALLED)
def release(request: pytest.FixtureRequest) -> Release:
    found = managed_releases.get_release(request.param)
    assert found.is_ready, f"SGLang {found.name} is not ready: unfix releases add {found.name}"
    return found


def answer_in(release: Release, program: str, **variables: str) -> Any:
    done = run_bare(release, f"import json\n{program}", **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_release_is_the_version_it_says(release: Release) -> None:
    version = "from importlib.metadata import version; print(json.dumps(version('sglang')))"
    assert answer_in(release, version) == release.name
    assert str(release.open_sources().version) == release.name


def test_torch_and_triton_are_shared_not_copied(release: Release) -> None:
    places = """
from importlib.util import find_spec
print(json.dumps({name: find_spec(name).origin for name in ("torch", "triton", "sglang")}))
"""
    found = answer_in(release, places)
    base, own = (
        installer._find_site_packages(managed_releases.CPU_BASE.folder),
        installer._find_site_packages(release.folder),
    )
    assert Path(found["torch"]).parent == base / "torch"
    assert Path(found["triton"]).parent == base / "triton"
    assert Path(found["sglang"]).parent == own / "sglang"
    assert not (own / "torch").exists()
    assert not (own / "triton").exists()
    files = [path for path in release.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < 500e6


def test_every_package_is_the_version_that_the_lock_pins(release: Release) -> None:
    versions = """
from importlib.metadata import version
print(json.dumps({name: version(name) for name in NAMES}))
"""
    own = pins.parse_requirements(release.lock_file)
    shared = pins.parse_requirements(managed_releases.CPU_BASE.lock_file)
    pinned = {r.name: r for r in [*shared, *own]}  # a release's pins precede the base
    found = answer_in(release, f"NAMES = {list(pinned)}\n{versions}")
    wrong = [f"{r} is {found[r.name]}" for r in pinned.values() if found[r.name] not in r.specifier]
    assert wrong == []


@pytest.mark.parametrize("release", INSTALLED[-1:], indirect=True)
def test_torchvision_of_the_shared_base_imports(release: Release) -> None:
    assert answer_in(release, "import torchvision.ops; print(json.dumps(True))") is True


REFUSING = """
import sys
said = []
def call(function, *args):
    try:
        said.append(["returned", function(*args)])
    except RuntimeError as error:
        said.append(["refused", str(error)])
import sgl_kernel, flash_mla
from sgl_kernel.flash_attn import flash_attn_varlen_func
from vllm._custom_ops import rotary_embedding
call(sgl_kernel.fast_topk, 1)
call(flash_attn_varlen_func)
call(flash_mla.get_mla_metadata)
call(rotary_embedding)
sgl_kernel.__unfix_provide__("fast_topk", lambda k: k + 1)
call(sgl_kernel.fast_topk, 1)
call(sgl_kernel.other)
sgl_kernel.__unfix_withdraw__("fast_topk")
call(sgl_kernel.fast_topk, 1)
print(json.dumps(said))
"""


def test_a_stand_in_refuses_to_be_called_unless_a_suite_provides_it(release: Release) -> None:
    answers = answer_in(release, REFUSING)
    assert [how for how, _ in answers] == ["refused"] * 4 + ["returned", "refused", "refused"]
    assert answers[4] == ["returned", 2]
    refused = [text for how, text in answers if how == "refused"]
    for text in refused:
        assert text.startswith("stand-in for ")
        assert text.endswith(" needs the real package on a GPU")
    named = ("fast_topk", "flash_attn.flash_attn_varlen_func", "get_mla_metadata",
             "rotary_embedding", "other", "fast_topk")  # fmt: skip
    assert [name in text for name, text in zip(named, refused, strict=True)] == [True] * 6


def test_the_stand_in_for_vllm_says_that_vllm_is_absent(release: Release) -> None:
    probe = """
try:
    from vllm import _custom_ops
except ImportError as error:
    print(json.dumps(str(error)))
"""
    assert "vllm is not installed" in answer_in(release, probe)


def test_a_real_package_wins_over_its_stand_in(release: Release, tmp_path: Path) -> None:
    for name in STANDINS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("def fast_topk(k): return 'real'")
    program = f"""
import importlib
modules = [importlib.import_module(name) for name in {STANDINS}]
print(json.dumps([module.fast_topk(1) for module in modules]))
"""
    assert answer_in(release, program, PYTHONPATH=str(tmp_path)) == ["real"] * len(STANDINS)


OURS = """
import sys
ours = [name for name in sys.modules
        if name.partition(".")[0] in ("harness", "unfix_start", "_refusing", "sgl_kernel")]
finders = [repr(finder) for finder in sys.meta_path if "harness" in repr(finder)]
print(json.dumps([ours, finders]))
"""


def test_with_no_variable_set_nothing_of_ours_is_imported(release: Release) -> None:
    assert answer_in(release, OURS) == [[], []]
    assert answer_in(release, OURS, SGLANG_DEBUG_REVERT_PR="") == [[], []]
    modules, finders = answer_in(release, OURS, SGLANG_DEBUG_REVERT_PR="27460")
    assert ("harness" in modules, len(finders)) == (True, 1)


def test_with_no_variable_set_a_process_pays_next_to_nothing(release: Release) -> None:
    """The path file is its only trace of the project: it is read again here, and timed."""
    program = """
import site, time
folder = FOLDER
def seconds():
    start = time.perf_counter()
    site.addpackage(folder, "unfix.pth", set())
    return time.perf_counter() - start
print(json.dumps(min(seconds() for _ in range(20))))
"""
    folder = str(installer._find_site_packages(release.folder))
    assert answer_in(release, program.replace("FOLDER", repr(folder))) < 0.002


def test_doctor_lists_the_stand_ins_and_finds_all_well(release: Release, capsys: Output) -> None:
    assert main(["doctor"]) == 0
    table = capsys.readouterr().out
    assert "refuses to be called" in table
    assert main(["doctor", "--json"]) == 0
    found = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert found[f"release {release.name}"]["ok"] is True
    assert found["base"]["ok"] is True
    for name in (*STANDINS, "sgl_kernel_npu", "torch_npu"):
        assert "refuses to be called" in found[f"stand-in: {name}"]["found"]
    assert sys.executable in found["python"]["found"]
