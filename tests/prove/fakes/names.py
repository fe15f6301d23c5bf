"""A guard that reads a constant at import by a name that it makes."""

import pytest
from sglang import forms

LIMIT = getattr(forms, "".join(["LI", "MIT"]))


@pytest.mark.guards("toy-constant")
def test_made_name():
    assert forms.below_limit(LIMIT - 1)
