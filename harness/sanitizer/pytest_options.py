"""`python -m pytest --sanitize=bounds,races`: the options, and what they begin.

pytest imports this module in every run of a Python that has unfix installed (entry point
`pytest11`), so nothing is imported here but pytest itself. Under `unfix exec --check` it comes with
the module of `-p unfix_check` (`harness/startup`), which requests the checks without an option.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

_REQUESTING_PLUGIN = "unfix_check"
_OPTION, _PREFIX = "sanitize", "sanitize_"


_MARKER = (
    "sanitize(bounds='storage', kernels=()): with --sanitize, pointers of the test's kernels, or "
    "of these, may reach the whole storage that their tensor is a view of"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


def _read_checks(words: str) -> str:
    """Read the option's value, which may be the path behind a plain `--sanitize`."""
    if Path(words.partition("::")[0]).exists():
        from harness.sanitizer.violations.kinds import CHECK_NAMES

        if words not in CHECK_NAMES:
            raise argparse.ArgumentTypeError(
                f"{words} is no check: write --sanitize=all, or {words} in front of --sanitize"
            )
    return words


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("unfix", "kernels under check")
    group.addoption(
        "--sanitize",
        nargs="?",
        const="all",
        type=_read_checks,
        metavar="CHECKS",
        help="run each test with its Triton kernels under these checks: bounds, overflow, races, "
        "uninitialized, or all (default); a report fails the test. bounds=storage: a pointer may "
        "reach the whole storage that its tensor is a view of",
    )
    group.addoption(
        "--sanitize-device",
        choices=("cpu", "cuda", "virtual"),
        help="where kernels run: on this machine's GPU, or compiled for its CPU behind a virtual "
        "GPU or none (default: cuda where there is one, else virtual)",
    )
    group.addoption("--sanitize-card", metavar="NAME", help="the virtual card: H100, H200, B200")
    group.addoption(
        "--sanitize-exact",
        action="store_true",
        help="refuse approximate instructions, whose bits depend on the GPU",
    )
    group.addoption(
        "--sanitize-max-reports",
        type=int,
        metavar="N",
        help="reports of one test, which then ends (16)",
    )
    group.addoption(
        "--sanitize-all-configurations",
        action="store_true",
        help="run every autotune configuration, not the first alone",
    )
    group.addoption(
        "--sanitize-timeout",
        type=float,
        metavar="SECONDS",
        help="how long a test may take, its setup and its teardown apart; what is compiled "
        "meanwhile does not count",
    )
    group.addoption(
        "--sanitize-baseline",
        type=Path,
        metavar="FILE",
        help="known reports that fail no test, each with a reason; written where it does not exist",
    )
    group.addoption("--sanitize-record", type=Path, metavar="FILE", help="all of it as JSON")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install the device before a conftest can ask for one."""
    options = vars(early_config.known_args_namespace)
    is_requested = early_config.pluginmanager.hasplugin(_REQUESTING_PLUGIN)
    if options[_OPTION] is None and not is_requested:
        alone = [name for name, value in options.items() if name.startswith(_PREFIX) and value]
        if alone:
            raise pytest.UsageError(f"--{alone[0].replace('_', '-')} needs --sanitize")
        return
    from harness.core import paths
    from harness.core.errors import UnfixError
    from harness.core.missing_package import describe_missing_package

    if not is_requested and not paths.is_checkout():
        # Compiled kernels go to the user's cache, not into the folder of the project under test.
        os.environ.setdefault("UNFIX_HOME", str(paths.user_cache_folder()))
    try:
        from harness.sanitizer.watch.pytest_plugin import CheckPlugin

        plugin = CheckPlugin(early_config)
    except ModuleNotFoundError as error:
        raise pytest.UsageError(f"unfix: {describe_missing_package(error)}") from error
    except UnfixError as error:
        raise pytest.UsageError(f"unfix: {error}") from error
    early_config.pluginmanager.register(plugin, "unfix-check")
