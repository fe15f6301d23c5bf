"""A layer passes its input on only behind one that does the same, and its launches count."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.runs.rehearse.repeated_layers import (
    LayerStack,
    RepeatedLayers,
    describe_kinds,
    find_shared_objects,
)
from harness.runs.rehearse.sampled_launches import SampledLauncher
from harness.runs.rehearse.written_memory import UnwrittenStorage, WrittenMemory
from harness.sanitizer.check.tracked_memory import TrackedStorage
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
        self.makes_note = False
        self.make_object: Callable[[int], Any] | None = None  # of how many layers ran
        attention = SimpleNamespace(window=window)
        self.chain: list[Any] = [attention]
        for _ in range(10):  # the longer way to an object comes first
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
        self.inner[0].cuda.counts["norm", ""] += 1
        residual = hidden_states if residual is None else residual
        more = (hidden_states if self.returns_more else None,)
        if self.make_object is not None:
            return self.make_object(len(forward_batch.ran)), residual, *more
        result = hidden_states + 1
        if self.makes_note:
            result.is_noted = True  # type: ignore[attr-defined]
        return result, residual, *more


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
        self.given: dict[int, Any] = {}  # what layers are given beside
        self.outputs: list[torch.Tensor] = []  # of each layer in the last batch

    def run(self) -> list[int]:
        """Run a batch, and return the layers that ran."""
        batch = SimpleNamespace(ran=[])
        hidden_states, residual = torch.zeros(4, 2), None
        self.outputs.clear()
        for number, layer in enumerate(self.layers):
            capture = self.capture if number in self.captured else None
            scale = 2 if number in self.scaled else 1
            results = layer(
                hidden_states,
                batch,
                residual,
                capture=capture,
                scale=scale,
                given=self.given.get(number),
                layer_id=number,
                next_layer_id=None if number + 1 == len(self.layers) else number + 1,
            )
            hidden_states, residual = results[:2]
            self.outputs.append(hidden_states)
        return list(batch.ran)


def make_model(windows: list[int]) -> tuple[SmallModel, SampledLauncher, RepeatedLayers]:
    launcher: Any = object.__new__(SampledLauncher)
    launcher.phase, launcher.launches, launcher.is_recording = "chunk", {}, True
    launcher._probed_kernels, launcher.fits = None, lambda: True
    launcher._followed, launcher.written = None, WrittenMemory()
    launcher.cuda = SimpleNamespace(counts=Counter())
    model, layers = SmallModel(launcher, windows), RepeatedLayers(launcher)
    layers.pass_in(model)
    return model, launcher, layers


def count_launches(launcher: SampledLauncher) -> dict[str, int]:
    launches: dict[Any, RehearsedLaunch] = launcher.launches
    return {launch.kernel: launch.count for launch in launches.values()}


def test_the_first_the_second_and_the_last_layer_run_and_all_count() -> None:
    model, launcher, layers = make_model([0] * LAYERS)
    assert model.run() == [0, 1, 5]  # 0 has no residual
    assert count_launches(launcher) == {"m:window 0": LAYERS}
    assert launcher.cuda.counts["norm", ""] == LAYERS
    assert layers.take_counts() == (6, 3)
    assert model.run() == [0, 1, 5]  # each batch runs them anew
    assert layers.take_counts() == (6, 3)


def test_what_a_passed_layer_would_have_written_counts_as_written() -> None:
    for windows, is_forgotten in (([0] * LAYERS, True), ([1, 2, 3, 4], False)):
        model, launcher, _ = make_model(windows)
        storage = TrackedStorage(torch.empty(4).untyped_storage(), "")
        launcher.written._unwritten[storage.start] = UnwrittenStorage(storage)
        model.run()
        assert (not launcher.written._unwritten) is is_forgotten


def test_layers_of_two_kinds_run_once_a_kind_and_neighbour() -> None:
    model, launcher, _ = make_model([0, 0, 8] * 4)
    # 3 is the first one behind a window; 9, 10 and 11 are the last ones of their kinds.
    assert model.run() == [0, 1, 2, 3, 9, 10, 11]
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


class BareLayer(torch.nn.Module):
    def __init__(self, number: int, part: Any = None) -> None:
        super().__init__()
        self.layer_id, self.part = number, part


def are_alike(one: Any, other: Any) -> bool:
    """Return whether layers that hold one or the other are of one kind."""
    layers: list[torch.nn.Module] = [BareLayer(0), BareLayer(1), BareLayer(2, one)]
    layers.append(BareLayer(3, other))
    kinds = describe_kinds(layers, find_shared_objects(layers))
    return bool(kinds[2] == kinds[3])


def make_scaling(scale: int) -> Callable[[int], int]:
    def compute_scaled(value: int, by: int = scale) -> int:
        return value * by

    return compute_scaled


def make_keyed_scaling(scale: int) -> Callable[[int], int]:
    def compute_scaled(value: int, *, by: int = scale) -> int:
        return value * by

    return compute_scaled


def nest_value(value: Any, times: int) -> Any:
    return value if times == 0 else [nest_value(value, times - 1)]


class SlottedValue:
    __slots__ = ("width",)


class SlottedWithAttributes(SlottedValue):
    pass


def make_slotted(width: int) -> SlottedWithAttributes:
    slotted = SlottedWithAttributes()
    slotted.width = width
    return slotted


def make_marked(mark: str) -> torch.Tensor:
    tensor = torch.zeros(2)
    tensor.mark = mark  # type: ignore[attr-defined]
    return tensor


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


DIFFERENT = [
    ("fp8_e4m3", "fp4_e2m1"),
    ("w4a8", "w8a16"),
    ("layers.2.quant4", "layers.3.quant8"),
    (lambda value: value * 2, lambda value: value * 3),
    (make_scaling(1), make_scaling(9)),
    (make_keyed_scaling(1), make_keyed_scaling(9)),
    (type("Attention", (), {}), type("Attention", (), {})),
    (type("Attention", (), {})(), type("Attention", (), {})()),
    (nest_value(1, 40), nest_value(2, 40)),
    (make_slotted(1), make_slotted(2)),
    (make_slotted(1), SlottedWithAttributes()),
    (True, 1),
    ([True, True], [1, 1]),
    ([7, 7], [7, 8]),
    ("ab", ["a", "b"]),
    (1, 1.0),
    (0.0, -0.0),
    (Mode.FAST, Mode.EXACT),
    (torch.float16, torch.bfloat16),
    (torch.zeros(2), torch.zeros(3)),
    (make_marked("row"), make_marked("column")),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_differs_is_not_alike(one: Any, other: Any) -> None:
    assert not are_alike(one, other)


def test_layers_that_differ_in_their_number_alone_are_alike() -> None:
    assert are_alike("model.layers.2.attention", "model.layers.3.attention")
    assert are_alike(["layers.2.a", "norm"], ["layers.3.a", "norm"])
    assert are_alike([None, None], [None, None])
    assert are_alike(SimpleNamespace(layer_id=2), SimpleNamespace(layer_id=3))
    assert not are_alike(SimpleNamespace(layer_id=2), SimpleNamespace(layer_id=None))
    assert are_alike(make_scaling(2), make_scaling(2))
    assert are_alike(make_slotted(2), make_slotted(2))
    assert are_alike(make_marked("row"), make_marked("row"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((torch.float16, torch.bfloat16), (Mode.FAST, Mode.EXACT), (True, 1)),
        ({"width": torch.zeros(2)}, {"width": torch.zeros(3)}),
        (SimpleNamespace(width=2), SimpleNamespace(width=2)),
        (make_marked("row"), make_marked("column")),
    ],
)
def test_a_layer_that_is_given_something_else_runs(one: Any, other: Any) -> None:
    model, _, _ = make_model([0] * 8)
    model.given = dict.fromkeys(range(8), one) | {4: other}
    assert model.run() == [0, 1, 4, 7]


@pytest.mark.parametrize(
    ("make", "ran"),
    [
        (lambda ran: SimpleNamespace(partial=torch.zeros(4, 2)), [0, 1, 7]),
        (lambda ran: SimpleNamespace(partial=torch.zeros(4, ran)), list(range(8))),
    ],
)
def test_an_object_of_the_hidden_states_is_compared_by_what_it_holds(
    make: Callable[[int], Any], ran: list[int]
) -> None:
    model, _, _ = make_model([0] * 8)
    for layer in model.layers:
        layer.make_object = make
    assert model.run() == ran
