"""Launches of suites and servers, in Triton's plain interpreter and compiled for this machine.

    .releases/0.5.23/bin/python bench/same_bits.py [--record FILE]   (PYTHONPATH=.)

The suites run once in the smoke profile, and servers answer a few questions with Triton's attention
and with a draft's tree; their launches are kept with copies of their tensors, several of each
kernel. Each then runs both ways, in a process a way, and all that lies in its tensors afterwards is
compared, bit by bit. Where bits differ, the operations of the kernel of which Triton does not say
to the last place what they come to are told, and how far apart the numbers are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels import Launch, Launches, Named, View, each

from harness import checking, kernels, machine

KEPT = 2  # launches of a kernel, of as many programs
MOST = 10  # of a kernel in a process: the interpreter takes seconds for one
FREE = ("tt.dot", "tt.reduce", "tt.scan", "math.", "tt.extern", "arith.divf", "tt.precise")
# A model, words of a server, its draft, what stands in.
SERVERS = (
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
                if (
                    number < KEPT
                    and sum(self.met[known] for known in self.met if known[0] == name) < MOST
                ):
                    self.met[name, programs] += 1
                    file = self.folder / f"{name}-{programs}-{os.getpid()}-{number}"
                    file.write_bytes(content)
        self.kept.clear()


def of_servers(folder: Path) -> None:
    """A scheduler keeps what it launches; it is a fork of this process."""
    from fixtures import accuracy

    accuracy.prepare()
    Kept(folder).pytest_configure()
    for model, words, draft, stand_ins in SERVERS:
        given = {"draft": draft, "stand_ins": stand_ins, "dtype": "float32"}
        with accuracy.served(model, *words, **given) as running:  # type: ignore[arg-type]
            for item in accuracy.items("shared", 3):
                accuracy.answer(running, item)


def run(folder: Path, out: Path, interpreted: bool) -> dict[str, str]:
    """What lies in each launch's tensors afterwards, or why it did not end."""
    failed = {}
    for name, launch in each(folder):
        pid = os.fork()  # one that follows an address of another process ends its own
        if not pid:
            try:
                work = launch.prepared()
                with contextlib.nullcontext() if interpreted else checking.unwatched():
                    work()
                torch.save(launch.storages, out / name)
            except Exception as error:
                (out / f"{name}.why").write_text(f"{type(error).__name__}: {error}"[:160])
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            failed[name] = f"its process ended with {code}"
        elif (why := out / f"{name}.why").exists():
            failed[name] = why.read_text()
    return failed


def below(way: str, folder: Path, out: Path, **variables: str) -> dict[str, str]:
    out.mkdir()
    words = [sys.executable, __file__, "--way", way, str(folder), str(out)]
    alone = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **alone, **variables}  # no threads that a fork would wait for
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{way} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def views(launch: Launch) -> Iterator[View]:
    for value in (*launch.args, *launch.options.values()):
        if isinstance(value, View):
            yield value


def compared(name: str, launch: Launch, one: Path, other: Path) -> dict[str, Any]:
    """Nothing where all bits are the same."""
    plain, ours = (torch.load(place / name, weights_only=False) for place in (one, other))
    told: dict[str, Any] = {}
    for view in views(launch):
        tensors = []
        for found in (plain, ours):
            storage = found[view.storage].untyped_storage()
            tensors.append(torch.empty(0, dtype=view.dtype).set_(storage, *view.place))
        bits = [tensor.contiguous().view(torch.uint8) for tensor in tensors]
        if torch.equal(*bits):
            continue
        left, right = (tensor.double() for tensor in tensors)
        differ = (left != right) & ~(left.isnan() & right.isnan())
        if not bool(differ.any()):
            continue  # the bits of a NaN
        apart = (left - right).abs() / left.abs().clamp(min=torch.finfo(torch.float32).tiny)
        told["numbers"] = told.get("numbers", 0) + int(differ.sum())
        told["relative"] = max(told.get("relative", 0.0), float(apart[differ].max()))
        told["type"] = str(view.dtype).removeprefix("torch.")
    return told


def free_of(named: Named, launch: Launch) -> list[str]:
    """The operations of a kernel of which nobody says the last place."""
    args = [launch.found(value) for value in launch.args]
    options = {name: launch.found(value) for name, value in launch.options.items()}
    text = str(kernels.read(named.kernel, *args, **options))
    return sorted({word for word in FREE if word in text})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--served", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.way:
        way, folder, out = options.way
        print(json.dumps(run(Path(folder), Path(out), way == "plain")))
        return 0
    if options.served:
        of_servers(options.served)
        return 0
    with tempfile.TemporaryDirectory() as place:
        suites, servers = Path(place, "suites"), Path(place, "servers")
        told: dict[str, Any] = {}
        for who, folder in (("servers", servers), ("suites", suites)):
            folder.mkdir()
            if who == "servers":
                words = [sys.executable, __file__, "--served", str(folder)]
                subprocess.run(words, check=True)
            else:
                asked = ["suites", "--profile", "smoke", "--device", "cpu"]
                asked += ["--ignore", "suites/accuracy"]
                pytest.main(asked, [Kept(folder)])
            told[who] = both(folder, Path(place, f"{who} plain"), Path(place, f"{who} ours"))
    result = {"machine": machine.facts(), "command": sys.argv, **told}
    print(json.dumps(told, indent=1))
    if options.record:
        options.record.write_text(json.dumps(result, indent=1) + "\n")
    unexplained = [
        name
        for found in told.values()
        for name, one in found["kernels"].items()
        if one.get("other bits") and not one["of which"]
    ]
    print(
        f"without a reason: {unexplained}" if unexplained else "each has the same bits or a reason"
    )
    return bool(unexplained)


def both(folder: Path, one: Path, other: Path) -> dict[str, Any]:
    plain, ours = below("plain", folder, one, TRITON_INTERPRET="1"), below("ours", folder, other)
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"launches": 0, "same bits": 0})
    for name, launch in each(folder):
        kernel = found[launch.named.name]
        kernel["launches"] += 1
        if name in plain or name in ours:
            which = "interpreter" if name in plain else "ours"
            kernel.setdefault("not run", {})[which] = plain.get(name) or ours[name]
        elif apart := compared(name, launch, one, other):
            kernel["other bits"] = kernel.get("other bits", 0) + 1
            kernel["apart"] = max(kernel.get("apart", 0.0), apart["relative"])
            kernel["of which"] = free_of(launch.named, launch)
        else:
            kernel["same bits"] += 1
    counts = {
        key: sum(one.get(key, 0) for one in found.values())
        for key in ("launches", "same bits", "other bits")
    }
    return {**counts, "kernels": dict(sorted(found.items()))}


if __name__ == "__main__":
    sys.exit(main())
