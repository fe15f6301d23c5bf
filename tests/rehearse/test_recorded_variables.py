"""The variables of a printed command, which is also recorded: no folder and no secret."""

from __future__ import annotations

import pytest

from harness.cli.rehearse.command import list_variables

PRINTED = {
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
    "SGLANG_DEBUG_REVERT_PR": "28788-grouped-stage1",
    "SGLANG_ENABLE_JIT_DEEPGEMM": "false",
    "SGLANG_GRAMMAR_TIMEOUT": "0.5",
    "SGLANG_MAX_NEW_TOKENS": "9",
}
LEFT_OUT = {
    "CUDA_VISIBLE_DEVICES": "3",
    "HF_TOKEN": "x",
    "SGLANG_API_KEY": "12345",
    "SGLANG_API_TOKEN": "12345",
    "SGLANG_AUTH": "s3cret",
    "SGLANG_CACHE_ROOT": "/home/me/cache",
    "SGLANG_LOG_FILE": "runs/x",
    "UNFIX_TOGGLES": "/home/me/toggles",
}


def test_numbers_switches_and_toggles_are_listed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        before = list_variables()
        for name, value in (PRINTED | LEFT_OUT).items():
            patch.setenv(name, value)
        assert list_variables() == before | PRINTED
