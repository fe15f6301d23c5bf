"""Each test launches the kernels of one loader of SGLang's CUDA modules, once, under check.

`@pytest.mark.loader(NAME, card, races)` names the loader below `sglang.kernels`, the card that the
virtual GPU plays, and whether races are looked for. These are the loaders that no other suite
launches. A module takes some 10 s to build, so the smoke profile leaves them out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fixtures import cuda_kernels
from fixtures.release_modules import has_module
from harness import checking
from harness.guards.not_applicable import skip_not_applicable
from harness.sanitizer.device.cards import CARD_VARIABLE, DEFAULT_CARD


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "loader(name, card, races): the loader that is launched")


@pytest.fixture(autouse=True)
def launch_under_check(request: pytest.FixtureRequest) -> Iterator[None]:
    name, card, races = read_loader(request.node)
    if request.config.getoption("profile") == "smoke":
        skip_not_applicable("a loader's module is not built in the smoke profile")
    if card != os.environ.get(CARD_VARIABLE, DEFAULT_CARD):
        skip_not_applicable(f"for a {card}: {CARD_VARIABLE}={card}")
    cuda_kernels.require_toolkit()
    module, _, _ = f"sglang.kernels.{name}".rpartition(".")
    if not has_module(module):
        skip_not_applicable(f"this release has no {module}")
    with checking.checked_cuda() as check:
        if races:
            yield
        else:
            with check.ignore_races():
                yield


def read_loader(item: pytest.Item) -> tuple[str, str, bool]:
    mark = item.get_closest_marker("loader")
    assert mark is not None, f"{item.nodeid} names no loader"
    return mark.args[0], (*mark.args, DEFAULT_CARD)[1], mark.kwargs.get("races", True)
