"""Does the virtual GPU lead SGLang onto the path of a real one? Compares what each model called.

    python -m bench.virtual_paths cuda FILE [ARCHITECTURE ...]      on a machine with a GPU
    python -m bench.virtual_paths virtual FILE [ARCHITECTURE ...]   in a managed release's Python
    python -m bench.virtual_paths compare CUDA_FILE VIRTUAL_FILE OUT

Each architecture runs in a process of its own: it loads the zoo's tiny model without graphs,
extends the zoo's three prompts as one batch and in chunks, and decodes three tokens. Counted are
the launches of each Triton kernel, the calls of each operator of sgl_kernel, FlashInfer and
`load_jit`, each `is_cuda()` and its kin with the answer and the line that asks, and the method that
each operator with several chose. The backends are those that a server takes by default, and those
of the run. The logits are compared with transformers' on the card, too.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ARCHITECTURES = ("llama", "mixtral", "deepseek_v3", "gemma2", "glm4_moe", "olmo2")
DTYPE = "bfloat16"  # the real norms refuse float32
SEED, CHUNK, CONTINUATION, PROMPTS = 3, 4, 3, (11, 37, 5)
KINDS = ("kernels", "operators", "branches", "choices", "backends")


class CallRecorder:
    """Counts launches and operator calls on a real card, by the names that the device uses."""

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.operators: Counter[str] = Counter()
        self._is_inside = False  # of an operator that is counted

    def install(self) -> None:
        self._count_triton_launches()
        self._wrap_package("sgl_kernel")
        from harness.sanitizer.plugins.for_sglang.operators import load_stand_ins

        for name in load_stand_ins():
            if name.startswith("flashinfer."):
                self._wrap_function(*name.rpartition(".")[::2], name)
        self._wrap_load_jit()

    def _count_triton_launches(self) -> None:
        from triton.runtime.jit import JITFunction

        run = JITFunction.run

        def count(kernel: Any, *args: Any, **options: Any) -> Any:
            if not options.get("warmup"):
                self.kernels[f"{kernel.fn.__module__}:{kernel.fn.__qualname__}"] += 1
            return run(kernel, *args, **options)

        JITFunction.run = count

    def _wrap_package(self, package: str) -> None:
        module = importlib.import_module(package)
        for name, value in list(vars(module).items()):
            if callable(value) and not isinstance(value, type) and not name.startswith("_"):
                self._wrap_function(package, name, f"{package}.{name}")

    def _wrap_function(self, module_name: str, name: str, full: str) -> None:
        try:
            module = importlib.import_module(module_name)
            function = getattr(module, name)
        except (ImportError, AttributeError) as error:
            print(f"{full} is not there: {error}", file=sys.stderr)
            return

        @functools.wraps(function)
        def count(*args: Any, **options: Any) -> Any:
            if self._is_inside:  # sgl_kernel's norms call FlashInfer's
                return function(*args, **options)
            self.operators[full] += 1
            self._is_inside = True
            try:
                return function(*args, **options)
            finally:
                self._is_inside = False

        setattr(module, name, count)

    def _wrap_load_jit(self) -> None:
        for name in ("sglang.kernels.jit.utils.compile.loader", "sglang.jit_kernel.utils"):
            try:
                loader = importlib.import_module(name)
            except ImportError:
                continue
            load = loader.load_jit

            @functools.wraps(load)
            def load_counted(*args: Any, load: Any = load, **options: Any) -> Any:
                return CountedModule(load(*args, **options), str(args[0]), self.operators)

            loader.load_jit = load_counted
            package = sys.modules.get(name.rpartition(".compile.")[0])
            if package is not None:
                package.load_jit = load_counted  # type: ignore[attr-defined]


class CountedModule:
    """A module of `load_jit` whose exports count their calls."""

    def __init__(self, module: Any, marker: str, operators: Counter[str]) -> None:
        self._module, self._operators = module, operators
        self._marker = re.sub(r"(_[0-9]+)+$", "", marker)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if not callable(function):
            return function

        def count(*args: Any, **options: Any) -> Any:
            self._operators[f"jit:{self._marker}.{name}"] += 1
            return function(*args, **options)

        return count


def run_architecture(device: str, name: str) -> dict[str, Any]:
    """Run one architecture in this process and return what it called."""
    recorder = CallRecorder()
    if device == "virtual":
        from harness.sanitizer.device import installation

        installation.install_device("H100")
    else:
        from harness.core.after_import import call_after_import
        from harness.sanitizer.plugins.for_sglang import code_paths

        call_after_import(code_paths.HOOKS)  # as the virtual GPU does
        recorder.install()
    import torch

    from fixtures.zoo.served_model import ServedModel
    from harness.runs.zoo.architecture import read_architectures
    from harness.runs.zoo.prompts import Prompt
    from harness.runs.zoo.reference_model import TransformersModel, measure_error
    from harness.sanitizer.device.record import RECORD

    architecture = read_architectures([name])[0]
    reference = TransformersModel(architecture.model_type, architecture.config)
    generator = torch.Generator().manual_seed(SEED)

    def draw(length: int) -> list[int]:
        return torch.randint(5, 500, (length,), generator=generator).tolist()

    tokens = [draw(length) for length in PROMPTS]
    prompts = [Prompt(one, draw(CONTINUATION)) for one in tokens]
    with tempfile.TemporaryDirectory() as folder:
        reference.save(Path(folder), architecture.sglang_config, architecture.checkpoint)

        backends: dict[str, str] = {}

        def serve() -> list[Any]:
            arguments = architecture.server
            model = ServedModel(Path(folder), DTYPE, arguments, graphs=False)
            backends.update(read_backends(model.settings, "run"))
            logits = model.compute_logits(prompts)
            model.compute_logits(prompts, chunk=CHUNK)
            return logits

        if device == "virtual":
            from harness import checking

            with checking.checked("virtual", exact=True) as check:
                logits = serve()
                for launch in check.launches:
                    recorder.kernels[f"{launch.module}:{launch.kernel}"] += 1
            recorder.operators.update(RECORD.stand_ins)
        else:
            logits = serve()
        default = read_default_settings(folder, architecture.server)
        backends.update(read_backends(default, "default"))
    expected = reference.compute_logits(prompts, torch.float64)
    return {
        "kernels": dict(sorted(recorder.kernels.items())),
        "operators": dict(sorted(recorder.operators.items())),
        "branches": shorten_lines(RECORD.branches),
        "choices": dict(sorted(RECORD.choices.items())),
        "backends": backends,
        "error": measure_error(expected, logits),
    }


def read_default_settings(folder: str, arguments: list[str]) -> Any:
    """Return the settings of a server whose command names the model and its type alone."""
    from sglang.srt.server_args import prepare_server_args

    words = ["--model-path", folder, "--dtype", DTYPE, "--skip-tokenizer-init", *arguments]
    settings = prepare_server_args(words)
    settings.resolve_once()
    return settings


def read_backends(settings: Any, kind: str) -> dict[str, str]:
    """Return what a server's resolved settings say of backends, by name."""
    named = {name: one for name, one in settings.resolved_dict().items() if "backend" in name}
    return {f"{kind} {name}": str(value) for name, value in sorted(named.items())}


