"""One combination of features in this process: a server with it, and its answers beside the plain.

Both answer the same requests greedily, and give the log-probabilities of the whole vocabulary with
each token. A token is compared as long as those before it are equal: its log-probabilities within
the row's tolerance. Example: at the fourth token of the second request one of them is 0.02 of the
largest off, and 1e-5 is what rounding does: the headline names both.
"""

from __future__ import annotations

import importlib.metadata
import linecache
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from packaging.specifiers import SpecifierSet

from harness import checking
from harness.core.outcomes import Verdict
from harness.runs.zoo.answering_server import ServerAnswer, start_server
from harness.runs.zoo.architecture import Architecture
from harness.runs.zoo.claims import summarize_error
from harness.runs.zoo.features import Combination, FeatureAxes, find_ignored_words
from harness.runs.zoo.served_model import count_graph_replays
from harness.sanitizer.device.refusals import UnansweredName
from harness.store.zoo.values import FeatureResult

ANSWER_TOKENS = 6
NO_REPLAY = "SGLang replays no graph"
REFUSING_WORDS = re.compile(
    r"(not|n't|only) (yet |currently )?(support|compatib|implement)|unsupported|requires one of",
    re.IGNORECASE,
)
SETTINGS_MODULES = ("sglang.srt.server_args", "sglang.srt.arg_groups", "sglang.srt.configs")


class StoredAnswer(msgspec.Struct):
    """What came back for one request."""

    tokens: list[int]
    endings: list[str]
    logprobs: list[list[float]]


class PlainAnswers(msgspec.Struct):
    """The answers of a row's plain server, and how far rounding may move them."""

    answers: list[StoredAnswer]
    tolerance: float


class FeatureOutcome(msgspec.Struct):
    """What one process found."""

    result: FeatureResult
    answers: list[StoredAnswer] = []
    kernels: dict[str, int] = {}
    functions: dict[str, list[str]] = {}
    lines: dict[str, list[int]] = {}


class FeatureRun:
    """One combination on one row."""

    def __init__(
        self,
        architecture: Architecture,
        axes: FeatureAxes,
        combination: Combination,
        model: Path,
        prompts: list[list[int]],
        launch_checks: tuple[str, ...] = (),
    ) -> None:
        self.architecture, self.combination = architecture, combination
        self.prompts = prompts
        self.features = [axes.features[name] for name in sorted(combination)]
        self.model = model
        own = ["--model-path", str(model), "--dtype", architecture.dtype, *architecture.server]
        self.words = axes.list_words(combination, str(model))
        self.all_words = [*own, *self.words]
        self.launch_checks = launch_checks
        self.answers: list[StoredAnswer] = []

    def run(self, plain: PlainAnswers | None) -> FeatureOutcome:
        """Serve the requests, and compare; the plain server's own answers have no `plain`."""
        self.tolerance = max(
            plain.tolerance if plain else 0.0, *(one.tolerance for one in self.features), 0.0
        )
        with checking.checked("virtual", exact=True, launch_checks=self.launch_checks) as check:
            self.check = check
            result = self._find_result(plain)
        kernels: dict[str, int] = {}
        for launch in check.launches:
            name = f"{launch.module}:{launch.kernel}"
            kernels[name] = kernels.get(name, 0) + 1
        return FeatureOutcome(result, self.answers, kernels)

    def _find_result(self, plain: PlainAnswers | None) -> FeatureResult:
        error: Exception | None = None
        is_up = False
        try:
            with self.check.ignore_races():
                server = start_server(self.all_words)
            if ignored := find_ignored_words(server.settings, self.words):
                return self._make_result(Verdict.REFUSED, f"SGLang: {'; '.join(ignored)}")
            is_up = True
            for source in filter(None, (feature.update for feature in self.features)):
                server.update_weights(self.model, source, max(self.prompts, key=len))
            with count_graph_replays() as replays:
                tokens_alone = any(feature.tokens_alone for feature in self.features)
                answers = server.answer(self.prompts, ANSWER_TOKENS, tokens_alone)
            if not replays and any(feature.replays for feature in self.features):
                verdict = Verdict.REFUSED if len(self.features) > 1 else Verdict.DIFFERS
                return self._make_result(verdict, NO_REPLAY)
            self.answers = [StoredAnswer(a.tokens, a.endings, a.logprobs) for a in answers]
        except Exception as failure:
            error = failure
        caught = [one for one in self.check.launches.errors if one is not error]
        if first := next(iter(caught), error):
            return self._judge_error(first, is_up)
        if plain is None:
            return self._make_result(Verdict.EQUAL)
        return self._compare(plain)

    def _judge_error(self, error: Exception, is_up: bool) -> FeatureResult:
        detail = "".join(traceback.format_exception(error))
        if isinstance(error, checking.Violation):
            return self._explain(Verdict.DIFFERS, error.headline, None, str(error))
        if isinstance(error, (checking.UncheckableKernel, UnansweredName)):
            return self._make_result(Verdict.UNTESTED, summarize_error(error), detail=detail)
        if not is_up and is_refusal(error):
            return self._make_result(Verdict.REFUSED, summarize_error(error), detail=detail)
        return self._explain(Verdict.DIFFERS, summarize_error(error), None, detail)

    def _compare(self, plain: PlainAnswers) -> FeatureResult:
        error, difference = compare_answers(plain.answers, self.answers, self.tolerance)
        if not difference:
            return self._make_result(Verdict.EQUAL, "", error)
        # A known failure is one of size: a request that is aborted is none.
        return self._explain(Verdict.DIFFERS, difference, error)

    def _explain(
        self, verdict: Verdict, headline: str, error: float | None, detail: str = ""
    ) -> FeatureResult:
        """Return the result, as known if a claim fails on this row in the same way."""
        release = importlib.metadata.version("sglang")
        for claim in [claim for feature in self.features for claim in feature.claims]:
            known = self.architecture.find_known_failure(claim, release)
            if known and known.at_most is not None and error is not None and error <= known.at_most:
                return self._make_result(Verdict.KNOWN, f"{known.reason} ({headline})", error)
        for known in [known for feature in self.features for known in feature.known]:
            if known.says in headline and SpecifierSet(known.releases).contains(release):
                return self._make_result(Verdict.KNOWN, f"{known.reason} ({headline})", error)
        return self._make_result(verdict, headline, error, detail)

    def _make_result(
        self, verdict: Verdict, headline: str = "", error: float | None = None, detail: str = ""
    ) -> FeatureResult:
        tolerance = self.tolerance if error is not None else None
        features = sorted(self.combination)
        return FeatureResult(features, verdict, headline, error, tolerance, detail)


