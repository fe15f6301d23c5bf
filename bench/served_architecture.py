"""An engine of one of the zoo's architectures with SGLang's own CUDA kernels, on the virtual GPU.

    UNFIX_LAUNCHES=FILE ./unfix exec --device virtual --cuda-kernels --release 0.5.23 -- \
        python -m bench.served_architecture ARCHITECTURE

The weights are random and tiny. FILE gets the kernels that SGLang's default path launches for the
architecture on the card that the virtual GPU plays, for `bench/server_kernels.py`. Attention is
Triton's, and operators of CUDA binaries have stand-ins.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from harness.runs.zoo.architecture import read_architectures
from harness.runs.zoo.reference_model import TransformersModel


def save_model(name: str, folder: Path) -> None:
    [one] = read_architectures([name])
    model = TransformersModel(one.model_type, one.config, one.quantized, one.adapters)
    model.save(folder, one.sglang_config, one.checkpoint)


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_model(name, Path(folder))
        import sglang

        engine = sglang.Engine(
            model_path=folder,
            device="cuda",
            attention_backend="triton",
            dtype="bfloat16",
            skip_tokenizer_init=True,
            mem_fraction_static=0.3,
            max_total_tokens=512,
            max_running_requests=2,
            max_mamba_cache_size=16,
            disable_cuda_graph=True,
            skip_server_warmup=True,
            random_seed=0,
            log_level="error",
        )
        answers = engine.generate(
            input_ids=[list(range(5, 29)), [7, 8, 9]],
            sampling_params={"temperature": 0.0, "max_new_tokens": 6},
        )
        print("tokens", [answer["output_ids"] for answer in answers])
        engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
