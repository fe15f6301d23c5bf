"""Runs the jobs of a GitHub workflow here: its shell steps, and a composite action beside it.

GitHub's own actions are played: artifacts are folders, a cache never hits, checkouts are there
already. Any other action, and any expression that is not understood, is an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
PLAYED = ("actions/checkout", "actions/setup-python", "actions/cache/")


class FailedStep(Exception):
    """A step ended with another code than 0; the message has its output."""


class WorkflowRunner:
    """A machine of GitHub for one job after the other, with a fresh working folder for each."""

    def __init__(self, folder: Path, checkouts: Mapping[str, Path], action: dict[str, Any]) -> None:
        self.folder = folder
        self.checkouts = checkouts  # by the name that the workflow gives them
        self.action = action
        self.variables: dict[str, str] = {}
        self.ran: list[str] = []  # the names of the steps with a script
        self.failures: list[str] = []

    def run_job(self, name: str, job: Mapping[str, Any], values: dict[str, str]) -> dict[str, str]:
        """Run a job; return its outputs. A failed step leaves out those that are not `always()`."""
        workspace = self.folder / name
        workspace.mkdir(parents=True)
        for word, place in self.checkouts.items():
            shutil.copytree(place, workspace / word, symlinks=True)
        values = dict(values)
        variables = _fill_all({**self.variables, **job.get("env", {})}, values)
        self._run_steps(job["steps"], workspace, values, variables)
        return _fill_all(job.get("outputs", {}), values)

    def _run_steps(
        self,
        steps: list[dict[str, Any]],
        workspace: Path,
        values: dict[str, str],
        variables: dict[str, str],
    ) -> None:
        has_failed = False
        # A step that is left out has no outputs; one that is not there is an error.
        texts = json.dumps(steps)
        for name, output in re.findall(r"steps\.([\w-]+)\.outputs\.([\w-]+)", texts):
            assert name in {step.get("id") for step in steps}, name
            values.setdefault(f"steps.{name}.outputs.{output}", "")
        for step in steps:
            condition = str(step.get("if", "success()"))
            if not _is_true(condition, values) or (has_failed and "always()" not in condition):
                continue
            try:
                self._run_step(step, workspace, values, variables)
            except FailedStep as failure:
                has_failed = True
                self.failures.append(str(failure))

    def _run_step(
        self,
        step: dict[str, Any],
        workspace: Path,
        values: dict[str, str],
        variables: dict[str, str],
    ) -> None:
        inputs = _fill_all(step.get("with", {}), values)
        uses = step.get("uses", "")
        if "run" in step:
            self._run_script(step, workspace, values, variables)
        elif uses == "./unfix":
            self._run_action(inputs, workspace, values, variables)
        elif uses.startswith("actions/upload-artifact@"):
            shutil.copytree(workspace / inputs["path"], self.folder / "artifacts" / inputs["name"])
        elif uses.startswith("actions/download-artifact@"):
            into = workspace / inputs["path"]
            if "name" in inputs:
                shutil.copytree(self.folder / "artifacts" / inputs["name"], into)
            else:
                for artifact in (self.folder / "artifacts").glob(inputs["pattern"]):
                    shutil.copytree(artifact, into / artifact.name)
        elif not uses.startswith(PLAYED):
            raise ValueError(f"no part of GitHub that is played here: {uses}")

    def _run_action(
        self,
        given: dict[str, str],
        workspace: Path,
        values: dict[str, str],
        variables: dict[str, str],
    ) -> None:
        inputs = {
            f"inputs.{name}": given.get(name, one.get("default", ""))
            for name, one in self.action["inputs"].items()
        }
        own = {**inputs, "github.action_path": str(workspace / "unfix")}
        before = len(self.failures)
        self._run_steps(self.action["runs"]["steps"], workspace, own, variables)
        if len(self.failures) > before:
            raise FailedStep(f"the action: {self.failures.pop()}")

    def _run_script(
        self,
        step: dict[str, Any],
        workspace: Path,
        values: dict[str, str],
        variables: dict[str, str],
    ) -> None:
        name = step.get("name") or step["id"]
        self.ran.append(name)
        output = self.folder / "output"
        output.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=workspace / step.get("working-directory", "."),
            env={
                **os.environ,
                **variables,
                **_fill_all(step.get("env", {}), values),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(workspace / "summary"),
            },
            capture_output=True,
            text=True,
        )
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{key}"] = value
        if done.returncode:
            raise FailedStep(f"{name}: {done.returncode}\n{done.stdout}\n{done.stderr}")


def _fill_all(texts: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, str]:
    return {
        name: EXPRESSION.sub(lambda found: values[found[1]], _write_value(text))
        for name, text in texts.items()
    }


def _write_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_true(condition: str, values: Mapping[str, str]) -> bool:
    """Evaluate `a == 'x' && b != 'y'`, `always()` and `success()`."""
    for part in condition.split("&&"):
        if part.strip() in ("always()", "success()"):
            continue
        left, sign, right = part.split()
        if (values[left] == right.strip("'")) is not (sign == "=="):
            return False
    return True
