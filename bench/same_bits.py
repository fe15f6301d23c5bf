"""Launches of suites and servers, in Triton's plain interpreter and compiled for this machine.

    .releases/0.5.23/bin/python bench/same_bits.py [--record FILE] [--kept DIR]   (PYTHONPATH=.)

The suites run once in the smoke profile, and servers answer a few questions with Triton's attention
and with a draft's tree; their launches are kept with copies of their tensors, several of each
kernel. Each then runs both ways, in a process a way, and all that lies in its tensors afterwards is
compared, bit by bit. Bits may differ where a kernel sums floats in an order that Triton does not
give, or asks a library for a function: then the same kernel runs with every float 64 bits wide, and
our numbers must be no further from that than twice what the interpreter's are, and one rounding.
Of 8-bit floats `arithmetic.py` holds ours against a GPU's bits: the interpreter has others.
With `--kept` launches and what came of them lie in a folder, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels import Launch, Launches, View, each

from bench.recording import record
from harness import checking
from harness.kernels.check.cpu_launcher import CpuLauncher
from harness.kernels.check.launch_log import LaunchLog as Told
from harness.kernels.check.tracked_memory import MemoryTracker, TensorSpan
from harness.kernels.cpu.number_formats import FLOAT8_FORMATS
from harness.kernels.ir.graph import IROperation, KernelGraph
from harness.kernels.triton import frontend, graph_loader, mlir_parser

KEPT = 2  # launches of a kernel, of as many programs
MOST = 10  # of a kernel in a process: the interpreter takes seconds for one
WAYS = "interpreter", "ours", "wide"
EXACT = {"math.absf", "math.sqrt", "math.fma", "math.floor", "math.ceil"}  # of the functions
SERVERS = (  # a model, words of a server, its draft, what stands in
    ("llama", ("--attention-backend", "triton"), "", ()),
    ("gpt-oss", ("--attention-backend", "triton"), "", ()),
    ("llama", ("--attention-backend", "triton", "--chunked-prefill-size", "64"), "", ()),
    (
        "llama",
        (
            *("--attention-backend", "triton", "--speculative-algorithm", "EAGLE"),
            *("--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
            *("--speculative-num-draft-tokens", "8"),
        ),
        "llama-eagle",
        ("tree-kernels",),
    ),
)


class Kept(Launches):
    """Each as it comes into a folder, also by a process that is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.met: Counter[tuple[str, int]] = Counter()

    def keep(self, kernel: Any, args: tuple[Any, ...], grid: Any, options: dict[str, Any]) -> None:
        super().keep(kernel, args, grid, options)
        for name, found in self.kept.items():
            for content in found:
                programs = torch.load(io.BytesIO(content), weights_only=False).programs
                number = self.met[name, programs]
                of_kernel = sum(many for (known, _), many in self.met.items() if known == name)
                if number < KEPT and of_kernel < MOST:
                    self.met[name, programs] += 1
                    file = self.folder / f"{name}-{programs}-{os.getpid()}-{number}"
                    file.write_bytes(content)
        self.kept.clear()


def of_suites(folder: Path) -> None:
    asked = ["suites", "--profile", "smoke", "--device", "cpu", "--ignore", "suites/accuracy"]
    # What is imported above came before pytest could rewrite them, which is no matter.
    asked += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    found = Kept(folder)
    if code := pytest.main(asked, [found]):
        raise SystemExit(f"pytest ended with {int(code)}")
    (folder.parent / "virtual").write_text(json.dumps(found.too_large))


def of_servers(folder: Path) -> None:
    """A scheduler keeps what it launches; it is a fork of this process."""
    from fixtures import accuracy

    accuracy.prepare()
    Kept(folder).pytest_configure()
    for model, words, draft, stand_ins in SERVERS:
        given = {"draft": draft, "stand_ins": stand_ins, "dtype": "float32"}
        with accuracy.serve_model(model, *words, **given) as running:  # type: ignore[arg-type]
            for item in accuracy.make_items("shared", 3):
                accuracy.request_answer(running, item)