def shorten_lines(branches: Counter[str]) -> dict[str, int]:
    """Name lines from SGLang's package on: it lies elsewhere on another machine."""
    shortened = Counter[str]()
    for branch, count in branches.items():
        if "() is " not in branch:
            continue  # torch's own question, which is not counted on a card
        shortened[re.sub(r" at \S*?(?=sglang/)", " at ", branch)] += count
    return dict(sorted(shortened.items()))


def run_all(device: str, names: tuple[str, ...], jobs: int) -> dict[str, Any]:
    """Run each architecture in a process of its own; a failure is its error's last line."""
    results: dict[str, Any] = {}

    def run_one(name: str) -> None:
        words = [sys.executable, "-m", "bench.virtual_paths", "one", device, name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        marked = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if marked:
            results[name] = json.loads(marked[-1].removeprefix("RESULT "))
        else:
            results[name] = {"failure": done.stderr.strip().splitlines()[-1:]}
        print(name, {key: value for key, value in results[name].items() if key not in KINDS})

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run_one, names))
    return {name: results[name] for name in names}


def compare_paths(cuda: dict[str, Any], virtual: dict[str, Any]) -> dict[str, Any]:
    """Return for each architecture what only one of the two called, with the counts."""

    def subtract(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
        return {name: count for name, count in ours.items() if theirs.get(name) != count}

    return {
        name: {
            **{
                f"{kind} {side}": subtract(ours[name].get(kind, {}), theirs[name].get(kind, {}))
                for kind in KINDS
                for side, ours, theirs in (("cuda", cuda, virtual), ("virtual", virtual, cuda))
            },
            "branches alike": len(
                cuda[name].get("branches", {}).keys() & virtual[name]["branches"]
            ),
            "launches": sum(cuda[name].get("kernels", {}).values()),
            "errors": [cuda[name].get("error"), virtual[name].get("error")],
        }
        for name in cuda
        if name in virtual
    }


def main() -> None:
    match sys.argv[1:]:
        case ["one", device, name]:
            print("RESULT " + json.dumps(run_architecture(device, name)))
        case ["compare", cuda, virtual, out]:
            files = [json.loads(Path(file).read_text()) for file in (cuda, virtual)]
            from harness.store.record_files import write_record

            both = {"cuda": files[0], "virtual": files[1], "differences": compare_paths(*files)}
            write_record(Path(out), json.dumps(both, indent=1) + "\n")
            print(json.dumps(both["differences"], indent=1))
        case [("cuda" | "virtual") as device, file, *names]:
            jobs = os.cpu_count() if device == "cuda" else 1
            results = run_all(device, tuple(names) or ARCHITECTURES, jobs or 1)
            Path(file).write_text(json.dumps(results, indent=1))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
