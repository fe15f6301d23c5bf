"""What was served once, judged anew: when the statistics change, nobody has to serve it again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec

from harness.core.errors import UnfixError
from harness.runs.eval.evaluation_servers import ServingSettings
from harness.runs.eval.matrix_file import EvaluationConfiguration, EvaluationMatrix, FaultPlacement
from harness.runs.eval.runner import EvaluationRunner
from harness.store.eval.values import Evaluation

GZIP_SUFFIX = ".gz"


def read_recorded_evaluation(file: Path) -> Evaluation:
    """A file that `--record` wrote."""
    try:
        data = file.read_bytes()
        whole = json.loads(gzip.decompress(data) if file.suffix == GZIP_SUFFIX else data)
        told = {"green", "problems"}  # from the rest
        kept = {name: one for name, one in whole.items() if name not in told}
        return msgspec.convert(kept, Evaluation)
    except OSError as error:
        raise UnfixError(f"{file}: {error.strerror or error}") from error
    except (ValueError, AttributeError, EOFError) as error:
        raise UnfixError(f"{file} is no record of an evaluation: {error}") from error


class RejudgedRunner(EvaluationRunner):
    """A run whose answers are there."""

    def __init__(
        self, matrix: EvaluationMatrix, settings: ServingSettings, recorded: Evaluation
    ) -> None:
        served = {one.name for one in recorded.served}
        lacks = [one.name for one in matrix.configurations if one.name not in served]
        if lacks:
            raise UnfixError(f"the record has no {', '.join(lacks)}: was it of this matrix?")
        self._absence_reasons = {
            (fault.toggle, fault.configuration): fault.absent for fault in recorded.faults
        }
        super().__init__(matrix, settings, recorded, jobs=1)
        for place, one in enumerate(recorded.served):
            reason = next((it.absent for it in matrix.configurations if it.name == one.name), "")
            if reason and not one.answers:  # what the file has come to say of it since
                recorded.served[place] = msgspec.structs.replace(one, failure="", absent=reason)

    def execute(self) -> Evaluation:
        self._compare_served()
        return self.evaluation

    def _find_absence(self, fault: FaultPlacement, configuration: EvaluationConfiguration) -> str:
        return self._absence_reasons.get(
            (fault.toggle, configuration.name), "it was not put in when this was served"
        )
