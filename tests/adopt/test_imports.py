"""A fix that needs an import that the module lacks: the function imports it itself."""

from __future__ import annotations

import pytest
from followed import load_trees

from harness.core.errors import UnfixError
from harness.fixes.adopt import fix_parts, local_imports
from harness.fixes.adopt.anchors import FixAnchor
from harness.fixes.adopt.code_tokens import to_texts, tokenize_code
from harness.fixes.matching.toggle_status import ToggleState
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Symptom

MODULE = "sglang.srt.speculative.eagle_utils"
STORY = fix_parts.FixDescription("trial", "t", Symptom.CRASH, "trial")
KERNELS = "sglang.kernels.ops.attention.decode_attention"


def adopt_fix(
    module: str, line: str, becomes: str, brings: str, done: list[int] | None = None
) -> fix_parts.AdoptedToggle:
    """Adopt a fix of the newest release, which no release has yet; `done` gets the progress."""
    newest = load_trees()[-1]
    source = newest.read(module)
    assert source is not None
    fixed = source.text.replace("import torch\n", f"import torch\n{brings}\n", 1)
    fixed = fixed.replace(line, becomes, 1)
    anchor = FixAnchor(newest, ToggleState.BUGGY, {module: (fixed, source.text)}, ())
    (part,), _ = fix_parts.split_fix(anchor)
    report = ([] if done is None else done).append
    return fix_parts.adopt_part(
        part, anchor, STORY, load_trees(), toggle_catalogue.load_catalogue(), report
    )


def test_each_release_that_lacks_it_imports_it_inside() -> None:
    done: list[int] = []
    found = adopt_fix(
        MODULE,
        "num_draft_token - 1, dim=-1",
        "ceil_align(num_draft_token - 1, 1), dim=-1",
        "from sglang.srt.utils.common import ceil_align",
        done,
    )
    assert done == list(range(2, len(load_trees()) + 1)), "each release is counted as it is done"
    assert {cell.state for cell in found.timeline.resolved_edits} == {ToggleState.BUGGY}
    assert len(found.timeline.resolved_edits) == len(load_trees())
    for cell in found.timeline.resolved_edits:
        body = cell.texts[MODULE][0].partition("def organize_draft_results")[2]
        assert body.count("    from sglang.srt.utils.common import ceil_align\n") == 1


def test_what_a_release_has_not_is_imported_by_nobody() -> None:
    with pytest.raises(UnfixError, match="it has no no_such_name"):
        adopt_fix(
            MODULE,
            "num_draft_token - 1, dim=-1",
            "no_such_name(num_draft_token - 1), dim=-1",
            "from sglang.srt.utils.common import no_such_name",
        )


def test_a_kernel_imports_nothing() -> None:
    with pytest.raises(UnfixError, match="a kernel cannot import it"):
        adopt_fix(
            KERNELS,
            "cur_head = tl.program_id(1)",
            "cur_head = ceil_align(tl.program_id(1), 1)",
            "from sglang.srt.utils.common import ceil_align",
        )


def test_an_import_from_elsewhere_is_the_fix_itself() -> None:
    buggy = tokenize_code("def f():\n    from a import g\n    return g()\n", "")
    imports = "    from b import g\n    from c import h\n"
    fixed = tokenize_code(f"def f():\n{imports}    return g(h)\n", "")
    left = to_texts(local_imports.drop_own_imports(fixed, buggy))
    assert ("b" in left, "c" in left) == (True, False)
