"""What every test of this repository shares: tests that need a GPU are n/a without one, by name."""

from __future__ import annotations

import importlib.util

import pytest

from harness.core import preloading

preloading.raise_gc_thresholds()

pytest_plugins = ("harness.guards.plugin",)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let SGLang's imports warn in a folder of the user's own; `tests/conftest.py` is strict."""
    config.addinivalue_line("filterwarnings", "default")


def has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("needs_cuda")]
    if wanting and not has_cuda():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="n/a: no CUDA device"))
        config.stash[NOT_HERE] = [item.nodeid for item in wanting]


NOT_HERE = pytest.StashKey[list[str]]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    names = config.stash.get(NOT_HERE, [])
    if names:
        terminalreporter.write_line(f"n/a: {len(names)} tests need a CUDA device")
        for name in names:
            terminalreporter.write_line(f"  n/a {name}")