class Wide(CpuLauncher):
    """A kernel with all its floats 64 bits wide, in its tensors, too."""

    reads = "wide"

    def __init__(self, launch: Launch) -> None:
        super().__init__(MemoryTracker(), Told(), exact=True, trust_loaded_pointers=True)
        self._of, self.wide = launch, dict[int, torch.Tensor]()
        kinds: dict[int, set[torch.dtype]] = defaultdict(set)
        for view in views(launch):
            kinds[view.storage].add(view.dtype)
        for storage, dtypes in kinds.items():
            if not any(dtype.is_floating_point for dtype in dtypes):
                continue
            if len(dtypes) > 1:
                raise ValueError("one storage holds several types")
            self.wide[storage] = launch.storages[storage].view(*dtypes).double()

    def graph_of(self, kernel: Any, bound: Any) -> KernelGraph:
        return mlir_parser.parse_mlir(widened(frontend.compile_to_mlir(kernel, bound)))

    def _span(self, name: str, value: Any, kind: Any) -> TensorSpan:
        for storage, tensor in self.wide.items():
            if value.untyped_storage().data_ptr() == self._of.storages[storage].data_ptr():
                place = value.storage_offset(), value.shape, value.stride()
                value = torch.empty(0, dtype=torch.double).set_(tensor.untyped_storage(), *place)
                break
        return super()._get_span(name, value, kind)


def widened(text: str) -> str:
    """Types, and constants that are written as bits."""

    def number(found: re.Match[str]) -> str:
        bits, between, element = int(found[1], 16), found[2], found[3]
        if element == "f16":
            [value] = struct.unpack("<e", bits.to_bytes(2, "little"))
        else:
            whole = bits << 16 if element == "bf16" else bits
            [value] = struct.unpack("<f", whole.to_bytes(4, "little"))
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}{between}{element}"

    text = re.sub(r"\b0x([0-9A-F]+)(>? : (?:tensor<[0-9x]*x)?)(bf16|f16|f32)\b", number, text)
    return re.sub(r"(?:(?<=x)|\b)(?:bf16|f16|f32)\b", "f64", text)


def ran(launch: Launch, way: str) -> dict[int, torch.Tensor]:
    """All that lies in its storages afterwards; of a wide one, in those that hold floats."""
    session = Wide(launch) if way == "wide" else None
    with session or (checking.run_kernels_on_cpu() if way == "ours" else contextlib.nullcontext()):
        launch.prepared()()
    return session.wide if session else launch.storages


def run(way: str, folder: Path, out: Path) -> None:
    """Each launch, and why one did not end."""
    if way != "interpreter":
        checking.preload_checker()
    for name, launch in each(folder):
        if (out / name).exists() or (out / f"{name}.why").exists():
            continue
        if way == "wide" and not any(view.dtype.is_floating_point for view in views(launch)):
            continue
        launch.prepared()  # what it imports is there for all that follow
        pid = os.fork()  # one that follows an address of another process ends its own
        if not pid:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where it died is of no use
                torch.save(ran(launch, way), out / name)
            except Exception as error:
                (out / f"{name}.why").write_text(f"{type(error).__name__}: {error}"[:160])
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            (out / f"{name}.why").write_text(f"its process ended with {code}")


def below(*words: object, **variables: str) -> None:
    alone = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **alone, **variables}  # no threads that a fork would wait for
    subprocess.run([sys.executable, __file__, *map(str, words)], env=environment, check=True)


def views(launch: Launch) -> Iterator[View]:
    for value in (*launch.args, *launch.options.values()):
        if isinstance(value, View):
            yield value


def ungiven(launch: Launch) -> list[str]:
    """The operations of a kernel of which Triton does not say to the last place what they give."""
    args = tuple(launch.found(value) for value in launch.args)
    options = {name: launch.found(value) for name, value in launch.options.items()}
    graph = graph_loader.read_graph(launch.named.kernel, args, options)
    found = {one.name for one in graph.walk() if is_ungiven(one)}
    kinds = {value.type.element for one in graph.walk() for value in one.results}
    return sorted(found | {kind for kind in kinds if kind in FLOAT8_FORMATS})


def is_ungiven(operation: IROperation) -> bool:
    name = operation.name
    if name in ("tt.reduce", "tt.scan"):
        inner = operation.regions[0].block.operations
        return any(one.name in ("arith.addf", "arith.mulf") for one in inner)
    if not any(value.type.is_float for value in operation.results):
        return False
    if name == "tt.atomic_rmw":
        return True
    return name in ("tt.dot", "tt.extern_elementwise") or (
        name.startswith("math.") and name not in EXACT
    )


