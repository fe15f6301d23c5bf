"""Diffs: the lines that a change added, between two commits of a checkout or two releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkouts import SglangCheckout
from memory import Memory
from released import load_sources
from small import format_code

from harness.core.errors import UnfixError
from harness.fixes.registry.schema import CodeTarget
from harness.runs.mutate import changed_lines
from harness.runs.mutate.fault_generation import generate_faults

# A file that begins with empty lines, which count, too.
OLD = "\n\n" + format_code(
    """
    LIMIT = 4


    def kept(n, m):
        return cdiv(n, m)


    def changed(n, m):
        a = cdiv(n, m)
        b = cdiv(m, n)
        return a + b
    """
)
NEW = OLD.replace("b = cdiv(m, n)", "b = cdiv(m, n) * 2")
VERSION = '__version__ = "0.5.99"\n'


@pytest.fixture
def checkout(tmp_path: Path) -> SglangCheckout:
    checkout = SglangCheckout(tmp_path / "checkout")
    checkout.commit({"version.py": VERSION, "srt/sizes.py": OLD, "srt/same.py": OLD})
    checkout.git("tag", "before")
    return checkout


@pytest.mark.parametrize(
    ("word", "ends"),
    [
        ("0.5.18..0.5.23", ("0.5.18", "0.5.23")),
        ("0.5.18...0.5.23", ("0.5.18", "0.5.23")),
        ("v0.5.18..HEAD~2", ("v0.5.18", "HEAD~2")),
        *((word, None) for word in ("0.5.18", "..0.5.23", "0.5.18..", "..", "")),
    ],
)
def test_a_range_is_its_two_ends(word: str, ends: tuple[str, str] | None) -> None:
    if ends is not None:
        assert changed_lines.parse_range(word) == ends
        return
    with pytest.raises(UnfixError, match="is no range"):
        changed_lines.parse_range(word)


def test_between_two_commits_only_the_changed_lines_count(
    checkout: SglangCheckout, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = checkout.commit({"srt/sizes.py": NEW})
    monkeypatch.chdir(checkout.folder / "python")  # the checkout is the one in the current folder
    sources, lines, label = changed_lines.read_changed_lines("before", "HEAD")
    assert lines == {"sglang.srt.sizes": {12}}
    assert NEW.split("\n")[11].strip() == "b = cdiv(m, n) * 2"
    assert label == after[: len(label)]
    assert len(label) >= 10
    assert str(sources.version) == "0.5.99"
    source = sources.read("sglang.srt.sizes")
    assert source is not None
    assert source.text == NEW
    assert "sglang.srt.same" in set(sources.modules())
    targets = changed_lines.list_changed_functions(sources, lines)
    assert targets == [CodeTarget("sglang.srt.sizes", "changed")]
    result = generate_faults(targets, sources, only_lines=lines)
    assert {(fault.operator, fault.line) for fault in result.faults} == {("round-down", 12)}
    no_lines = changed_lines.read_changed_lines("before", "HEAD", modules=["sglang.srt.same"])[1]
    assert no_lines == {}


def test_changed_lines_of_a_cuda_source_count_where_it_is_named(
    checkout: SglangCheckout, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, code = "sglang/kernels/jit/csrc/k.cuh", "void f() {}\n\nvoid g() {\n  a(1);\n}\n"
    checkout.commit({"kernels/jit/csrc/k.cuh": code})
    checkout.commit({"kernels/jit/csrc/k.cuh": code.replace("a(1)", "a(div_ceil(n, m))")})
    monkeypatch.chdir(checkout.folder)
    sources, lines, _ = changed_lines.read_changed_lines("HEAD~1", "HEAD", modules=[path])
    assert lines == {path: {4}}
    targets = changed_lines.list_changed_functions(sources, lines)
    assert targets == [CodeTarget(path, "g")]
    result = generate_faults(targets, sources, only_lines=lines)
    assert [(fault.operator, fault.line) for fault in result.faults] == [("round-down", 4)]
    assert changed_lines.read_changed_lines("HEAD~1", "HEAD")[1] == {}


def test_the_checkout_stays_as_it_is_and_what_is_not_committed_does_not_count(
    checkout: SglangCheckout,
) -> None:
    checkout.commit({"srt/sizes.py": NEW})
    file = checkout.folder / "python/sglang/srt/same.py"
    file.write_text("half = written\n")
    before = checkout.git("status", "--porcelain"), checkout.git("rev-parse", "HEAD")
    _, lines, _ = changed_lines.read_changed_lines("before", "HEAD", checkout.folder)
    assert set(lines) == {"sglang.srt.sizes"}
    assert (checkout.git("status", "--porcelain"), checkout.git("rev-parse", "HEAD")) == before
    assert file.read_text() == "half = written\n"


def test_a_moved_module_is_new_in_all_its_lines_and_a_gone_one_counts_not(
    checkout: SglangCheckout,
) -> None:
    checkout.commit({"srt/sizes.py": None, "srt/deep/__init__.py": OLD, "srt/read.txt": "n\n"})
    _, lines, _ = changed_lines.read_changed_lines("before", "HEAD", checkout.folder)
    assert set(lines) == {"sglang.srt.deep"}
    old_lines = {n for n, line in enumerate(OLD.split("\n"), 1) if line}
    assert old_lines <= lines["sglang.srt.deep"]


def test_what_cannot_be_compared_says_why(checkout: SglangCheckout, tmp_path: Path) -> None:
    def refusal(*words: str, folder: Path = checkout.folder) -> str:
        with pytest.raises(UnfixError) as caught:
            changed_lines.read_changed_lines(words[0], words[1], folder)
        return str(caught.value)

    assert "has no commit 'gone'" in refusal("before", "gone")
    assert "'0.5.99' is no managed release; there are 0.5.9, " in refusal("0.5.18", "0.5.99")
    assert "a release and a commit: name two of one kind" in refusal("0.5.18", "before")
    empty = SglangCheckout(tmp_path / "empty")
    (empty.folder / "file").touch()
    empty.git("add", "-A")
    empty.git("commit", "-q", "-m", "nothing")
    assert "holds no sglang" in refusal("HEAD", "HEAD", folder=empty.folder)


FUNCTIONS = "LIMIT = 1\n\ndef f():\n    pass\n\nclass K:\n    def g(self):\n        pass\n"


@pytest.mark.parametrize(
    ("lines", "covered", "names"),
    [
        ({"m": {1, 4}, "gone": {1}}, None, ["f"]),
        ({"m": {8}}, None, ["K.g"]),
        ({"m": {4, 8}}, {"m": {3, 7, 8}}, ["K.g"]),  # guards of f run the header only
        ({"m": {4, 8}}, {}, []),
    ],
)
def test_changed_functions_hold_a_changed_line_and_a_guard_runs_their_body(
    lines: dict[str, set[int]], covered: dict[str, set[int]] | None, names: list[str]
) -> None:
    sources: Any = Memory({"m": FUNCTIONS})
    targets = changed_lines.list_changed_functions(sources, lines, covered)
    assert targets == [CodeTarget("m", name) for name in names]


MODULE = "sglang.srt.layers.attention.flashattention_backend"


def test_two_releases_are_compared_by_their_sources() -> None:
    sources, lines, label = changed_lines.read_changed_lines("0.5.18", "0.5.23", modules=[MODULE])
    assert (label, set(lines)) == ("0.5.23", {MODULE})
    old, new = (
        load_sources(name).read(MODULE).text.split("\n")  # type: ignore[union-attr]
        for name in ("0.5.18", "0.5.23")
    )
    code = set(range(1, len(new) + 1)) - changed_lines.find_python_remarks("\n".join(new))
    brought = [n for n, line in enumerate(new, 1) if n in code and line not in set(old)]
    assert len(brought) > 20
    assert set(brought) <= lines[MODULE]
    assert len(lines[MODULE]) < len(new) / 2
    targets = changed_lines.list_changed_functions(sources, lines)[:4]
    faults = generate_faults(targets, sources, only_lines=lines).faults
    assert all(lines[MODULE] & set(range(one.first, one.last + 1)) for one in faults)
    assert 0 < len(faults) < len(generate_faults(targets, sources).faults)
