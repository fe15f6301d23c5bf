"""Twenty evaluations in which nothing is wrong: how many comparisons say that something is?

    python bench/repeats.py --release 0.5.18 --record bench/recorded/repeats-cpu.json

Runs the `cpu` matrix without its faults, once for each seed, and counts the verdicts. Each seed
draws other items. Accuracy is left out, unless asked for: how often it errs is simulated in
tests/evals, and hundreds of items a repeat would add nothing to that.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "suites" / "accuracy" / "matrices" / "cpu.yaml"
FLAGGED = ("regressed", "differs", "drifts", "failed")


def repeat(matrix: Path, seed: int, items: int, release: str, jobs: int) -> dict:
    record = matrix.with_suffix(f".{seed}.json")
    words = ["eval", str(matrix), "--seed", str(seed), "--items", str(items), "-j", str(jobs)]
    words += ["--release", release, "--record", str(record), "--html", str(record) + ".html"]
    subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    whole = json.loads(record.read_text())
    return {
        "seed": seed,
        "seconds": round(whole["seconds"]),
        "answers": sum(len(one["answers"]) for one in whole["served"]),
        "verdicts": dict(collections.Counter(one["verdict"] for one in whole["compared"])),
        "flagged": [one["words"] for one in whole["compared"] if one["verdict"] in FLAGGED],
        "problems": whole["problems"],
        "versions": whole["machine"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", default="0.5.18")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--items", type=int, default=1, help="of each task")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--accuracy", action="store_true", help="compare it, too")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        matrix = Path(folder) / "cpu.yaml"
        whole = {**yaml.safe_load(MATRIX.read_text()), "faults": []}
        for one in [] if given.accuracy else whole["configurations"]:
            one.pop("against", None)
        matrix.write_text(yaml.safe_dump(whole))
        found = []
        for seed in range(1, given.repeats + 1):
            found.append(repeat(matrix, seed, given.items, given.release, given.jobs))
            print(f"seed {seed}: {found[-1]['verdicts']}, {found[-1]['seconds']} s", flush=True)
    versions = [one.pop("versions") for one in found]
    flagged = sum(len(one["flagged"]) for one in found)
    said = {
        "what": "the cpu matrix without its faults, other items each time",
        "command": f"python bench/repeats.py --release {given.release} --repeats {given.repeats}",
        "release": given.release,
        "versions": versions[0],
        "seconds": round(time.time() - began),
        "comparisons": sum(sum(one["verdicts"].values()) for one in found),
        "flagged": flagged,
        "repeats": found,
    }
    if given.record:
        given.record.write_text(json.dumps(said, indent=1) + "\n")
    print(f"{flagged} of {said['comparisons']} comparisons flagged in {given.repeats} repeats")
    return 1 if flagged else 0


if __name__ == "__main__":
    sys.exit(main())
