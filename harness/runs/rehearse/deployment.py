"""Deployments as data: a model of `suites/rehearse/models`, a card, a server's arguments.

A model is the `config.json` that was published, with its address:

    source: https://huggingface.co/…/config.json
    compared: the same sizes in OWNER/NAME, PATH at COMMIT
    config: {architectures: [LlamaForCausalLM], hidden_size: 4096, …}

`suites/rehearse/deployments.yaml` has the fixed set:

    llama-3.1-405b-tp8: {model: llama-3.1-405b, gpu: H200, arguments: [--tp, "8"]}
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.located_yaml import SafeYamlFile
from harness.core.yaml_document import suggest_nearest
from harness.sanitizer.device.cards import get_card

REHEARSE_FOLDER = Path("suites") / "rehearse"
CARDS_OF_A_HOST = 8
DEFAULT_CARD = "H200"
# Arguments whose batches nothing here makes yet, by what they are called.
_NOT_REHEARSED = {
    "--lora-paths": "an adapter of its own (--enable-lora has the largest ones)",
    "--pp-size": "pipeline parallelism",
    "--pipeline-parallel-size": "pipeline parallelism",
    "--disaggregation-mode": "prefill and decode on different servers",
    "--enable-two-batch-overlap": "two overlapping batches",
    "--dcp-size": "context parallelism of decode",
    "--decode-context-parallel-size": "context parallelism of decode",
    "--cuda-graph-config": "a configuration of graphs (--cuda-graph-bs-decode has those of decode)",
}
_NOT_REHEARSED |= dict.fromkeys(
    (
        *("--cuda-graph-backend-prefill", "--cuda-graph-max-seq-len-prefill"),
        *("--cuda-graph-prefill-max-context", "--context-bucket"),
        *("--enable-piecewise-cuda-graph", "--enforce-piecewise-cuda-graph"),
        "--enable-breakable-cuda-graph",
    ),
    "prefill in CUDA graphs of compiled code or of a whole layer stack",
)
# The values of such an argument that ask for nothing that is not rehearsed.
_OFF_VALUES: dict[str, frozenset[str]] = dict.fromkeys(
    (
        *("--pp-size", "--pipeline-parallel-size"),
        *("--attn-cp-size", "--attention-context-parallel-size"),
        *("--dcp-size", "--decode-context-parallel-size"),
    ),
    frozenset({"1"}),
)
_OFF_VALUES |= {
    "--cuda-graph-backend-prefill": frozenset({"disabled", "breakable"}),
    "--disaggregation-mode": frozenset({"null"}),
}
# Arguments whose batches SGLang's scheduler makes.
SPECULATION = "--speculative-algorithm"
ADAPTERS = "--enable-lora"
CONTEXT = "--context-length"
CHUNK = "--chunked-prefill-size"
POOL = "--max-total-tokens"
_LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"  # else SGLang refuses one
MIXED_CHUNK = "--enable-mixed-chunk"
DRAFT_MODEL = "--speculative-draft-model-path"  # names a model of the models' folder
# Arguments that say which batches have a CUDA graph: without one of them none is captured.
GRAPH_SIZES = frozenset(
    {
        *("--cuda-graph-max-bs", "--cuda-graph-bs"),
        *("--cuda-graph-max-bs-decode", "--cuda-graph-bs-decode"),
    }
)
# Those that say the same of prefill, by tokens, and the one that says how they are captured.
_PREFILL_GRAPH_SIZES = frozenset({"--cuda-graph-max-bs-prefill", "--cuda-graph-bs-prefill"})
_PREFILL_BACKEND = "--cuda-graph-backend-prefill"
ATTENTION_ARGUMENTS = frozenset({"--attention-backend", "--prefill-attention-backend"})
# Arguments that split a prompt's tokens between ranks: this is one of many of the same batch.
CONTEXT_PARALLEL = frozenset(
    {
        *("--attn-cp-size", "--attention-context-parallel-size", "--enable-prefill-cp"),
        *("--enable-prefill-context-parallel", "--enable-nsa-prefill-context-parallel"),
        "--enable-dsa-prefill-context-parallel",
    }
)
_ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "NEXTN"})
# All arguments that a rehearsal looks at, by their full names.
_READ_ARGUMENTS = frozenset(
    {
        *(SPECULATION, ADAPTERS, MIXED_CHUNK, DRAFT_MODEL),
        *(*GRAPH_SIZES, *_PREFILL_GRAPH_SIZES, *ATTENTION_ARGUMENTS, *CONTEXT_PARALLEL),
    }
    | _NOT_REHEARSED.keys()
)


class ModelFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file of the models' folder."""

    source: str  # where the figures are published
    compared: str  # where the same figures were read, or that they were found nowhere
    config: dict[str, Any]  # config.json


class DeploymentLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of `deployments.yaml`: a model on cards with a server's arguments."""

    model: str
    gpu: str = DEFAULT_CARD
    gpus: int = CARDS_OF_A_HOST  # of the host
    arguments: list[str] = []


class Deployment(DeploymentLine):
    """A deployment with its model's configuration, and how a call rehearses it."""

    name: str = ""
    config: dict[str, Any] = {}
    config_file: str = ""  # of a model that has no name here
    thresholds: bool = True  # search the setting at which each finding begins
    all_layers: bool = False  # run those that launch as an earlier one does, too
    options: list[str] = []  # of the call that rehearses it: the release, and what it toggles
    variables: dict[str, str] = {}  # of that call's environment, which SGLang and toggles read

    def get_argument(self, name: str) -> str | None:
        """Return the value of a server argument; None if it is not given."""
        return next((value for argument, value in self._list_words() if argument == name), None)

    def _list_words(self) -> Iterator[tuple[str, str]]:
        """List each word as the name of an argument, with what would be its value."""
        for word, following in itertools.zip_longest(
            self.arguments, self.arguments[1:], fillvalue=""
        ):
            name, has_value, value = word.partition("=")
            yield name, value if has_value else following

    def _list_active_names(self) -> list[str]:
        """List the names of the arguments whose value does not switch them off."""
        return [
            name for name, value in self._list_words() if value not in _OFF_VALUES.get(name, ())
        ]

    def find_argument_of_no_rehearsal(self) -> str:
        """Return the first argument that asks for what nothing here makes; empty without one."""
        return next((name for name in self._list_active_names() if name in _NOT_REHEARSED), "")

    @property
    def splits_context(self) -> bool:
        """Whether the tokens of a prompt are split between ranks."""
        return not CONTEXT_PARALLEL.isdisjoint(self._list_active_names())

    @property
    def has_graphs(self) -> bool:
        """Whether an argument asks for CUDA graphs of decode."""
        return not GRAPH_SIZES.isdisjoint(self.argument_names)

    @property
    def has_prefill_graphs(self) -> bool:
        """Whether an argument asks for CUDA graphs of prefill, in segments between attention."""
        is_asked = not _PREFILL_GRAPH_SIZES.isdisjoint(self.argument_names)
        return is_asked or self.get_argument(_PREFILL_BACKEND) == "breakable"

    @property
    def argument_names(self) -> frozenset[str]:
        return frozenset(word.partition("=")[0] for word in self.arguments)

    @property
    def draft_config(self) -> dict[str, Any]:
        """The config.json of the draft model; empty without a draft model of its own."""
        name = self.get_argument(DRAFT_MODEL)
        return {} if name is None else read_model(name).config

    @property
    def command(self) -> str:
        """The command that rehearses it alone, as it was rehearsed."""
        model = ["--config", self.config_file] if self.config_file else [self.model]
        words = ["./unfix", "rehearse", *model, "--gpu", self.gpu, "--gpus", str(self.gpus)]
        variables = [f"{name}={shlex.quote(value)} " for name, value in self.variables.items()]
        command = shlex.join([*words, *self.options, "--", *self.arguments])
        return f"{''.join(variables)}{command}"

    def make_command(
        self, setting: str, size: int, context: int, model_context: int, spare: int
    ) -> str:
        """Return the command whose batch of a setting has this size, as SGLang takes it.

        A request ends `spare` tokens before its context, so a chunk needs a longer one. One that is
        longer than `model_context` needs a variable.
        """
        added = []
        needed = size + spare if setting in (CONTEXT, CHUNK) else context
        if setting == CHUNK and needed > context:
            added = [CONTEXT, str(needed)]
        value = needed if setting == CONTEXT else size
        command = f"{self.command} {shlex.join([*added, setting, str(value)])}"
        return f"{_LONGER_CONTEXT} {command}" if max(needed, context) > model_context else command


