"""`unfix upstream`: a pull request is written for a test that fails as released and passes patched.

Each way in which a test shows nothing is refused with its reason.
"""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_finding

from harness.cli import upstream
from harness.core import machine, paths
from harness.core.errors import CommandLineError, NotReadyError, PatchError
from harness.core.outcomes import Verdict
from harness.findings import finding_files
from harness.findings.schema import UpstreamThread
from harness.fixes.registry import toggle_catalogue
from harness.runs.upstream import (
    accuracy,
    fix_patch,
    pull_request,
    test_process,
    verification,
)
from harness.runs.upstream.verification import (
    PatchedFinding,
    SideOutcome,
    Verification,
    VerifiedState,
)
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim
from harness.workers.release_target import ReleaseTarget


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "project_folder", lambda: tmp_path)
    small_finding.write_project(tmp_path)
    return tmp_path


@pytest.fixture
def release(tmp_path: Path) -> ReleaseTarget:
    return small_finding.write_release(tmp_path / "site")


def verify_one(
    release: ReleaseTarget, checkout: Path | None = None
) -> tuple[PatchedFinding, Verification]:
    [item], refused = upstream.make_patches(finding_files.load_findings(), release, checkout)
    assert refused == {}
    return item, verification.verify_findings([item], release, 1, print)["sums"]


def test_a_verified_fix_is_written_with_what_its_test_did(
    project: Path, release: ReleaseTarget, tmp_path: Path
) -> None:
    item, result = verify_one(release)
    assert result.state is VerifiedState.VERIFIED, result.problem
    pull_request.write_folder(tmp_path / "out", item, result, release.name)
    files = sorted(
        str(each.relative_to(tmp_path / "out")) for each in (tmp_path / "out").rglob("*.*")
    )
    evidence = ["evidence/patched.txt", "evidence/released.txt"]
    assert files == ["PR.md", *evidence, "fix.patch", "repro.py", "test_sums.py"]
    text = (tmp_path / "out" / "PR.md").read_text()
    assert "| SGLang 0.5.23 | fails: AssertionError: 1 != 3 |" in text
    assert "| with `fix.patch` | passes (2 tests) |" in text
    assert "for `test/registered/unit`" in text
    assert "`python repro.py` (7 lines, CPU) exits with 1, and with the patch with 0:" in text
    assert "**Not measured with this patch**: `unfix upstream sums --record`" in text
    script = (tmp_path / "out" / "repro.py").read_text()
    assert "test_all_numbers_count" in script
    assert not re.search("test_no_number|register_cpu_ci", script)
    patch = (tmp_path / "out" / "fix.patch").read_text()
    assert "+++ b/python/sglang/srt/sums.py\n" in patch
    assert "-    return sum(numbers[:-1])\n+    return sum(numbers)\n" in patch


