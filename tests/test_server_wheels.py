"""What a server of a release needs is read from metadata, and fetched once, for another Python."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fixture_types import Output, Patch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_wheel_parts import make_wheel

from harness.cli.main import main
from harness.core.errors import NotReadyError
from harness.releases import installer, server_wheels, wheelhouse
from harness.releases.server_wheels import PackRequest

VERSION = "0.5.14"
WORDS = ["releases", "wheels", VERSION, "--device", "cuda", "--server", "--python", "3.12"]


@dataclass
class FakeIndex:
    """The parts of pip that `--server` uses, for packages of a few bytes in version 1.0."""

    folder: Path
    requires: dict[str, list[str]]
    without_wheel: set[str] = field(default_factory=set)
    built_tag: str = "py3-none-any"
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, words: list[str]) -> None:
        self.calls.append(words)
        if words[0] == "install":
            self.resolve(words)
        elif words[0] == "wheel":
            wheel = self.make_wheel(words[-1].partition("==")[0])
            into = Path(words[words.index("-w") + 1])
            wheel.replace(into / wheel.name.replace("py3-none-any", self.built_tag))
        else:
            into = Path(words[words.index("-d") + 1])
            for name in (word.partition("==")[0] for word in words if "==" in word):
                wheel = self.make_wheel(name)
                wheel.replace(into / wheel.name)

    def make_wheel(self, name: str) -> Path:
        return make_wheel(self.folder, name.replace("-", "_"), 700_000)

    def resolve(self, words: list[str]) -> None:
        """Resolve as pip in Python 3.11 does: markers hold for its own version."""
        report = Path(words[words.index("--report") + 1])
        local = {
            one.name.split("-")[0]
            for one in Path(words[words.index("--find-links") + 1]).glob("*.whl")
        }
        pending = [Requirement(word) for word in words[words.index(str(report)) + 1 :]]
        rows = {}
        while pending:
            one = pending.pop()
            name = canonicalize_name(one.name)
            runs_here = {"python_version": "3.11", "extra": "".join(one.extras)}
            if name in self.without_wheel and name.replace("-", "_") not in local:
                raise NotReadyError(f"pip failed: ERROR: No matching distribution found for {name}")
            if name in rows:
                continue
            required = self.requires.get(name, [])
            pending += [
                child
                for child in map(Requirement, required)
                if child.marker is None or child.marker.evaluate(runs_here)
            ]
            version = VERSION if name == "sglang" else "1.0"
            wheel = self.make_wheel(name)
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            rows[name] = {
                "download_info": {
                    "url": f"https://index/{wheel.name}",
                    "archive_info": {"hashes": {"sha256": digest}},
                },
                "metadata": {"name": one.name, "version": version, "requires_dist": required},
            }
        report.write_text(json.dumps({"install": list(rows.values())}))

    @property
    def fetched(self) -> list[str]:
        downloads = [words for words in self.calls if words[0] == "download"]
        return [w.partition("==")[0] for words in downloads for w in words if "==" in w]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: Patch) -> FakeIndex:
    """An index whose torch needs a library, and whose SGLang needs a package of Python 3.12."""
    fake = FakeIndex(
        tmp_path / "index",
        {
            "sglang": ["torch", "numbers", "cheap; extra == 'more'", "triton"],
            "torch": ["nvidia-cublas", "numbers", "triton"],
            "numbers": ['only-old; python_version < "3.12"', 'only-new; python_version >= "3.12"'],
            "scorer": ["api-client; extra == 'api'"],
        },
    )
    monkeypatch.setattr(installer, "run_pip", fake)
    monkeypatch.setattr(wheelhouse, "_list_own_requirements", lambda: ["rich"])
    monkeypatch.setattr(wheelhouse, "BUILD_REQUIREMENTS", ())
    monkeypatch.setattr("harness.runs.eval.lm_eval_scorer.LM_EVAL_REQUIREMENT", "scorer[api]")
    return fake


def make_pack_request(*left_out: str) -> PackRequest:
    return PackRequest(("sglang", "scorer[api]"), "3.12", left_out)


def resolve_names(index: FakeIndex, folder: Path, *left_out: str) -> set[str]:
    folder.mkdir(exist_ok=True)
    wheels = server_wheels.resolve_wheels(make_pack_request(*left_out), folder, lambda _: None)
    return {wheel.name for wheel in wheels}


def test_markers_are_read_for_the_other_python(index: FakeIndex, tmp_path: Path) -> None:
    names = resolve_names(index, tmp_path / "out")
    assert names == {
        "sglang", "torch", "triton", "nvidia-cublas", "numbers", "only-new", "scorer", "api-client"
    }  # fmt: skip


def test_what_cannot_be_had_is_named_unless_it_is_left_out(
    index: FakeIndex, tmp_path: Path
) -> None:
    index.without_wheel, index.built_tag = {"nvidia-cublas"}, "cp311-cp311-linux_x86_64"
    with pytest.raises(NotReadyError, match=r"nvidia-cublas cannot be had: .*--without nvidia"):
        resolve_names(index, tmp_path / "out")
    assert "nvidia-cublas" not in resolve_names(index, tmp_path / "out", "nvidia-*")


def test_a_second_call_fetches_only_what_is_missing(
    index: FakeIndex, tmp_path: Path, capsys: Output
) -> None:
    pack = tmp_path / "pack"
    words = [*WORDS, "--without", "torch", "--into", str(pack), "--part-size", "1MB"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "7 wheels, 5 MB, for Python 3.12, in 7 parts" in out
    assert "python3.12 install.py --venv ENV" in out
    gone = next(pack.glob("*/numbers-*"))
    gone.unlink()
    index.calls.clear()
    assert main(words) == 0
    assert [words[0] for words in index.calls] == ["download"]
    assert index.fetched == ["numbers"]
    assert gone.exists()
    assert main([*words[:-1], "10MB", "--json"]) == 0
    assert index.fetched == ["numbers"]
    assert (
        len(json.loads(capsys.readouterr().out.split("ENV", 1)[1].partition("\n")[2])["parts"]) == 1
    )


def test_a_wheel_with_another_digest_is_refused(
    index: FakeIndex, tmp_path: Path, monkeypatch: Patch, capsys: Output
) -> None:
    pack = tmp_path / "pack"
    size = 700_000
    monkeypatch.setattr(
        FakeIndex,
        "make_wheel",
        lambda self, name: make_wheel(
            self.folder, name.replace("-", "_"), size + 1 if self.fetched and name == "rich" else 9
        ),
    )
    assert main([*WORDS, "--into", str(pack)]) == 3
    assert "other files than it resolved, or damaged ones: rich-1.0" in capsys.readouterr().err
    assert not (pack / "manifest.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0.5.14", "0.5.18", "--device", "cuda", "--server"], "--server packs one release"),
        (["all", "--device", "cuda", "--server"], "--server packs one release"),
        (["0.5.14", "--server"], "--server goes with --device cuda"),
        (["./a.whl", "--device", "cuda", "--server"], "--server packs a version"),
        (["0.5.14", "--without", "torch"], "--without goes with --server"),
        (["0.5.14", "--part-size", "many"], "--part-size many is no size"),
        (["0.5.14", "--device", "cuda", "--server", "--python", "3.9"], "SGLang's wheels are for"),
    ],
)
def test_calls_that_make_no_sense(
    words: list[str], message: str, tmp_path: Path, capsys: Output
) -> None:
    into = tmp_path / "pack"
    assert main(["releases", "wheels", *words, "--into", str(into)]) == 2
    assert message in capsys.readouterr().err
    assert not into.exists()