def read_model(name: str) -> ModelFile:
    folder = paths.project_folder() / REHEARSE_FOLDER / "models"
    files = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    if name not in files:
        raise UnfixError(
            f"no model is called {name}{suggest_nearest(name, files)}; `--config FILE` takes any "
            "config.json"
        )
    document = SafeYamlFile(files[name])
    try:
        return msgspec.convert(document.values, ModelFile)
    except msgspec.ValidationError as error:
        raise document.make_error(1, str(error)) from error


def read_deployments() -> dict[str, Deployment]:
    """Read the fixed set, each with its model's configuration."""
    document = SafeYamlFile(paths.project_folder() / REHEARSE_FOLDER / "deployments.yaml")
    try:
        lines = msgspec.convert(document.values, dict[str, DeploymentLine])
    except msgspec.ValidationError as error:
        raise document.make_error(1, str(error)) from error
    return {
        name: check_deployment(
            Deployment(
                *(line.model, line.gpu, line.gpus, line.arguments, name),
                config=read_model(line.model).config,
            )
        )
        for name, line in lines.items()
    }


def make_deployment(
    model: str,
    config_file: Path | None,
    gpu: str | None,
    gpus: int | None,
    arguments: list[str],
) -> Deployment:
    """Make the deployment of a command line."""
    config = read_model(model).config if config_file is None else _read_config(config_file)
    name = " ".join([model, *arguments])
    deployment = Deployment(
        model,
        gpu or DEFAULT_CARD,
        gpus or CARDS_OF_A_HOST,
        arguments,
        name,
        config,
        config_file=str(config_file or ""),
    )
    return check_deployment(deployment)


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise UnfixError(f"--config: {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UnfixError(f"--config: {file} is no JSON: {error}") from error
    if not isinstance(config, dict) or "architectures" not in config:
        raise UnfixError(f"--config: {file} has no `architectures`: it is no model's config.json")
    return config


def _find_full_names(name: str) -> list[str]:
    """Find the arguments that a rehearsal reads and that SGLang's argparse may take a name for."""
    if not name.startswith("--") or name in _READ_ARGUMENTS:
        return []
    return sorted(full for full in _READ_ARGUMENTS if full.startswith(name))


def check_deployment(deployment: Deployment) -> Deployment:
    get_card(deployment.gpu)  # an unknown name ends the call
    for word in deployment.arguments:
        name = word.partition("=")[0]
        if full := _find_full_names(name):
            raise UnfixError(
                f"{deployment.name}: {name} is short for {' or '.join(full)}, which a rehearsal "
                "reads by the full name: write the full name"
            )
    if name := deployment.find_argument_of_no_rehearsal():
        raise UnfixError(
            f"{deployment.name}: {name}: {_NOT_REHEARSED[name]} is not rehearsed: leave it out to "
            "rehearse the rest"
        )
    algorithm = deployment.get_argument(SPECULATION)
    if algorithm is not None and algorithm not in _ALGORITHMS:
        raise UnfixError(
            f"{deployment.name}: {SPECULATION} {algorithm} is not rehearsed; these are: "
            f"{', '.join(sorted(_ALGORITHMS))}"
        )
    if algorithm is not None and (deployment.has_graphs or deployment.has_prefill_graphs):
        graph_arguments = GRAPH_SIZES | _PREFILL_GRAPH_SIZES | {_PREFILL_BACKEND}
        names = sorted(graph_arguments & deployment.argument_names)
        raise UnfixError(
            f"{deployment.name}: CUDA graphs of drafts are not rehearsed: leave "
            f"{', '.join(names)} out to rehearse the rest"
        )
    if DRAFT_MODEL in deployment.argument_names:
        _ = deployment.draft_config  # an unknown name ends the call
    return deployment
