"""A layer passes its input on only behind one that does the same, and its launches count."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.rehearse.repeated_layers import LayerStack, RepeatedLayers
from harness.device.record import RECORD
from harness.runs.rehearse.sampled_launches import SampledLauncher
from harness.store.rehearse.values import RehearsedLaunch

LAYERS = 6


class SmallLayer(torch.nn.Module):
    """A layer that launches one kernel and calls one operator."""

    def __init__(self, number: int, launcher: SampledLauncher, window: int = 0) -> None:
        super().__init__()
        self.layer_id, self.prefix, self.window = number, f"model.layers.{number}", window
        self.weight = torch.nn.Parameter(torch.zeros(2, 2))
        self.inner = [launcher]
        self.returns_more = False
        attention = SimpleNamespace(window=window)
        self.chain: list[Any] = [attention]
        for _ in range(20):  # the longer way to an object comes first
            self.chain = [self.chain]
        self.attention = attention

    def forward(
        self,
        hidden_states: torch.Tensor,
        forward_batch: Any,
        residual: torch.Tensor | None,
        capture: Any = None,
        **options: int,
    ) -> tuple[torch.Tensor | None, ...]:
        forward_batch.ran.append(self.layer_id)
        launch_kernel(self.inner[0], f"window {self.window}")
        RECORD.count_stand_in("norm")
        residual = hidden_states if residual is None else residual
        more = (hidden_states if self.returns_more else None,)
        return hidden_states + 1, residual, *more


def launch_kernel(launcher: SampledLauncher, name: str) -> None:
    """Record a launch as a launcher does."""
    kernel = SimpleNamespace(fn=SimpleNamespace(__module__="m", __qualname__=name))
    launcher._record(kernel, (1,), {})


class SmallModel(torch.nn.Module):
    def __init__(self, launcher: SampledLauncher, windows: list[int]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            SmallLayer(number, launcher, window) for number, window in enumerate(windows)
        )
        self.captured: list[int] = []  # layers that are given a function to call
        self.capture: Any = print
        self.scaled: list[int] = []  # layers that are given another number

    def run(self) -> list[int]:
        """Run a batch, and return the layers that ran."""
        batch = SimpleNamespace(ran=[])
        hidden_states, residual = torch.zeros(4, 2), None
        for number, layer in enumerate(self.layers):
            capture = self.capture if number in self.captured else None
            scale = 2 if number in self.scaled else 1
            results = layer(
                hidden_states,
                batch,
                residual,
                capture=capture,
                scale=scale,
                layer_id=number,
                next_layer_id=None if number + 1 == len(self.layers) else number + 1,
            )
            hidden_states, residual = results[:2]
        return list(batch.ran)


def make_model(windows: list[int]) -> tuple[SmallModel, SampledLauncher, RepeatedLayers]:
    launcher: Any = object.__new__(SampledLauncher)
    launcher.phase, launcher.launches, launcher.is_recording = "chunk", {}, True
    launcher._ignores_recording, launcher.fits = False, lambda: True
    launcher._followed = []
    model, layers = SmallModel(launcher, windows), RepeatedLayers(launcher)
    layers.pass_in(model)
    return model, launcher, layers


def count_launches(launcher: SampledLauncher) -> dict[str, int]:
    launches: dict[Any, RehearsedLaunch] = launcher.launches
    return {one.kernel: one.count for one in launches.values()}


def test_the_first_the_second_and_the_last_layer_run_and_all_count() -> None:
    model, launcher, layers = make_model([0] * LAYERS)
    before = RECORD.stand_ins["norm"]
    assert model.run() == [0, 1, 5]  # 0 has no residual
    assert count_launches(launcher) == {"m:window 0": LAYERS}
    assert RECORD.stand_ins["norm"] - before == LAYERS
    assert layers.take_counts() == (6, 3)
    assert model.run() == [0, 1, 5]  # each batch runs them anew
    assert layers.take_counts() == (6, 3)


def test_layers_of_two_kinds_run_once_a_kind_and_neighbour() -> None:
    model, launcher, _ = make_model([0, 0, 8] * 4)
    assert model.run() == [0, 1, 2, 3, 11]  # 3 is the first one behind a window
    assert count_launches(launcher) == {"m:window 0": 8, "m:window 8": 4}


def make_function(number: int) -> Callable[[], int]:
    return lambda: number


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "window", 1),
        lambda layer: setattr(layer, "weight", torch.nn.Parameter(torch.zeros(2, 3))),
        lambda layer: setattr(layer, "inner", [layer.inner[0], object(), layer.inner[2]]),
        lambda layer: setattr(layer, "inner", [*layer.inner[:2], make_function(1)]),
        lambda layer: setattr(layer.attention, "window", 1),
    ],
)
def test_a_layer_that_differs_runs(change: Callable[[Any], None]) -> None:
    model, launcher, _ = make_model([0])  # too few to pass anything on
    model.layers = torch.nn.ModuleList(SmallLayer(number, launcher) for number in range(8))
    shared = object()
    for layer in model.layers:
        layer.inner += [shared, make_function(0)]
    change(model.layers[5])
    LayerStack(list(model.layers), launcher)
    assert model.run() == [0, 1, 5, 6, 7]  # 6 is the first one behind the other kind


@pytest.mark.parametrize("capture", [print, [].append, []])
def test_a_layer_that_is_given_a_function_or_a_list_runs(capture: Any) -> None:
    model, _, _ = make_model([0] * 8)
    model.captured, model.capture = [3, 5], capture
    assert model.run() == [0, 1, 3, 5, 7]


def test_a_layer_that_is_given_another_number_runs() -> None:
    model, _, _ = make_model([0] * 8)
    model.scaled = [3, 5]
    assert model.run() == [0, 1, 3, 7]


def test_a_layer_that_returns_more_than_it_is_given_passes_nothing_on() -> None:
    model, _, _ = make_model([0] * LAYERS)
    for layer in model.layers:
        layer.returns_more = True
    assert model.run() == list(range(LAYERS))
