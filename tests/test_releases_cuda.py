"""Releases for CUDA use the torch that a machine has, and report the packages that they lack.

Here that torch is a few files and pip a function that installs a few bytes.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from calling import run_program
from fake_releases import VERSION, FakePip, read_refusal, set_up_releases
from fixture_types import Output, Patch

from harness.cli.main import main
from harness.core import machine
from harness.releases import installer, managed_releases, pins
from harness.releases.managed_releases import Release

ADD = ["releases", "add", VERSION, "--device", "cuda"]


class Machine:
    """A Python with a torch of its own, as on a machine whose image contains one."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        self.python = folder / "python"
        self.has("torch", "2.11.0")
        self.has("triton", "3.6.0")
        self.is_for("13.0")
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH={self.site} exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)

    def has(self, name: str, version: str) -> None:
        (self.site / name).mkdir(parents=True, exist_ok=True)
        (self.site / name / "__init__.py").touch()
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def is_for(self, cuda: str | None, version: str = "2.11.0+cu130") -> None:
        text = f"__version__ = {version!r}\ncuda = {cuda!r}\n"
        (self.site / "torch" / "version.py").write_text(text)
        text = "from . import version\n__version__ = version.__version__\n"
        (self.site / "torch" / "__init__.py").write_text(text)
        # Python matches bytecode to a source by second and length: both may agree.
        shutil.rmtree(self.site / "torch" / "__pycache__", ignore_errors=True)


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: Patch, here: Machine) -> FakePip:
    monkeypatch.setenv("PATH", str(tmp_path))
    here.python.with_name("python3").symlink_to(here.python)
    return set_up_releases(tmp_path / "home", monkeypatch)


def list_installed(pip: FakePip, python: Path) -> set[str]:
    """Return the packages that were installed for a Python."""
    calls = [words for words in pip.calls if str(python) in words]
    return {word.partition("==")[0] for words in calls for word in words if "==" in word}


def read_answer(release: Release, program: str) -> str:
    done = run_program([release.python, "-c", program])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_machines_torch_is_not_copied(pip: FakePip, here: Machine, capsys: Output) -> None:
    pinned = {r.name: r for r in pins.parse_requirements(managed_releases.CPU_BASE.lock_file)}
    here.has("numpy", str(pinned["numpy"].specifier).removeprefix("=="))
    here.has("pandas", "0.0.1")
    here.has("flashinfer", "9")
    assert main(ADD) == 0
    messages = capsys.readouterr().err
    release = managed_releases.get_release(VERSION, "cuda")
    own = list_installed(pip, release.base.python)
    assert {"pandas", "scipy", "torchvision"} <= own
    assert not own & {"torch", "triton", "numpy"}
    for name in ("torch", "triton", "numpy"):
        where = f"import {name}; print({name}.__file__)"
        assert Path(read_answer(release, where)).is_relative_to(here.site)
    assert "uses torch 2.11.0+cu130 for CUDA 13.0 and Triton 3.6.0" in messages
    shared = next(line for line in messages.splitlines() if "and of its packages" in line)
    assert ("torch 2.11.0" in shared, "numpy" in shared, "pandas" in shared) == (True, True, False)
    absent = next(line for line in messages.splitlines() if "stand-ins for" in line)
    found = [name in absent for name in ("sgl_kernel", "deep_gemm", "flashinfer")]
    assert found == [True, True, False]


def test_cpu_and_cuda_releases_are_separate(pip: FakePip, here: Machine, capsys: Output) -> None:
    assert main(ADD) == 0
    assert main(["releases", "add", VERSION]) == 0
    assert main(["releases", "remove", VERSION, "--device", "cuda"]) == 0
    assert managed_releases.get_release(VERSION).is_ready
    assert not managed_releases.get_release(VERSION, "cuda").base.folder.exists()
    assert main(["releases", "remove", VERSION]) == 0
    assert not managed_releases.get_release(VERSION).has_sources


def test_another_torch_is_noticed_and_stood_beside(pip: FakePip, here: Machine) -> None:
    assert main(ADD) == 0
    here.is_for("13.1", "2.12.0+cu131")
    release = managed_releases.get_release(VERSION, "cuda")
    assert not release.is_ready
    assert main(ADD) == 0
    assert release.shared_torch is not None
    assert (release.is_ready, release.shared_torch.cuda) == (True, "13.1")


def test_what_a_stand_in_gives_can_be_derived_from(pip: FakePip, here: Machine) -> None:
    assert main(ADD) == 0
    program = "import flashinfer\nclass A(flashinfer.Wrapper): x = 1\nprint(A.x)"
    assert read_answer(managed_releases.get_release(VERSION, "cuda"), program) == "1"


@pytest.mark.parametrize(
    ("cuda", "says"), [(None, "has a torch for the CPU only"), ("gone", "no torch that imports")]
)
def test_no_cuda_torch_installs_nothing(
    pip: FakePip, here: Machine, cuda: str | None, says: str, capsys: Output
) -> None:
    here.is_for(cuda)
    if cuda == "gone":
        (here.site / "torch" / "version.py").unlink()
    code, message = read_refusal(ADD, capsys)
    assert (code, says in message, "--torch PYTHON" in message) == (3, True, True)
    assert pip.calls == []


@pytest.mark.parametrize(
    "words",
    [
        ["prove", "--release", "all", "--device", "cuda"],
        ["lifecycle", "--release", "all", "--device", "cuda"],
        ["fuzz", "kv_indices", "--release", VERSION, "--device", "cuda"],
        ["mutate", "kv_indices", "--release", VERSION, "--device", "cuda"],
        ["bisect", "releases", "--good", "0.5.18", "--bad", "0.5.9", "--device", "cuda", "--", "x"],
    ],
    ids=lambda words: words[0],
)
def test_without_a_gpu_nothing_is_installed(
    pip: FakePip, words: list[str], monkeypatch: Patch, capsys: Output
) -> None:
    monkeypatch.setattr(machine, "describe_gpus", lambda: "")
    assert main(words) == 3
    message = capsys.readouterr().err.splitlines()
    assert message[-1] == "unfix: this machine has no CUDA device: --device cpu"
    assert pip.calls == []


def test_a_missing_wheel_is_reported(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv(installer.WHEELS_VARIABLE, "")  # so that it is unset again
    folder = tmp_path / "wheels"
    folder.mkdir()
    code = main(["releases", "add", VERSION, "--sources", "--wheels", str(folder)])
    message = capsys.readouterr().err.splitlines()[-1]
    assert (code, f"{folder} lacks a wheel" in message) == (3, True)
    assert "`unfix releases wheels`" in message


def test_wheels_fit_the_named_python(tmp_path: Path, monkeypatch: Patch, capsys: Output) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(installer, "run_pip", calls.append)
    into = tmp_path / "wheels"
    words = ["releases", "wheels", VERSION, "--device", "cuda", "--into", str(into)]
    assert main([*words, "--python", "3.12"]) == 0
    assert all(words[words.index("--python-version") + 1] == "3.12" for words in calls)
    requested = [word.partition("==")[0] for words in calls for word in words]
    assert {"hatchling>=1.27", "numpy", "torchvision", "sglang", "transformers"} <= set(requested)
    assert not {"torch", "triton"} & set(requested)
    assert json.loads("[]") == [file.name for file in into.iterdir()]
    assert main([*words, "--python", "2.7"]) == 2
