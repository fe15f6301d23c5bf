"""Starts SGLang's server afresh, as a user does, with the adaptations that were asked for.

    UNFIX_ENGINE=tree-kernels python -m harness.serving.cold --model-path …

SGLang spawns its workers, and each imports this module again, which is how it reaches them.
"""

from __future__ import annotations

import sys

from harness.serving import adaptations

adaptations.apply(adaptations.asked_for())


def main(words: list[str]) -> None:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(words))


if __name__ == "__main__":
    main(sys.argv[1:])
