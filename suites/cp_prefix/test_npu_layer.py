"""Preparation of DeepSeek's sparse attention on an NPU, up to the attention operator.

- Queries, keys, and the indexer's inputs do not depend on the path: fused or not, on one stream or
  two, on the first layer of a pipeline stage or a later one, forward after forward.
- Rotary parts have the layout of the model's embedding; if decodes are fused, pairs become halves
  in prefills too, since decodes read the keys that prefills stored.
- Ranks that share a decode gather each other's queries, and each rank selects its own share of
  newly chosen keys, by its own count. A draft worker, an idle batch and a context-parallel prefill
  do neither.
- A layer that reuses another's keys calls no indexer, unless it is a draft's without given keys.
- The fused split of queries and keys takes fewer than 65535 tokens, and no model that opted out.
- Fused keys are stored in their tokens' slots and in no others. Weights are freed on a decode-only
  server, where MLAProlog has its own, and nowhere else.

The Ascend operators are stand-ins (fixtures/npu_operators.py, fixtures/npu_preprocess.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given

from fixtures import npu_layer as adapter
from fixtures.npu_layer import LayerVariant, TokenPositions
from harness import checking
from harness.core import device
from harness.guards import skip_not_applicable

TOGETHER = (TokenPositions((3, 8, 1)), TokenPositions((5, 6)))


@pytest.fixture(autouse=True, scope="module")
def _the_layer_is_prepared_so_here() -> None:
    if device.get_device() != "cpu":
        skip_not_applicable("the Ascend operators are recorders over CPU memory: --device cpu")
    if not adapter.HAS_SLICED_TOKENS:
        skip_not_applicable("an older way to prepare a layer")


def check_all(variant: LayerVariant, forwards: tuple[TokenPositions, ...]) -> None:
    with checking.checked() as check:
        stage = adapter.PipelineStage(variant, check.device)
        for turn, tokens in enumerate(forwards):
            for layer, prepared in zip(stage.layers, stage.run_forward(tokens, turn), strict=True):
                wanted = adapter.compute_expected(variant, tokens, layer.layer_id, turn)
                for name, value in wanted.items():
                    compare_values(name, prepared.outputs[name], value)
                assert prepared.fused == variant.fuses
                small = (
                    variant.fusion == "int8"
                    and variant.fuses
                    and variant.int8_indexer
                    and variant.runs_indexer
                )
                assert (prepared.scale is not None) == small, "scales of INT8 alone"
                given_up = (
                    variant.fusion == "prolog"
                    and variant.fuses
                    and variant.disaggregation == "decode"
                )
                assert (layer.w_kc.untyped_storage().size() == 0) == given_up
            assert not (variant.disables_fused_split and stage.recorder.fused_splits)


def compare_values(name: str, got: Any, wanted: Any) -> None:
    assert (got is None) == (wanted is None), f"{name}: {got}"
    if got is not None:
        got = got.float().cpu()
        wanted = wanted.to(torch.bfloat16).float()
        assert got.shape == wanted.shape, f"{name}: {list(got.shape)}, not {list(wanted.shape)}"
        assert torch.equal(got, wanted), f"{name} is not what it should be"


VARIANTS = (
    LayerVariant(rotates_halves=True, uses_alt_stream=True),
    LayerVariant(rotates_halves=True, first_layer=3),
    LayerVariant(rotates_halves=True, has_token_slices=True, gathers_late=True),
    LayerVariant(rotates_halves=True, has_token_slices=True),
    LayerVariant(rotates_halves=True, gathers_late=True),
    LayerVariant(rotates_halves=True, fusion="plain"),
    LayerVariant(fusion="plain"),
    LayerVariant(disables_fused_split=True, mode="DECODE"),
    LayerVariant(is_context_parallel=True, ranks=2),
    LayerVariant("DECODE", fusion="plain", uses_alt_stream=True),
    LayerVariant("DECODE", fusion="plain", disaggregation="decode"),
    LayerVariant("DECODE", fusion="prolog", disaggregation="decode"),
    LayerVariant("DECODE", fusion="prolog"),
    LayerVariant("DECODE", fusion="int8", disaggregation="decode"),
    LayerVariant("DECODE", fusion="int8", int8_indexer=True),
    LayerVariant("TARGET_VERIFY", fusion="int8", first_layer=3),
    LayerVariant("DECODE", ranks=2),
    LayerVariant("DECODE", ranks=2, is_draft=True),
    LayerVariant("IDLE", ranks=2),
    LayerVariant("DECODE", ranks=2, skips_topk=True, is_given_topk=True),
    LayerVariant("DECODE", skips_topk=True, is_nextn=True),
    LayerVariant("DECODE", skips_topk=True, is_nextn=True, is_given_topk=True),
    LayerVariant("DECODE", skips_topk=True),
)


def try_each_variant(test: Callable[..., None]) -> Callable[..., None]:
    for variant in reversed(VARIANTS):
        test = example(variant=variant, forwards=TOGETHER)(test)
    return test


@try_each_variant
@given(variant=adapter.layer_variants(), forwards=adapter.token_batches())
def test_a_layer_prepares_the_same_in_every_way(
    variant: LayerVariant, forwards: tuple[TokenPositions, ...]
) -> None:
    check_all(variant, forwards)


@pytest.mark.parametrize("count", [65534, 65535])
def test_the_fused_split_takes_fewer_than_65535_tokens(count: int) -> None:
    variant, tokens = (
        LayerVariant(),
        TokenPositions(tuple(place % adapter.POSITION_COUNT for place in range(count))),
    )
    with checking.checked() as check:
        stage = adapter.PipelineStage(variant, check.device)
        stage.layers = stage.layers[:1]
        (prepared,) = stage.run_forward(tokens, 0)
        for name in ("query", "query_rotary", "key", "key_rotary", "low"):
            wanted = adapter.compute_expected(variant, tokens, variant.first_layer, 0)
            compare_values(name, prepared.outputs[name], wanted[name])
        assert bool(stage.recorder.fused_splits) == (count < 65535)
