"""Run diffusers' own scheduler tests bare and with every scheduler wrapped: `python tools/diffusers_suite.py CHECKOUT`.

CHECKOUT is a clone of diffusers, or any folder with its `tests/schedulers`. The constraint changes nothing, so a test
that passes bare must pass wrapped. Tests whose scheduler `wrap` does not take are counted separately. This file is also
the pytest plugin of the two runs, each of which writes its results to a file.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

WRAPPED, RESULTS = "TRIMTAB_SUITE_WRAPPED", "TRIMTAB_SUITE_RESULTS"
"""Environment variables that tell the plugin whether to wrap, and where to write."""


def main() -> int:
    """Run both and print how they compare; return 1 if wrapping broke a test or nothing was wrapped."""
    parser = argparse.ArgumentParser(prog="python tools/diffusers_suite.py", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a folder with tests/schedulers in it")
    parser.add_argument("--only", help="tests whose names match, as pytest's -k takes them")
    arguments = parser.parse_args()
    tests = arguments.checkout / "tests" / "schedulers"
    if not any(tests.glob("test_*.py")):
        parser.error(f"{tests} has no test files: give the folder of a clone of huggingface/diffusers")
    bare, wrapped = (outcomes(tests, arguments.only, wrapping) for wrapping in (False, True))
    return report(bare, wrapped)


def outcomes(tests: Path, only: str | None, wrapping: bool) -> dict[str, Any]:
    """Return the outcome of each test by name, why `wrap` did not take a scheduler, and how many were wrapped."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "diffusers_suite", "-p", "no:cacheprovider"]
        command += ["-W", "ignore", "--tb=no", "-rN", "--no-header", "--rootdir", str(tests.parents[1])]
        command += ["-o", "addopts=", "-c", os.devnull, str(tests), *(["-k", only] if only else [])]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        more = {WRAPPED: str(int(wrapping)), RESULTS: str(results), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        print(f"{'wrapped' if wrapping else 'bare'}: {tests}", flush=True)
        ended = subprocess.run(command, env=os.environ | more, cwd=tests.parents[1], check=False)
        if not results.exists():
            raise RuntimeError(f"pytest ended with {ended.returncode} and wrote no results")
        found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        return found


def report(bare: dict[str, Any], wrapped: dict[str, Any]) -> int:
    """Print the numbers; return 1 if a test broke."""
    passed = [name for name, outcome in bare["tests"].items() if outcome == "passed"]
    refused = {name: wrapped["refused"][name] for name in passed if name in wrapped["refused"]}
    served = [name for name in passed if name not in refused]
    broken = [name for name in served if wrapped["tests"].get(name) != "passed"]
    print(f"diffusers {bare['version']}, {len(bare['tests'])} tests, {wrapped['n_wrapped']} schedulers wrapped in them")
    print(f"pass bare:                         {len(passed)}")
    print(f"refused by name when wrapped:      {len(refused)}")
    for reason, count in sorted(Counter(refused.values()).items()):
        print(f"  {count:4} {reason}")
    print(f"pass wrapped, of the other {len(served):6}: {len(served) - len(broken)}")
    print(f"pass bare and fail wrapped:        {len(broken)}")
    print("".join(f"  {name}\n" for name in broken), end="")
    return int(bool(broken) or not served or not wrapped["n_wrapped"])


# ------------------------------------------------------------------ the plugin


def pytest_configure(config: Any) -> None:
    """Wrap every scheduler class, if asked to, before test files are imported."""
    if RESULTS in os.environ:
        config.pluginmanager.register(Notes())


class Notes:
    """Record the outcome of each test, and which schedulers `wrap` did not take."""

    def __init__(self) -> None:
        """Wrap the classes if asked to."""
        self.tests: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.n_wrapped = 0
        self.now = ""
        if os.environ[WRAPPED] == "1":
            wrap_every_class(self)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember which test runs."""
        self.now = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record the outcome; set-up and tear-down count only if they fail."""
        if report.when == "call" or report.outcome != "passed":
            before = self.tests.get(report.nodeid, "passed")
            self.tests[report.nodeid] = report.outcome if before == "passed" else before

    def pytest_sessionfinish(self) -> None:
        """Write the results."""
        import diffusers

        found = {"version": diffusers.__version__, "tests": self.tests, "refused": self.refused}
        Path(os.environ[RESULTS]).write_text(json.dumps(found | {"n_wrapped": self.n_wrapped}), encoding="utf-8")


def wrap_every_class(notes: Notes) -> None:
    """Make every scheduler that is created from now on a wrapped one."""
    from diffusers import schedulers

    import trimtab as tt
    from trimtab.integrations.diffusers import wrap

    nowhere = tt.as_constraint(lambda x: x, lambda x: x.new_zeros(len(x)))

    def wrapping(cls: type) -> Any:
        plain = cls.__init__  # type: ignore[misc]

        @functools.wraps(plain)
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            if type(self) is not cls:
                return  # a subclass, which is wrapped by its own __init__
            try:
                self.__class__ = type(wrap(self, nowhere, tt.Stepwise()))
            except ValueError as reason:
                notes.refused.setdefault(notes.now, str(reason).split(",")[0])
                raise
            notes.n_wrapped += 1

        return make

    for cls in {thing for name in dir(schedulers) if isinstance(thing := getattr(schedulers, name), type)}:
        if cls.__name__.endswith("Scheduler") and hasattr(cls, "config_name"):
            cls.__init__ = wrapping(cls)  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