def compared(name: str, launch: Launch, folder: Path) -> dict[str, Any]:
    """How far apart the numbers are, in each view, and how far from the wide ones."""
    found = {way: torch.load(folder / way / name, weights_only=False) for way in WAYS[:2]}
    wide = folder / "wide" / name
    exact = torch.load(wide, weights_only=False) if wide.exists() else {}
    told: dict[str, Any] = {}
    for view in views(launch):
        pair = [viewed(found[way][view.storage], view.dtype, view) for way in WAYS[:2]]
        if torch.equal(*(one.contiguous().view(torch.uint8) for one in pair)):
            continue
        plain, ours = (one.double() for one in pair)
        if torch.equal(plain.isnan(), ours.isnan()) and torch.equal(*map(_finite, (plain, ours))):
            continue  # the bits of a NaN, or a zero's sign
        size = float(_finite(plain).abs().max()) or 1.0
        told["apart"] = max(told.get("apart", 0.0), _apart(plain, ours) / size)
        right = view.dtype.is_floating_point and view.storage in exact
        if not right:
            told["without a reference"] = True
            continue
        reference = viewed(exact[view.storage], torch.double, view)
        errors = [_apart(one, reference) / size for one in (plain, ours)]
        for key, error in zip(("interpreter's error", "our error"), errors, strict=True):
            told[key] = max(told.get(key, 0.0), error)
        if not errors[1] <= 2 * errors[0] + torch.finfo(view.dtype).eps:
            told["too far"] = True
    return told


def viewed(storage: torch.Tensor, dtype: torch.dtype, view: View) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(storage.untyped_storage(), *view.place)


def _finite(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    same = (one == other) | (one.isnan() & other.isnan())
    apart = torch.where(same, 0.0, (one - other).abs())
    return float(apart.nan_to_num(nan=torch.inf).max())


def of(folder: Path) -> dict[str, Any]:
    """What became of each kernel's launches, of which `launches` lie in the folder."""
    launches = folder / "launches"
    for way in WAYS:
        (folder / way).mkdir(exist_ok=True)
        interpreting = {"TRITON_INTERPRET": "1"} if way == "interpreter" else {}
        with tempfile.TemporaryDirectory() as home:
            below("--way", way, launches, folder / way, UNFIX_HOME=home, **interpreting)
    told: dict[str, dict[str, Any]] = defaultdict(lambda: {"launches": 0, "same bits": 0})
    for name, launch in each(launches):
        kernel = told[launch.named.name]
        kernel["launches"] += 1
        whys = {way: folder / way / f"{name}.why" for way in WAYS}
        silent = {way: whys[way].read_text() for way in WAYS[:2] if whys[way].exists()}
        if silent:
            kernel.setdefault("not run", {}).update(silent)
            continue
        apart = compared(name, launch, folder)
        if not apart:
            kernel["same bits"] += 1
            continue
        kernel["of which"] = ungiven(launch)
        for key, value in apart.items():
            kernel[key] = max(kernel.get(key, 0.0), value)
        if "without a reference" in apart and whys["wide"].exists():
            kernel["no reference"] = whys["wide"].read_text()
    return dict(sorted(told.items()))


def unexplained(kernel: dict[str, Any]) -> bool:
    silent = kernel.get("not run", {})
    if "of which" not in kernel:
        return "ours" in silent and "interpreter" not in silent
    near = not {"too far", "without a reference"} & kernel.keys()
    return not (near or FLOAT8_FORMATS.keys() & set(kernel["of which"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.way:
        way, folder, out = options.way
        run(way, Path(folder), Path(out))
        return 0
    if options.of:
        who, folder = options.of
        (of_servers if who == "servers" else of_suites)(Path(folder))
        return 0
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for who in ("suites", "servers"):
            folder = (options.kept or Path(place)) / who
            launches, virtual = folder / "launches", folder / "virtual"
            if not launches.exists():
                launches.mkdir(parents=True)
                below("--of", who, launches)
            found = of(folder)
            told[who] = {
                key: sum(kernel[key] for kernel in found.values())
                for key in ("launches", "same bits")
            }
            # Over tensors that cannot be copied.
            told[who]["virtual"] = json.loads(virtual.read_text()) if virtual.exists() else {}
            told[who]["kernels"] = found
    record(told, options.record)
    without = [
        name
        for who in told.values()
        for name, kernel in who["kernels"].items()
        if unexplained(kernel)
    ]
    print(f"without a reason: {without}" if without else "each has the same bits or a reason")
    return bool(without)


if __name__ == "__main__":
    sys.exit(main())
