"""Findings: a bad file is refused with its line and what to write; pages and order come from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.core import paths
from harness.core.errors import UnfixError
from harness.findings import finding_files, pages
from harness.findings.reproduction import cut_script
from harness.findings.schema import Finding
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases

GOOD = """\
title: "GPT-J: the bias of lm_head is never added"
severity: wrong answers
file: srt/models/gpt_j.py
function: GPTJForCausalLM.forward
releases: ">=0.5.9"
ran: ["0.5.23"]
first: "0.5.9 or earlier"
reach: "EleutherAI/gpt-j-6b, default options"
server: "python -m sglang.launch_server --model-path EleutherAI/gpt-j-6b"
what: Logits lack the bias.
upstream:
  searched: 2026-11-29
  words: "gpt-j bias"
  threads: []
fix: {toggle: gptj-bias, why: "the head has one"}
evidence: ["logits off by 0.018"]
"""
FOUND = finding_files.load_findings()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one finding, its toggle and its test."""
    monkeypatch.setattr(paths, "project_folder", lambda: tmp_path)
    for name, text in (
        ("findings/gptj-bias.yaml", GOOD),
        ("findings/upstream/test_gptj_bias.py", "register_cpu_ci(est_time=5)\n"),
        ("toggles/proposed/gptj-bias.yaml", "id: gptj-bias\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def write_finding(project: Path, old: str, new: str, name: str = "gptj-bias") -> None:
    assert GOOD.count(old) == 1
    (project / f"findings/{name}.yaml").write_text(GOOD.replace(old, new))


def test_a_good_file_is_read(project: Path) -> None:
    [finding] = finding_files.load_findings()
    assert (finding.name, finding.files) == ("gptj-bias", ("srt/models/gpt_j.py",))
    assert "- **fix:** `--enable gptj-bias`; the head has one\n" in pages.make_page(finding)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("severity: wrong answers", "severity: bad", "it is one of wrong answers, crash, leak"),
        ('server: "python -m sglang.launch_server --model-path EleutherAI/gpt-j-6b"\n', "",
         "gptj-bias.yaml:2: severity: a finding of severity 'wrong answers' needs `server`"),
        ("  searched: 2026-11-29\n", "", "missing key `searched`"),
        ("searched: 2026-11-29", "searched: lately", "write the day as 2026-11-29"),
        ("searched: 2026-11-29", "searched: 2999-01-01", "that day is in the future"),
        ("toggle: gptj-bias", "toggle: gptj-lm", "write toggles/proposed/gptj-lm.yaml"),
        ("toggle: gptj-bias, ", "", "give `toggle`, the id of a proposed one, or `none`"),
        ('">=0.5.9"', '"since 0.5.9"', "names no release; write it like '>=0.5.9'"),
        ("Logits lack the bias.", "bias " * 81, "it has 81 words: say symptom and cause in 80"),
        ('["logits off by 0.018"]', "[{record: bench/none.json}]", "no record bench/none.json"),
        ("first:", "frist:", "unknown key `frist`"),
        ("ran:", "table: {columns: [a, b], rows: [[c]]}\nran:", "1 cells, and there are 2 columns"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(project: Path, old: str, new: str, message: str) -> None:
    write_finding(project, old, new)
    with pytest.raises(UnfixError) as caught:
        finding_files.load_findings()
    text = str(caught.value)
    assert re.search(r"gptj-bias\.yaml:\d+: ", text)
    assert message in text


def test_a_short_script_stands_for_a_server_command(project: Path) -> None:
    write_finding(project, "--model-path EleutherAI/gpt-j-6b", "--model-path YOUR_GPT_J")
    test = project / "findings/upstream/test_gptj_bias.py"
    for lines, is_short in ((20, True), (40, False)):
        body = "        self.fail()\n" * lines
        test.write_text(
            "import unittest\n\n\nclass TestBias(unittest.TestCase):\n"
            f"    def test_bias(self):\n{body}"
        )
        if is_short:
            assert finding_files.load_findings()
            continue
        with pytest.raises(UnfixError, match="at most 40 lines; the shortest has 45"):
            finding_files.load_findings()


TWO_TESTS = '''\
# upstream: test/registered/unit
"""Sums."""

import os
import unittest
from collections import Counter, deque

import torch
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

os.environ["A"] = "1"
register_cpu_ci(est_time=5)
WIDTH, HEIGHT = 2, 3
DEPTH = 4


def make_deque():
    return deque([DEPTH])


def make_counter():
    """Count the width."""
    return Counter([WIDTH])


class TestSums(CustomTestCase):
    def setUp(self):
        self.limit = 1

    def count(self):
        return make_counter()[2]

    def test_deque(self):
        self.assertTrue(torch.tensor(make_deque()))

    @unittest.skipIf(False, "a reason")
    def test_counter(self):
        self.assertLess(self.count(), self.limit)


if __name__ == "__main__":
    unittest.main()
'''
COUNTER_SCRIPT = '''\
"""Sums."""
import os
import unittest
from collections import Counter
os.environ["A"] = "1"
WIDTH, HEIGHT = 2, 3


def make_counter():
    """Count the width."""
    return Counter([WIDTH])


class TestSums(unittest.TestCase):
    def setUp(self):
        self.limit = 1

    def count(self):
        return make_counter()[2]

    @unittest.skipIf(False, "a reason")
    def test_counter(self):
        self.assertLess(self.count(), self.limit)


if __name__ == "__main__":
    unittest.main()
'''


def test_a_script_has_one_test_and_what_it_uses() -> None:
    assert cut_script(TWO_TESTS, "test_counter") == COUNTER_SCRIPT


def test_a_finding_of_a_kernel_says_what_its_fix_costs(project: Path) -> None:
    write_finding(project, "file: srt/models/gpt_j.py", "file: kernels/ops/heads.py")
    with pytest.raises(UnfixError, match="it changes a kernel: say in `cost` what that costs"):
        finding_files.load_findings()
    write_finding(project, "{toggle: gptj-bias, ", "{toggle: gptj-bias, cost: nothing, ")
    with pytest.raises(UnfixError, match=r"cost: write its launches, .*launches/gptj_bias\.py"):
        finding_files.load_findings()


def test_each_toggle_and_test_belongs_to_a_finding(project: Path) -> None:
    (project / "findings/upstream/test_gptj.py").touch()
    with pytest.raises(UnfixError, match=r"test_gptj\.py belongs to no finding"):
        finding_files.load_findings()
    (project / "findings/upstream/test_gptj.py").unlink()
    (project / "toggles/proposed/other.yaml").touch()
    with pytest.raises(UnfixError, match=r"other\.yaml belongs to 0 findings"):
        finding_files.load_findings()
    (project / "findings/upstream/test_gptj_bias.py").unlink()
    with pytest.raises(UnfixError, match=r"write its test findings/upstream/test_gptj_bias\.py"):
        finding_files.load_findings()


def test_the_worst_and_most_reached_come_first(project: Path) -> None:
    write_finding(project, "default options", "opt-in --a", "z-opt-in")
    write_finding(project, "wrong answers", "slow", "a-slow")
    for file in (project / "findings").glob("*-*[wn].yaml"):
        file.write_text(file.read_text().replace("{toggle: gptj-bias", "{none: 'not yet'"))
    names = [finding.name for finding in finding_files.load_findings()]
    assert names == ["gptj-bias", "z-opt-in", "a-slow"]


def test_a_proposed_toggle_is_selected_by_its_id_alone() -> None:
    catalogue = toggle_catalogue.load_catalogue()
    assert not catalogue.proposed.keys() & {toggle.id for toggle in catalogue}
    for name, toggle in catalogue.proposed.items():
        assert catalogue.select(name) == [toggle]
        assert toggle not in catalogue.select_or_all([])


@pytest.mark.parametrize("finding", FOUND, ids=[finding.name for finding in FOUND])
def test_the_code_of_each_finding_is_in_the_newest_release_that_it_names(finding: Finding) -> None:
    known = managed_releases.list_releases()
    there = [each for each in known if finding.specifier.contains(each.name) and each.has_sources]
    assert there, "no release here has these sources"
    assert finding_files.find_missing_code(finding, there[-1].open_sources()) == []
