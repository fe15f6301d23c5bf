"""The page of test suites has the numbers of the record of SGLang's own tests."""

from __future__ import annotations

import json

from harness.core import paths
from harness.store.record_files import read_record_text


def test_the_page_says_how_many_files_ran() -> None:
    record = paths.project_folder() / "bench" / "recorded" / "sglang-own-tests.json.xz"
    suite = json.loads(read_record_text(record))["SGLang"]
    ran = skipped = 0
    for file in suite["files"].values():
        outcomes = {test.get("outcome") for test in file["tests"].values()}
        ran += bool(outcomes - {"skipped"})
        skipped += not outcomes - {"skipped"} and "skips" in file
    total = len(suite["files"])
    page = (paths.project_folder() / "docs" / "your-suite.md").read_text()
    own_tests = page.partition("### SGLang's own kernel tests")[2].replace("\n", " ")
    assert f"{total} files of `test/registered` of a checkout" in own_tests
    assert (
        f"Tests of {ran} files ran; {skipped} files were skipped, test by test or as a whole, "
        f"and {total - ran - skipped} could not be collected."
    ) in own_tests
    assert f"| {suite['outcomes']['passed']} | passed under check: " in own_tests
