"""Each toggle whose bug is a 32-bit offset: the audit finds it reverted, and not applied."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.errors import ToggleNotApplicableError
from harness.fixes import patch_plan
from harness.fixes.patch_plan import Direction, ToggleChoice
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Symptom, Toggle
from harness.releases import managed_releases
from harness.releases.managed_releases import CPU_BASE, Release
from harness.releases.source_trees import SourceTree
from harness.runs.audit.release_audit import AuditRequest, audit_release


def of_32_bits() -> Iterator[Toggle]:
    """Yield the toggles whose fix is a cast to 64 bits on the way into an address."""
    for one in toggle_catalogue.load_catalogue():
        fixed = [edit.fixed for variant in one.variants for edit in variant.edits]
        if one.symptom is Symptom.OVERFLOW and any("int64" in text for text in fixed):
            yield one


def plan_revert(toggle: Toggle, release: Release) -> patch_plan.PatchPlan | None:
    choice = ToggleChoice(toggle, Direction.REVERT)
    try:
        return patch_plan.make_plan([choice], release.open_sources(), release.name)
    except ToggleNotApplicableError:
        return None


def iterate_imports(text: str, tree: SourceTree) -> Iterator[str]:
    """Yield the release's modules that a module imports helpers and constants from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
            names = (f"{node.module}.{one.name}" for one in node.names)
            yield from (one for one in (node.module, *names) if one and tree.read(one) is not None)


def write_modules(modules: dict[str, str], tree: SourceTree, folder: Path) -> Path:
    """Write modules, and those of the release that they import from, into a folder."""
    texts = {}
    for text in modules.values():
        for one in iterate_imports(text, tree):
            texts[one] = read_module(tree, one)
    for module, text in {**texts, **modules}.items():
        file = folder / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def read_module(tree: SourceTree, module: str) -> str:
    source = tree.read(module)
    assert source is not None
    return source.text


def group_plans(plans: dict[str, patch_plan.PatchPlan]) -> list[list[str]]:
    """Group toggles that are reverted together: no two of one kernel."""
    groups: list[tuple[list[str], set[str]]] = []
    for toggle, one in plans.items():
        own = {site.target for module in one.modules for site in module.sites}
        group = next((each for each in groups if not own & each[1]), None)
        if group is None:
            groups.append(group := ([], set()))
        group[0].append(toggle)
        group[1].update(own)
    return [toggles for toggles, _ in groups]


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return each toggle's lines that overflow when it is reverted, and not when it is applied."""
    releases = [one for one in reversed(managed_releases.list_releases()) if one.has_sources]
    if not CPU_BASE.is_current() or not releases:
        pytest.skip("no release and its base are here")
    toggles = {one.id: one for one in of_32_bits()}
    chosen: dict[str, dict[str, patch_plan.PatchPlan]] = defaultdict(dict)
    for one in toggles.values():
        plans = ((release, plan_revert(one, release)) for release in releases)
        fixed_release, made = next((both for both in plans if both[1] is not None), (None, None))
        if fixed_release is not None and made is not None:
            chosen[fixed_release.name][one.id] = made
    shown: dict[str, set[str]] = {}
    for name, plans_of in chosen.items():
        tree = managed_releases.get_release(name).open_sources()
        folder = tmp_path_factory.mktemp(name)
        changed = {module.module for plan in plans_of.values() for module in plan.modules}
        fixed = {module: read_module(tree, module) for module in changed}
        applied = write_modules(fixed, tree, folder / "applied")
        for number, group in enumerate(group_plans(plans_of)):
            choices = [ToggleChoice(toggles[one], Direction.REVERT) for one in group]
            made = patch_plan.make_plan(choices, tree, name)
            texts = {**fixed, **{one.module: one.text for one in made.modules}}
            reverted = write_modules(texts, tree, folder / f"reverted-{number}")
            sites = [site for one in made.modules for site in one.sites]
            targets = tuple(sorted({site.target for site in sites}))
            request = AuditRequest(reverted, name, targets, jobs=2, earlier_location=applied)
            lines = defaultdict(set)
            for finding in audit_release(request, print).findings:
                lines[f"{finding.module}:{finding.kernel}"].add(finding.text)
            for site in sites:
                shown.setdefault(site.toggle, set()).update(lines[site.target])
    return shown


@pytest.mark.parametrize("toggle", [one.id for one in of_32_bits()])
def test_a_line_of_its_kernel_wraps_with_its_fix_out_alone(
    toggle: str, new: dict[str, set[str]]
) -> None:
    if toggle not in new:
        pytest.skip("no release that is here has its code")
    assert new[toggle], "it is not reported"
