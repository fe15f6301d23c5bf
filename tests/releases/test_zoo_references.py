"""The models of transformers that the zoo compares with."""

from __future__ import annotations

import pytest

from fixtures.zoo.reference_model import TransformersModel, UnknownArchitecture
from harness.runs.zoo.architecture import read_architectures


def test_a_model_that_transformers_lacks_is_named() -> None:
    with pytest.raises(UnknownArchitecture, match="no model of type llama_of_tomorrow"):
        TransformersModel("llama_of_tomorrow", {})


def test_the_newest_transformers_has_a_model_of_each_row() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    types = {one.model_type for one in read_architectures([])}
    assert types <= set(CONFIG_MAPPING_NAMES), "a row that is misspelt is absent everywhere"
