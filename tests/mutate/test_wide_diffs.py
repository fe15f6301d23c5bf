"""`--diff` in calls: changed code must be run; a wide diff records the guards' lines first."""

from __future__ import annotations

import pytest
from checkouts import SglangCheckout
from toy_release import CODE, Mutate

WIDER = CODE.replace("rows * topk", "2 * rows * topk")
OTHER = "def size(n, m):\n    return n * m\n"


@pytest.fixture
def checkout(mutate: Mutate) -> SglangCheckout:
    """Commit twice: one function that guards run changed, and a module that none reads."""
    checkout = SglangCheckout(mutate.package.parent, root="")
    checkout.commit({"srt/sizes.py": CODE})
    checkout.git("tag", "before")
    checkout.commit({"srt/sizes.py": WIDER, "srt/other.py": OTHER})
    return checkout


def test_a_narrow_diff_has_faults_in_every_changed_function(
    mutate: Mutate, checkout: SglangCheckout
) -> None:
    run = mutate.run("--diff", "before..HEAD")
    fates = {(fated["fault"]["qualname"], fated["fate"]) for fated in run["fates"]}
    assert fates == {("width", "killed"), ("width", "survived"), ("size", "unreached")}
    assert run["elsewhere"] == ""


def test_a_wide_diff_has_faults_where_a_guard_runs_and_counts_the_rest(
    mutate: Mutate, checkout: SglangCheckout
) -> None:
    run = mutate.run("--diff", "before..HEAD", WIDE="1")
    assert {fated["fault"]["qualname"] for fated in run["fates"]} == {"width"}
    assert len(run["fates"]) == run["planned"] == run["fault_count"] > 0
    assert run["elsewhere"] == (
        "of 2 changed modules guards run code of 1, and there 1 of 1 changed functions: "
        "faults were made in these alone"
    )
    assert [code["qualname"] for code in run["codes"]] == ["width"]


def test_a_wide_diff_is_not_listed_without_a_target(
    mutate: Mutate, checkout: SglangCheckout
) -> None:
    done = mutate.call("--diff", "before..HEAD", "--list", WIDE="1")
    assert done.returncode == 2
    assert "before..HEAD changed 2 modules: name a TARGET" in done.stderr
    named = mutate.call("sglang.srt.sizes", "--diff", "before..HEAD", "--list", WIDE="1")
    assert named.returncode == 0, named.stderr
    assert "width" in named.stdout


def test_what_is_run_has_to_be_what_changed(mutate: Mutate, checkout: SglangCheckout) -> None:
    mutate.file.write_text(CODE + "\n# not committed\n")
    run = mutate.run("--diff", "before..HEAD")
    assert {fated["fault"]["qualname"] for fated in run["fates"]} == {"size"}
    assert any(text.startswith("sglang.srt.sizes is not what ") for text in run["problems"])
    (mutate.package / "srt/other.py").write_text("# gone\n")
    done = mutate.call("--diff", "before..HEAD")
    assert done.returncode == 2
    assert "install the checkout" in done.stderr
