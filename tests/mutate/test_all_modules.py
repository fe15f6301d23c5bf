"""Every operator over the code of a real release: none fails on any module."""

from __future__ import annotations

from harness.releases import managed_releases
from harness.runs.mutate import operators
from harness.runs.mutate.function_code import FunctionCode, ModuleCode

EVERY = 24  # all 2100 modules take a core a minute
ALWAYS = ("sglang.srt.managers.scheduler", "sglang.srt.managers.schedule_batch")


def find_failure(function: FunctionCode) -> str:
    for operator in operators.load_operators().values():
        try:
            changes = list(operator.iterate_changes(function))
        except Exception as error:
            place = f"{function.module.source.module}:{function.qualname}"
            return f"{operator.name} in {place}: {error!r}"
        for change in changes:
            assert 0 <= change.start <= change.end <= len(function.module.text)
    return ""


def test_no_operator_stumbles_over_any_code() -> None:
    tree = managed_releases.get_newest_release().open_sources()
    modules = sorted(name for name in tree.modules() if name.startswith("sglang.srt."))
    assert set(ALWAYS) <= set(modules)
    functions = []
    for name in dict.fromkeys((*ALWAYS, *modules[::EVERY])):
        source = tree.read(name)
        assert source is not None
        functions += ModuleCode(source).functions
    assert len(functions) > 500
    assert [problem for function in functions if (problem := find_failure(function))] == []