def compare_answers(
    plain: Sequence[ServerAnswer], other: Sequence[ServerAnswer], tolerance: float
) -> tuple[float | None, str]:
    """Return the largest error, and what differs beyond the tolerance; '' if nothing does.

    There is no error where a request lacks tokens, or a token is not the likeliest.
    """
    errors, differences, others = [0.0], [], []
    for number, (expected, actual) in enumerate(zip(plain, other, strict=True)):
        what = f"request {number}"
        if actual.endings != ["length"] or len(actual.tokens) != len(expected.tokens):
            others.append(f"{what} has {len(actual.tokens)} tokens and ends by {actual.endings}")
        if len(actual.logprobs) not in (0, len(actual.tokens)):
            others.append(f"{what} has log-probabilities of {len(actual.logprobs)} tokens")
            continue
        for step in range(min(len(expected.tokens), len(actual.tokens))):
            if expected.tokens[:step] != actual.tokens[:step]:
                break
            theirs = expected.logprobs[step]
            ours = actual.logprobs[step] if actual.logprobs else theirs
            error = measure_logprobs(theirs, ours)
            errors.append(error)
            lag = (max(ours) - ours[actual.tokens[step]]) / max(map(abs, theirs))
            if error > tolerance:
                differences.append(
                    f"token {step} of {what} is off by {error:.2g} of the largest log-probability"
                )
            elif lag > tolerance:
                others.append(f"token {step} of {what} is not its likeliest one")
    if others:
        return None, others[0]
    return max(errors), differences[0] if differences else ""


def measure_logprobs(expected: Sequence[float], actual: Sequence[float]) -> float:
    """Return the largest difference, relative to the largest expected; infinity for NaN of any."""
    theirs, ours = torch.tensor(expected).double(), torch.tensor(actual).double()
    if theirs.shape != ours.shape:
        return float("inf")
    error = float((ours - theirs).abs().max() / theirs.abs().max())
    return error if error == error else float("inf")


def is_refusal(error: Exception) -> bool:
    """Return whether SGLang says that it does not take these words, before it serves anything.

    It raises so in its settings, or says elsewhere that something is not supported. An assertion
    of a layer without such words may be a bug.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    names = [str(frame.f_globals.get("__name__")) for frame in frames]
    is_of_settings = any(name.startswith(SETTINGS_MODULES) for name in names)
    is_explicit = line.startswith(("raise", "assert", ")"))
    return is_explicit and (is_of_settings or REFUSING_WORDS.search(str(error)) is not None)