def test_accuracy_is_of_the_rows_that_the_commands_name(
    project: Path, release: ReleaseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sides: as released, with the fix, and with the fix that `--enable` names beside it."""
    monkeypatch.setattr(accuracy, "read_definition", lambda row: f"{row}\nof the zoo")
    item, _ = verify_one(release)
    calls = []

    def measure(rows: list[str], enabled: list[str]) -> list[ArchitectureResult]:
        calls.append((rows, enabled))
        error = 0.5 / 10 ** (4 * len(enabled))
        verdict = Verdict.FAILS if error > 2e-5 else Verdict.HOLDS
        headline = "docs/findings/sums.md (off by 0.5)" if not enabled else ""
        claim = ClaimResult(ZooClaim.REFERENCE, verdict, headline, error, 2e-5)
        return [ArchitectureResult("llama", [claim])]

    (project / "bench/recorded").mkdir(parents=True)
    accuracy.add_records(dict(accuracy.measure_findings([item], "0.5.23", "H100", measure)))
    sides: list[list[str]] = [[], ["last-number"], ["last-number", "other-fix"]]
    assert calls == [(["llama"], side) for side in sides]
    text = accuracy.describe_accuracy(item, "0.5.23")
    row = "| llama | equals transformers | **0.5** | **5e-05** | 5e-09 (at most 2e-05) |"
    assert row in text
    assert "Neighbours, each a pull request of its own: other-fix." in text
    changed = replace(item, patch=item.patch + "\n")
    assert "**Not measured with this patch**" in accuracy.describe_accuracy(changed, "0.5.23")


def test_the_release_is_as_it_was(project: Path, release: ReleaseTarget) -> None:
    """Its copy has the same files, and git writes new ones."""
    verify_one(release)
    assert (project / "site/sglang/srt/sums.py").read_text() == small_finding.SUMS


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("toggles/proposed/last-number.yaml", "fixed: return sum(numbers)", "fixed: return 4",
         "with the patch it fails: AssertionError: 4 != 3"),
        ("findings/upstream/test_sums.py", "[1, 2]), 3", "[3, 2]), 3", "it passes as released"),
        ("findings/upstream/test_sums.py", "import unittest", "import unittest, no_such_module",
         "as released it cannot be imported: ModuleNotFoundError"),
        ("findings/upstream/test_sums.py", "add_all([1, 2])", "add_all()",
         "ends with TypeError: add_all() missing 1 required positional argument: 'numbers'; that"),
        ("findings/upstream/test_sums.py", "def test_no", "@unittest.skip('no')\n    def test_no",
         "as released it runs 2 tests and skips 1"),
        ("findings/upstream/test_sums.py", "(unittest.TestCase)", "", "it runs 0 tests"),
        ("findings/upstream/test_sums.py", "import unittest",
         "import sys, unittest; sys.modules['unfix'] = sys",
         "as released it imports unfix"),
        ("findings/upstream/test_sums.py", "from sglang.srt.sums import add_all", "add_all = sum",
         "it imports SGLang from , not from the copy"),
        ("findings/upstream/test_sums.py", "import unittest", "import unittest, os; os._exit(7)",
         "its process ended with 7"),
        ("findings/upstream/test_sums.py", "self.assertEqual(add_all([1, 2]), 3)",
         "self.assertEqual(add_all([1, 2]), 3 if __name__ == 'test_sums' else 1)",
         "the script: it passes as released"),
    ],
)  # fmt: skip
def test_a_test_that_does_not_show_the_fix_is_refused(
    project: Path, release: ReleaseTarget, file: str, old: str, new: str, problem: str
) -> None:
    text = (project / file).read_text()
    assert text.count(old) == 1
    (project / file).write_text(text.replace(old, new))
    result = verify_one(release)[1]
    assert result.state is VerifiedState.FAILED
    assert problem in result.problem


def test_a_test_may_end_with_the_error_that_its_finding_names(
    project: Path, tmp_path: Path
) -> None:
    finding = small_finding.FINDING.replace(
        "A sum lacks its last number.", "A sum ends with KeyError."
    )
    toggle = small_finding.TOGGLE.replace("return sum(numbers[:-1])", "return {}[0]")
    small_finding.write_project(tmp_path, finding, toggle)
    sums = small_finding.SUMS.replace("sum(numbers[:-1])", "{}[0]")
    release = small_finding.write_release(tmp_path / "crashing", sums)
    assert verify_one(release)[1].state is VerifiedState.VERIFIED
    small_finding.write_project(tmp_path, finding.replace("KeyError", "an error"), toggle)
    assert "ends with KeyError" in verify_one(release)[1].problem
    small_finding.write_project(tmp_path, finding.replace("KeyError", "NoKeyErrors"), toggle)
    assert "ends with KeyError" in verify_one(release)[1].problem


def test_a_test_for_cuda_alone_needs_the_record_of_a_gpu(
    project: Path, release: ReleaseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = project / "findings/upstream/test_sums.py"
    test.write_text(test.read_text().replace("register_cpu_ci", "register_cuda_ci"))
    item, result = verify_one(release)
    assert result.state is VerifiedState.NEEDS_GPU
    assert "**not verified: needs a GPU**" in pull_request.describe_tests(item, result, "0.5.23")
    (project / "bench/recorded").mkdir(parents=True)
    monkeypatch.setattr(machine, "describe_gpus", lambda: "NVIDIA H200, 570.1; NVIDIA H200, 570.1")
    file = verification.record_tests([item], release, 1, print)
    assert file.name == "upstream-h200.json"
    assert verify_one(release)[1].state is VerifiedState.VERIFIED
    test.write_text(test.read_text() + "\n# another test\n")
    assert verify_one(release)[1].state is VerifiedState.NEEDS_GPU


def test_what_a_fix_costs_is_timed_on_both_sides_in_turns(
    project: Path, release: ReleaseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = small_finding.FINDING.replace("last-number, ", "last-number, cost: a sum, ")
    small_finding.write_project(project, finding)
    (project / "findings/launches").mkdir()
    (project / "findings/launches/sums.py").write_text("LAUNCHES = {}\n")
    (project / "bench/recorded").mkdir(parents=True)
    [item], _ = upstream.make_patches(finding_files.load_findings(), release, None)
    assert "**Not measured with this patch**" in pull_request.describe_launches(item, "0.5.23")
    times, sides = iter((4.0, 5.0, 3.0, 6.0)), []

    def run_file(lane: verification.CopyLane, file: Path) -> SideOutcome:
        text = (lane.copy.import_folder / "sglang/srt/sums.py").read_text()
        sides.append("patched" if "sum(numbers)" in text else "released")
        return SideOutcome(ran=1, microseconds={"a launch": next(times)})

    monkeypatch.setattr(verification.CopyLane, "_run_file", run_file)
    monkeypatch.setattr(machine, "describe_gpus", lambda: "NVIDIA H200, 570.1")
    verification.record_tests([item], release, 1, print)
    assert sides == ["released", "patched", "released", "patched"]
    assert "| a launch | 3.00 | 5.00 |" in pull_request.describe_launches(item, "0.5.23")
    (project / "findings/launches/sums.py").write_text("LAUNCHES = {}  # others\n")
    assert "**Not measured with this patch**" in pull_request.describe_launches(item, "0.5.23")
    refused = SideOutcome("finds no GPU")
    monkeypatch.setattr(verification.CopyLane, "_run_file", lambda lane, file: refused)
    with pytest.raises(NotReadyError, match=r"not the time of .*sums\.py finds no GPU"):
        verification.record_tests([item], release, 1, print)


def test_launches_are_timed_by_their_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_gpu = [False, True, True]
    cuda = SimpleNamespace(is_available=lambda: has_gpu.pop(0))
    bench = SimpleNamespace(do_bench_cudagraph=lambda launch, **options: launch())
    for name, module in (("torch", SimpleNamespace(cuda=cuda)), ("triton.testing", bench)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(testing=bench))
    file = tmp_path / "sums.py"
    file.write_text("LAUNCHES = {'one': lambda: 0.004}\n")
    assert test_process.time_file(str(file), io.StringIO()) == {"problem": "finds no GPU"}
    timed = test_process.time_file(str(file), io.StringIO())
    assert timed == {"ran": 1, "microseconds": {"one": 4.0}}
    file.write_text("LAUNCHES = {'one': lambda: 1 // 0}\n")
    assert "ZeroDivisionError" in test_process.time_file(str(file), io.StringIO())["problem"]


def test_a_patch_must_fit_the_checkout_that_is_named(
    project: Path, release: ReleaseTarget, tmp_path: Path
) -> None:
    changed = small_finding.SUMS.replace("numbers", "values")
    small_finding.write_release(tmp_path / "checkout" / "python", changed)
    findings = finding_files.load_findings()
    _, refused = upstream.make_patches(findings, release, tmp_path / "checkout")
    assert "patch does not apply" in refused["sums"]
    with pytest.raises(PatchError):
        fix_patch.apply_patch(tmp_path / "checkout", "no patch")


def test_the_index_counts_what_is_verified(project: Path, release: ReleaseTarget) -> None:
    _, result = verify_one(release)
    findings = finding_files.load_findings()
    text = pull_request.make_index(findings, {"sums": result}, {})
    assert text.startswith("# 1 of 1 findings with a verified fix")
    assert "[Sums: the last number is left out](sums/PR.md)" in text
    failed = replace(result, state=VerifiedState.FAILED, problem="passes as released")
    assert "PR.md" not in pull_request.make_index(findings, {"sums": failed}, {})  # nor is it there
    thread = UpstreamThread(7, "open since May: the same")
    assert pull_request.describe_thread(thread).endswith("/7) open since May")
    said = UpstreamThread(7, "says that sums lack a number: yes")
    assert pull_request.describe_thread(said).endswith("/7)")
    refused = pull_request.make_index(findings, {}, {"sums": "does not apply"})
    assert refused.startswith("# 0 of 1")
    assert "does not apply" in refused


def test_a_patch_of_a_real_release_applies_to_it() -> None:
    """A backport: the fix of a release that lacks it, as a diff of SGLang's repository."""
    from harness.releases import managed_releases

    [toggle] = toggle_catalogue.load_catalogue().select("27460")
    release = managed_releases.get_release("0.5.9")
    patch = fix_patch.make_fix_patch(toggle, release.open_sources())
    assert "+++ b/python/sglang/srt/layers/attention/flashinfer_mla_backend.py" in patch
    fix_patch.check_patch(patch, release.open_sources(), None)
    with pytest.raises(PatchError):
        fix_patch.check_patch(patch, managed_releases.get_release("0.5.23").open_sources(), None)


@pytest.mark.parametrize("other", ["all", "record", "json", "release"])
def test_a_backport_takes_no_option_that_it_would_ignore(other: str) -> None:
    options: dict[str, Any] = dict.fromkeys(["all", "record", "json"], False)
    options |= {"names": [] if other == "all" else ["27460"], "release": None, other: True}
    with pytest.raises(CommandLineError):
        upstream.UpstreamRequest(
            **options, onto="0.5.9", out=None, checkout=None, device="cuda", usage=""
        )
