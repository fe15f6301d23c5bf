"""Twenty evaluations in which nothing is wrong: how many comparisons say that something is?

    python -m bench.repeats --release 0.5.18 --record bench/recorded/repeats-cpu.json.xz
    python -m bench.repeats --first 21 --repeats 1 --record FILE --onto     # one more seed

Runs the `cpu` matrix without its faults, once for each seed, and counts the verdicts. Each seed
draws other items. Accuracy is left out by default: tests/eval simulates how often it errs, and
hundreds of items a repeat would add nothing to that. A repeat in which the kernel killed a server
for lack of memory is recorded separately and not counted; run another seed in its place.
"""

from __future__ import annotations

import collections
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.recording import make_parser, read_record
from harness.core import machine
from harness.matrices import reader
from harness.matrices.schema import MatrixFile
from harness.runs.eval.evaluation_servers import ServingSettings
from harness.runs.eval.runner import EvaluationRunner, begin_evaluation
from harness.store.eval.values import Evaluation
from harness.store.record_files import write_record

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "suites" / "matrices" / "cpu.yaml"


def repeat_evaluation(
    matrix: MatrixFile, where: ServingSettings, preloaded: dict[Any, Any], jobs: int
) -> Evaluation:
    """Run one evaluation; the processes that have imported SGLang stay for the next one."""
    new = begin_evaluation(matrix, where, f"repeat-{matrix.seed}", "bench/repeats.py")
    run = EvaluationRunner(matrix, where, new, jobs=jobs, max_items=matrix.items)
    run.servers._preloaded_processes = preloaded
    closed = run.servers.close

    def close() -> None:
        run.servers._preloaded_processes = {}
        closed()

    run.servers.close = close  # type: ignore[method-assign]
    return run.execute()


OUT_OF_MEMORY = "the kernel killed it: out of memory"


def summarize_evaluation(done: Evaluation) -> dict[str, Any]:
    flagged = [one for one in done.compared if one.verdict.shows_fault]
    return {
        "seed": done.seed,
        "seconds": round(done.seconds),
        "answers": sum(len(one.answers) for one in done.served),
        "verdicts": dict(collections.Counter(str(one.verdict) for one in done.compared)),
        "counts": not any(OUT_OF_MEMORY in problem for problem in done.problems),
        "flagged": [f"{one.base} -> {one.candidate}: {one.words}" for one in flagged],
        "problems": done.problems,
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--release", default="0.5.18")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--items", type=int, default=1, help="of each task")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", default=["needle", "shared"])
    parser.add_argument("--accuracy", action="store_true", help="compare it, too")
    parser.add_argument("--first", type=int, default=1, metavar="SEED")
    parser.add_argument("--onto", action="store_true", help="keep what --record holds already")
    arguments = parser.parse_args()
    began = time.time()
    _, matrix = reader.read_matrix_file(MATRIX, reader.LISTED)
    matrix.faults, matrix.items, matrix.device = [], arguments.items, "cpu"
    matrix.tasks = arguments.tasks
    for one in matrix.configurations:
        one.items = 0
        one.tasks = []
        one.against = one.against if arguments.accuracy else ""
    found = []
    preloaded: dict[Any, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for seed in range(arguments.first, arguments.first + arguments.repeats):
                matrix.seed = seed
                place = Path(folder) / str(seed)
                where = ServingSettings("cpu", arguments.release, place, (), False, 600.0)
                found.append(
                    summarize_evaluation(
                        repeat_evaluation(matrix, where, preloaded, arguments.jobs)
                    )
                )
                print(f"seed {seed}: {found[-1]}", flush=True)
        finally:
            for process in preloaded.values():
                process.close()
    facts = machine.collect_machine_facts(str(where.get_python(arguments.release)))
    run = {
        "command": " ".join(["python -m bench.repeats", *sys.argv[1:]]),
        "release": arguments.release,
        "tasks": arguments.tasks,
        "items": arguments.items,
        "machine": {name: str(value) for name, value in facts.items()},
        "seconds": round(time.time() - began),
        "repeats": found,
    }
    runs = read_record(arguments.record)["runs"] if arguments.onto else []
    runs.append(run)
    every = [one for run in runs for one in run["repeats"]]
    whole = [one for one in every if one["counts"]]
    result = {
        "what": "the cpu matrix without its faults, other items each time",
        "repeats": len(whole),
        "comparisons": sum(sum(one["verdicts"].values()) for one in whole),
        "flagged": sum(len(one["flagged"]) for one in whole),
        "out of memory": len(every) - len(whole),
        "runs": runs,
    }
    if arguments.record:
        write_record(arguments.record, json.dumps(result, indent=1) + "\n")
    print(
        f"{result['flagged']} of {result['comparisons']} comparisons flagged in {len(whole)} "
        f"repeats; {result['out of memory']} not counted: the machine was out of memory"
    )
    return 1 if result["flagged"] else 0


if __name__ == "__main__":
    sys.exit(main())
