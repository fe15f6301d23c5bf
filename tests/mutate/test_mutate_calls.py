"""Wrong calls of `unfix mutate`: one sentence each, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from checkouts import SglangCheckout
from test_diffs import MODULE, NEW, OLD
from test_fault_toggles import ONCE, keep_fault

from harness.cli import main
from harness.core.errors import UnfixError
from harness.fixes.registry import toggle_catalogue, toggle_writer
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.fixes.registry.toggle_reader import read_toggle
from harness.runs.mutate import changed_lines

Refusal = Callable[..., str]


@pytest.fixture
def refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refusal:
    def read_refusal(*words: str) -> str:
        monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
        assert main.main(["mutate", *words]) == 2
        error_line = capsys.readouterr().err
        assert error_line.count("\n") == 1, error_line
        return error_line

    return read_refusal


NUMBERS = (
    "--memory nan", "--memory inf", "--memory -1", "--memory 0", "--memory 1e300",
    "--memory 1e-300", "-j 0", "-j -2", "--examples 0", "--limit 0", "--at-least nan",
    "--at-least inf",
)  # fmt: skip
ONE_RELEASE = "--release names one release that can be run, and not '{}': there are "


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((words, words.partition(" ")[0]) for words in NUMBERS),
        *((f"kv_indices --release {word}", ONE_RELEASE.format(word))
          for word in ("all", "0.5.18,0.5.23", "v0.5.23", "0.5.99")),
        ("kv_indices --release wheels/sglang-0.5.23.whl", "no wheel wheels/sglang-0.5.23.whl"),
        ("kv_indices --release .", "is neither a wheel or a checkout of sglang"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_in_a_sentence(words: str, message: str, refusal: Refusal) -> None:
    assert message in refusal(*words.split())


@pytest.mark.parametrize("slug", ["../ESCAPED", "Bad Name", "a/b", "-", "a--b", "UP", "a\n", "é"])
def test_a_slug_that_is_no_toggles_id_is_refused_at_once(slug: str, refusal: Refusal) -> None:
    error_line = refusal("--keep", "0123456789", f"--as={slug}".replace("\n", "_"))
    assert "is no toggle's id: an id is a slug of small letters, digits and '-'" in error_line
    with pytest.raises(UnfixError, match="is no toggle's id"):
        toggle_writer.check_id(slug)


def test_a_toggle_is_written_once_the_registry_has_read_it(tmp_path: Path) -> None:
    _, toggle = keep_fault(ONCE)
    file = toggle_writer.write_toggle_file(toggle, tmp_path, ToggleCatalogue([]))
    assert [path.name for path in tmp_path.iterdir()] == [file.name] == [f"{toggle.id}.yaml"]
    assert read_toggle(file) == toggle
    with pytest.raises(UnfixError, match="is there already: --as names another"):
        toggle_writer.write_toggle_file(toggle, tmp_path, ToggleCatalogue([]))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("id", "../ESCAPED", "ESCAPED"),
        ("family", "Bad Family", "family"),
        ("title", " ", "title"),
        ("id", "25418-combine-int64", "already stands for .*: --as names another"),
        ("id", "engine", "already stands for .*: --as names another"),  # a family
    ],
)
def test_a_toggle_that_the_registry_would_not_take_is_not_written(
    field: str, value: str, message: str, tmp_path: Path
) -> None:
    toggle = msgspec.structs.replace(keep_fault(ONCE)[1], **{field: value})
    (tmp_path / "toggles").mkdir()
    with pytest.raises(UnfixError, match=message):
        toggle_writer.write_toggle_file(
            toggle, tmp_path / "toggles", toggle_catalogue.load_catalogue()
        )
    assert [path.name for path in tmp_path.rglob("*")] == ["toggles"]


def test_tags_of_a_checkout_are_commits_and_a_version_that_none_is_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = SglangCheckout(tmp_path)
    first = checkout.commit({"srt/sizes.py": OLD})
    checkout.git("tag", "v0.5.20")
    second = checkout.commit({"srt/sizes.py": NEW})
    checkout.git("tag", "v0.5.23")
    monkeypatch.chdir(tmp_path)
    assert changed_lines.resolve_range("v0.5.20", "v0.5.23") == (first, second)
    assert changed_lines.read_changed_lines("v0.5.20", "v0.5.23")[1] == {"sglang.srt.sizes": {12}}
    with pytest.raises(UnfixError, match=r"'0\.5\.99' is no managed release"):
        changed_lines.resolve_range("0.5.99", "HEAD")
    checkout.git("tag", "0.5.99", "v0.5.20")
    assert changed_lines.resolve_range("0.5.99", "HEAD") == (first, second)
    with pytest.raises(UnfixError, match=r"has no commit 'v0\.5\.98'"):
        changed_lines.resolve_range("v0.5.98", "HEAD")
    assert changed_lines.read_changed_lines("0.5.18", "0.5.23", modules=[MODULE])[2] == "0.5.23"
