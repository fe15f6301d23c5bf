"""An argument that a server does not have is refused from the sources, before anything runs."""

from __future__ import annotations

import pytest
from memory import Memory

from harness.core.errors import UnfixError
from harness.releases.server_arguments import refuse_unknown_arguments

FLAGS = 'parser.add_argument("--tensor-parallel-size", "--tp-size")\n'
FIELDS = "class Parallel:\n    dp_size: int = 1\n    page_size = Arg(1)\n"


@pytest.mark.parametrize("module", ["sglang.srt.server_args", "sglang.srt.arg_groups.fields.a"])
def test_flags_and_fields_are_arguments(module: str) -> None:
    sources = Memory({module: FLAGS + FIELDS})
    words = ["--tp", "2", "--dp-size=2", "--page-size", "--tensor-parallel-size", "-x"]
    refuse_unknown_arguments(words, sources)
    with pytest.raises(UnfixError, match="has no argument --tpp"):
        refuse_unknown_arguments(["--tpp", "2"], sources)


def test_sources_that_have_their_arguments_elsewhere_refuse_none() -> None:
    refuse_unknown_arguments(["--tpp"], Memory({"sglang.srt.other": FLAGS}))
