"""What was served once, judged anew: when the statistics change, nobody has to serve it again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec

from harness.errors import UnfixError
from harness.eval.asking import Where
from harness.eval.matrix import Configuration, FaultIn, Matrix
from harness.eval.run import Run
from harness.store.eval.values import Evaluation

ZIPPED = ".gz"


def read(file: Path) -> Evaluation:
    """A file that `--record` wrote."""
    try:
        data = file.read_bytes()
        whole = json.loads(gzip.decompress(data) if file.suffix == ZIPPED else data)
        told = {"green", "problems"}  # from the rest
        kept = {name: one for name, one in whole.items() if name not in told}
        return msgspec.convert(kept, Evaluation)
    except OSError as error:
        raise UnfixError(f"{file}: {error.strerror or error}") from error
    except (ValueError, AttributeError, EOFError) as error:
        raise UnfixError(f"{file} is no record of an evaluation: {error}") from error


class Again(Run):
    """A run whose answers are there."""

    def __init__(self, matrix: Matrix, where: Where, recorded: Evaluation) -> None:
        served = {one.name for one in recorded.served}
        lacks = [one.name for one in matrix.configurations if one.name not in served]
        if lacks:
            raise UnfixError(f"the record has no {', '.join(lacks)}: was it of this matrix?")
        self._absences = {
            (fault.toggle, fault.configuration): fault.absent for fault in recorded.faults
        }
        super().__init__(matrix, where, recorded, jobs=1)
        for place, one in enumerate(recorded.served):
            reason = next((it.absent for it in matrix.configurations if it.name == one.name), "")
            if reason and not one.answers:  # what the file has come to say of it since
                recorded.served[place] = msgspec.structs.replace(one, failure="", absent=reason)

    def go(self) -> Evaluation:
        self._compare_all()
        return self.evaluation

    def _not_there(self, fault: FaultIn, one: Configuration) -> str:
        return self._absences.get(
            (fault.toggle, one.name), "it was not put in when this was served"
        )
