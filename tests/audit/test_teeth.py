"""Each toggle whose bug is an offset in 32 bits: found with the fix out, not with it in."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.audit.run import Audit, audit
from harness.patching import plan
from harness.patching.plan import Choice, Direction
from harness.registry import catalogue
from harness.releases import managed
from harness.releases.managed import BASE
from tests.audit.conftest import LIMITS

TOGGLES = ("25418-combine-int64", "25418-dequant-int64", "25418-swa-token-ids-int64")


def audited(modules: dict[str, str], folder: Path) -> Audit:
    for module, text in modules.items():
        file = folder / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return audit(folder, folder.name, LIMITS, (), 1, lambda said: None)


@pytest.mark.parametrize("toggle", TOGGLES)
def test_a_line_wraps_with_its_fix_out_alone(toggle: str, tmp_path: Path) -> None:
    release = managed.newest()
    if not BASE.is_current() or not release.has_sources:
        pytest.skip("the newest release and its base are not here")
    tree = release.sources()
    [meant] = catalogue.load([]).select_all([toggle])
    made = plan.make([Choice(meant, Direction.REVERT)], tree, release.name)
    out = audited({one.module: one.text for one in made.modules}, tmp_path / "out")
    fixed = {}
    for one in made.modules:
        source = tree.read(one.module)
        assert source is not None
        fixed[one.module] = source.text
    into = audited(fixed, tmp_path / "in")
    known = {finding.key for finding in into.findings}
    new = [finding for finding in out.findings if finding.key not in known]
    assert {finding.kernel for finding in new} == {str(meant.variants[-1].target).partition(":")[2]}
