"""The models of transformers that the zoo compares with."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch

from harness.releases import managed_releases
from harness.runs.zoo.architecture import read_architectures
from harness.runs.zoo.prompts import Prompt
from harness.runs.zoo.reference_model import (
    SMALLEST_TOLERANCE,
    TransformersModel,
    UnknownArchitecture,
    find_config_class,
    find_model_kind,
    measure_error,
)


def test_a_model_that_transformers_lacks_is_named() -> None:
    with pytest.raises(UnknownArchitecture, match="no model of type llama_of_tomorrow"):
        TransformersModel("llama_of_tomorrow", {})


def test_a_known_type_without_a_model_with_logits_is_no_unknown_type() -> None:
    with pytest.raises(LookupError, match="has CLIPTextConfig"):
        TransformersModel("clip_text_model", {})


def test_the_newest_transformers_has_a_model_of_each_row() -> None:
    newest = managed_releases.get_newest_release().name
    if importlib.metadata.version("sglang") != newest:
        pytest.skip(f"n/a: SGLang {newest} has the newest transformers")
    for one in read_architectures([]):  # a row that is misspelt is absent everywhere
        find_model_kind(find_config_class(one.model_type)(**one.config))


def test_codes_of_inputs_widen_the_tolerance_against_transformers_alone() -> None:
    (one,) = read_architectures(["qwen3_fp8_blocks"])
    model = TransformersModel(one.model_type, one.config, one.quantized)
    prompts = [Prompt(list(range(5, 16)), [3, 4])]
    exact, tolerances = model.measure_tolerances(prompts, torch.float16)
    assert SMALLEST_TOLERANCE < tolerances.order < tolerances.reference / 2
    assert measure_error(exact, model.compute_logits(prompts, torch.float64)) == 0
