"""Audit results for kernels whose launches can all be computed by hand."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from rehearsals import make_run

from harness.cli.audit import ranking
from harness.cli.main import main
from harness.core.outcomes import Verdict
from harness.fixes.registry import toggle_catalogue
from harness.runs.audit.deployment_ranks import make_ranks
from harness.runs.audit.findings import AuditFinding, KernelAudit
from harness.runs.audit.release_audit import AuditRequest, ReleaseAudit, audit_release
from harness.runs.audit.size_limits import DEFAULT_LIMITS as LIMITS
from tests.audit.conftest import KERNELS, SIZES

ROW = 32 * 128  # columns of `out`, as the launching function allocates it


def get_kernel(audit: ReleaseAudit, name: str) -> KernelAudit:
    [found] = [one for one in audit.kernels if one.kernel == name]
    return found


def get_only_finding(audit: ReleaseAudit, name: str) -> AuditFinding:
    [found] = get_kernel(audit, name).findings
    return found


def test_a_row_in_32_bits_wraps_at_the_very_row(small: ReleaseAudit) -> None:
    found = get_only_finding(small, "row_in_32_bits")
    assert found.text == "tl.store(out_ptr + row * stride + columns, value)"
    assert found.grows == "x.shape[0]"
    assert found.threshold == 2**31 // ROW + 1
    assert found.confirmed == "confirmed"
    assert found.setting == "--chunked-prefill-size"


@pytest.mark.parametrize("name", ["masked_away", "early_return"])
def test_what_a_condition_keeps_small_is_safe(small: ReleaseAudit, name: str) -> None:
    assert get_kernel(small, name).verdict is Verdict.SAFE


def test_a_helper_is_judged_by_its_callers(small: ReleaseAudit) -> None:
    found = get_only_finding(small, "through_a_helper")
    assert found.text == "return row * stride"
    assert found.confirmed == "confirmed"
    assert get_kernel(small, "scaled").verdict is Verdict.OVERFLOWS


def test_what_wraps_first_is_told_though_something_before_it_wraps_later(
    small: ReleaseAudit,
) -> None:
    far, near = sorted(
        get_kernel(small, "nearer_behind_farther").findings, key=lambda one: one.line
    )
    assert near.threshold == 2**31 // (1024 * ROW) + 1
    assert far.threshold == 2**31 // 1024 + 1
    assert near.confirmed == far.confirmed == "confirmed"


def test_the_least_is_that_of_any_program(small: ReleaseAudit) -> None:
    """The grid's last program, which runs first, overflows at twice that load."""
    [found] = get_kernel(small, "the_second_comes_far").findings
    assert found.confirmed == "confirmed"
    width = found.trials[0].arguments[2].value
    assert found.threshold == 2**30 // width
    assert found.trials[1].program == (1, 0, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("insists", 2**31 // ROW + 1),  # static asserts on a string, a number and unrolled loops
        ("behind_its_scales", 2**31 // ROW + 1),  # Triton refuses the first guess: a float
        ("by_its_bits", 2**31 // ROW + 1),  # and bfloat16 for 8-bit numbers
        ("in_steps", 2**31 // ROW + 1),  # a loop that is unrolled in steps
        ("under_match", 2**31 // ROW + 1),  # a kernel inside a `match` statement
        ("by_another_module", 2**31 // 4096 + 1),  # a constant from another module
        ("beside_a_long_loop", 2**31 // ROW + 1),  # an endless loop is sliced away
        ("of_its_own_kinds", 2**31 // ROW + 1),  # flags and pointers in memory keep their types
        ("where_flagged", 2**31 // ROW + 1),  # a branch on memory
        ("ends_at_a_count", 2**31 // ROW + 2),  # the program before the last one is run
        ("masked_by_what_wraps", None),  # a negative offset is below the mask's end, too
        ("carried", None),  # a number that a loop carries
        ("with_assembly", None),  # inline assembly of a GPU is sliced away
        ("turns_that_are_a_stride", None),  # a number of iterations that is also a stride
    ],
)
def test_an_overflow_is_confirmed_at_the_smallest_value(
    small: ReleaseAudit, name: str, value: int | None
) -> None:
    found = get_only_finding(small, name)
    assert found.confirmed == "confirmed"
    assert value in (None, found.value)
    if name in ("masked_by_what_wraps", "carried"):
        assert abs(found.threshold - 2**31 // ROW) <= 2


def test_each_line_is_run_as_if_no_other_wrapped(small: ReleaseAudit) -> None:
    first, second = sorted(get_kernel(small, "two_lines").findings, key=lambda one: one.line)
    assert (first.threshold, second.threshold) == (2**31 // ROW + 1, 2**31 // 512 + 1)
    assert first.confirmed == second.confirmed == "confirmed"


def test_tensors_hold_different_things(small: ReleaseAudit) -> None:
    found = get_only_finding(small, "where_another_is_empty")
    assert found.grows == "what page_table_ptr holds"
    assert found.value == 2**31 // ROW
    assert found.confirmed == "confirmed"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("by_its_word", "it is read with "),  # a word that may be another one
        ("of_sides_that_nobody_has", "overflows with sides that no model is known to have: x.sh"),
        ("beyond_any_memory", "512 GiB past a tensor"),  # a wrap behind what fits nowhere
        ("of_what_it_loads", "what zebras_ptr holds"),
    ],
)
def test_what_cannot_be_told_is_not_called_safe(
    small: ReleaseAudit, name: str, reason: str
) -> None:
    found = get_kernel(small, name)
    assert (found.verdict, found.findings) == (Verdict.CANNOT_TELL, ())
    assert reason in found.reasons[0]


def test_an_unrolled_loop_is_read_as_often_as_the_limits_have_it(
    small: ReleaseAudit, release: Path, tmp_path: Path
) -> None:
    """The overflow is in a late iteration, which is within the limits."""
    assert get_only_finding(small, "in_a_later_turn").confirmed == "confirmed"
    fewer = tmp_path / "limits.yaml"
    text = LIMITS.read_text()
    fewer.write_text(re.sub(r"(turns: .*largest: )\d+", r"\g<1>5", text))
    assert fewer.read_text() != text
    targets = ("in_a_later_turn", "turns_that_are_a_stride")
    with_fewer = audit_release(AuditRequest(release, "0.0", targets, limits=fewer), print)
    assert get_kernel(with_fewer, "in_a_later_turn").verdict is Verdict.SAFE
    # With fewer iterations the stride is another one too, so nothing follows for this one.
    cut = get_kernel(with_fewer, "turns_that_are_a_stride")
    assert cut.verdict is not Verdict.SAFE
    assert cut.findings or "it is read with " in cut.reasons[0]


def test_sides_that_are_multiplied_are_one_row(small: ReleaseAudit) -> None:
    """Two hidden sizes multiplied are no row length."""
    found = get_only_finding(small, "of_one_row")
    assert found.shape == "x.shape[1] * x.shape[2] = 73,728"
    assert found.value == 2**31 // 73728 + 2


def call_audit(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["audit", *words, "--no-rehearsal"])
    return code, capsys.readouterr().out


def test_a_difference_is_what_is_new_alone(
    small: ReleaseAudit, release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mended = KERNELS.replace("out_ptr + row * stride", "out_ptr + row.to(tl.int64) * stride")
    assert mended != KERNELS
    package = write_release(tmp_path, mended) / "sglang" / "srt"
    (package / "kernels.py").rename(package / "moved.py")
    code, out = call_audit(["--diff", f"{tmp_path}..{release}", "--json", "-j", "1"], capsys)
    data = json.loads(out)
    [found] = data["findings"]
    assert code == 1
    assert found["kernel"] == "row_in_32_bits"
    assert len(data["kernels"]) == 1  # the other kernels are unchanged, in another file
    code, out = call_audit(["--diff", f"{release}..{release}", "no_such_kernel", "-j", "1"], capsys)
    assert code == 2
    code, out = call_audit(["--diff", f"{release}..{release}", "--json", "-j", "1"], capsys)
    assert code == 0
    assert json.loads(out)["kernels"] == []


CHANGES = {
    "its helper": ("    return row * stride", "    return row.to(tl.int64) * stride",
                   ["scaled", "through_a_helper"]),
    "its constant": ("tl.constexpr(tl.float8e4nv)", "tl.constexpr(tl.float8e5)", ["by_its_bits"]),
    "its launch": ("carried[(1,)](out, tokens, out", "carried[(1,)](out, 8, out", ["carried"]),
    "a name in its launch": ("tokens, hidden = q.shape", "tokens, heads = q.shape",
                             ["by_its_side"]),
}  # fmt: skip


def write_release(folder: Path, kernels: str) -> Path:
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True, exist_ok=True)
    (package / "kernels.py").write_text(kernels)
    (package / "sizes.py").write_text(SIZES)
    return folder


def test_a_kernel_has_changed_with_its_helper_its_constant_and_its_launch(
    small: ReleaseAudit, tmp_path: Path, release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No two changes are of one kernel, so each kernel of the difference shows its change."""
    before = KERNELS
    for now, then, _ in CHANGES.values():
        assert before.count(now) == 1
        before = before.replace(now, then)
    write_release(tmp_path, before)
    _, out = call_audit(["--diff", f"{tmp_path}..{release}", "--json", "-j", "1"], capsys)
    changed = sorted(name for *_, names in CHANGES.values() for name in names)
    assert sorted(one["kernel"] for one in json.loads(out)["kernels"]) == changed


def test_what_a_checkout_adds_to_the_rehearsed_release_counts(
    small: ReleaseAudit,
    release: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No rehearsal ran the new line, with and without a difference."""
    added = "out_ptr + row * stride"
    write_release(tmp_path, KERNELS.replace(added, "out_ptr + row.to(tl.int64) * stride"))
    ranks = make_ranks(make_run(release=str(tmp_path)))
    monkeypatch.setattr(ranking, "_find_newest_ranks", lambda: ranks)
    for words in (["--diff", f"{tmp_path}..{release}"], ["--from", str(release)]):
        code = main(["audit", *words, "--json", "-j", "1"])
        [(_, name, line)] = json.loads(capsys.readouterr().out)["red_findings"]
        assert (code, name) == (1, "row_in_32_bits")
        assert added in line
    write_release(tmp_path, KERNELS)
    assert main(["audit", "--from", str(release), "--json", "-j", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["red_findings"] == []


def test_a_line_that_was_there_is_not_new_if_it_wrapped_there(
    small: ReleaseAudit, release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel changed in both files: the first overflowed before as well, the second could not.

    So equal text alone does not make a finding an old one.
    """
    store = "    tl.store(x_ptr + row * 512, 2)\n"
    then = KERNELS.replace(store, store.replace("2)", "3)"))
    carried = "        tl.store(x_ptr + at, 1)\n        at += stride"
    then = then.replace("    at = 0\n", "    at = tl.full((), 0, tl.int64)\n")
    assert carried in then
    write_release(tmp_path, then)
    code, out = call_audit(["--diff", f"{tmp_path}..{release}", "--json", "-j", "1"], capsys)
    found = [(one["kernel"], one["text"]) for one in json.loads(out)["findings"]]
    assert code == 1
    assert ("carried", "at += stride") in found
    assert ("two_lines", "tl.store(x_ptr + row * stride, 1)") not in found
    assert ("two_lines", "tl.store(x_ptr + row * 512, 2)") in found


def test_a_family_is_the_modules_that_its_toggles_change(
    small: ReleaseAudit, release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [changed] = toggle_catalogue.load_catalogue().select("35571-normalize")
    module = changed.variants[-1].targets[0].module
    file = tmp_path / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "sglang" / "srt").mkdir()
    file.write_text(KERNELS[: KERNELS.index("@triton.jit\ndef masked_away")])
    _, out = call_audit(["--from", str(tmp_path), changed.family, "--json", "-j", "1"], capsys)
    assert [one["kernel"] for one in json.loads(out)["kernels"]] == ["row_in_32_bits"]


def test_an_exception_expires_with_its_line(
    small: ReleaseAudit, release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, row = get_only_finding(small, "carried"), get_only_finding(small, "row_in_32_bits")
    file = tmp_path / "exceptions.yaml"
    because = "because: nobody has as many rows"
    file.write_text(
        f'- {{kernel: carried, line: "{found.text}", {because}}}\n'
        f"- {{kernel: carried, line: at += 3, {because}}}\n"
        f"- {{kernel: gone_by_now, line: at += 3, {because}}}\n"
        f"- {{kernel: row_in_32_bits, line: {row.text!r}, {because}, unless: confirmed}}\n"
    )
    words = ["audit", "--from", str(release), "--exceptions", str(file)]
    words += ["--json", "--no-rehearsal", "-j", "1"]
    assert main(words) == 1
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    kernels = [one["kernel"] for one in data["findings"]]
    assert "carried" not in kernels
    assert "row_in_32_bits" in kernels
    assert "has expired: carried has no such finding any more: at += 3" in shown.err
    assert "gone_by_now" not in shown.err  # a release may lack it


def test_what_was_not_run_and_is_excepted_is_not_proven_safe(small: ReleaseAudit) -> None:
    found = get_kernel(small, "carried")
    unseen = dataclasses.replace(found.findings[0], confirmed="not run: too slow to run")
    one = dataclasses.replace(found, findings=(unseen,), reasons=())
    exempted = one.apply_exemptions({unseen.key: "a card ran it"})
    assert not exempted.findings
    assert exempted.verdict is Verdict.CANNOT_TELL
    [reason] = exempted.reasons
    assert reason.startswith(f"line {unseen.line} overflows by arithmetic")
    assert reason.endswith("a card ran it")
    other = {("overflow", "carried", "at += 3"): "nobody knows of it"}
    assert one.apply_exemptions(other).findings == (unseen,)


def test_an_exception_may_stand_until_a_finding_is_confirmed(small: ReleaseAudit) -> None:
    found = get_kernel(small, "carried")
    [one] = found.findings
    because = {one.key: "a card ran it"}
    assert one.is_confirmed
    assert not found.apply_exemptions(because).findings
    assert found.apply_exemptions(because, because.keys()) == found
    unseen = dataclasses.replace(one, confirmed="not run: too slow to run")
    other = dataclasses.replace(found, findings=(unseen,))
    assert not other.apply_exemptions(because, because.keys()).findings


def test_sarif_names_file_line_and_condition(small: ReleaseAudit) -> None:
    from reports.audit import sarif

    [run] = json.loads(sarif.render_sarif(small))["runs"]
    [result] = [one for one in run["results"] if "row_in_32_bits" in one["message"]["text"]]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "python/sglang/srt/kernels.py"
    assert place["region"]["startLine"] == get_only_finding(small, "row_in_32_bits").line
    assert result["level"] == "error"


def test_the_page_shows_the_line_and_what_would_mend_it(small: ReleaseAudit) -> None:
    from reports.audit import page, upstream

    found = get_only_finding(small, "row_in_32_bits")
    one = dataclasses.replace(small, kernels=(get_kernel(small, "row_in_32_bits"),))
    text = page.render_page(one, "abc")
    assert f'<span class="here"><i>{found.line}</i>' in text
    assert "from x.shape[0] = 524,289 on" in text
    assert "`row.to(tl.int64)` in place of `row`" in upstream.render_upstream_report(found, "small")
