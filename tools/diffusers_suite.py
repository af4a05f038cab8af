"""Run diffusers' own scheduler tests bare and with every scheduler wrapped: `python tools/diffusers_suite.py CHECKOUT`.

CHECKOUT is a clone of diffusers, or any folder with its `tests/schedulers`. The constraint changes nothing, so that a
test that passes bare must pass wrapped. A test that makes a scheduler which `wrap` refuses by name is counted apart.
The file is its own pytest plugin: each of the two rounds runs in a process of its own, and writes what it found.
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
"""Environment variables that tell the plugin what to do."""


def main() -> int:
    """Run both rounds and say how they compare; 1 if wrapping broke a test, or if nothing was wrapped."""
    parser = argparse.ArgumentParser(prog="python tools/diffusers_suite.py", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a folder with tests/schedulers in it")
    parser.add_argument("--only", help="tests whose names match, as pytest's -k takes them")
    arguments = parser.parse_args()
    tests = arguments.checkout / "tests" / "schedulers"
    if not any(tests.glob("test_*.py")):
        parser.error(f"{tests} holds no test files: give the folder that a clone of huggingface/diffusers made")
    bare, wrapped = (outcomes(tests, arguments.only, wrap_them) for wrap_them in (False, True))
    return tell(bare, wrapped)


def outcomes(tests: Path, only: str | None, wrap_them: bool) -> dict[str, Any]:
    """What pytest made of each test, by name, why a scheduler was refused in it, and how many were wrapped."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "diffusers_suite", "-p", "no:cacheprovider"]
        command += ["-W", "ignore", "--tb=no", "-rN", "--no-header", "--rootdir", str(tests.parents[1])]
        command += ["-o", "addopts=", "-c", os.devnull, str(tests), *(["-k", only] if only else [])]
        where = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        told = {WRAPPED: str(int(wrap_them)), RESULTS: str(results), "PYTHONPATH": where, "HF_HUB_OFFLINE": "1"}
        print(f"{'wrapped' if wrap_them else 'bare'}: {tests}", flush=True)
        ended = subprocess.run(command, env=os.environ | told, cwd=tests.parents[1], check=False)
        if not results.exists():
            raise RuntimeError(f"pytest ended with {ended.returncode} before it had any result")
        found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        return found


def tell(bare: dict[str, Any], wrapped: dict[str, Any]) -> int:
    """Print the figures."""
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
    for name in broken:
        print(f"  {name}")
    return int(bool(broken) or not served or not wrapped["n_wrapped"])


# ------------------------------------------------------------------ the plugin


def pytest_configure(config: Any) -> None:
    """Wrap every scheduler class, if asked to, before a test file is imported."""
    if RESULTS in os.environ:
        config.pluginmanager.register(Notes())


class Notes:
    """Keeps what became of each test, and which schedulers were refused in it."""

    def __init__(self) -> None:
        """At the beginning of a round."""
        self.tests: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.n_wrapped = 0
        self.now = ""
        if os.environ[WRAPPED] == "1":
            wrap_every_class(self)

    def served(self) -> None:
        """A scheduler was wrapped."""
        self.n_wrapped += 1

    def refuse(self, reason: str) -> None:
        """In the present test, a scheduler was refused."""
        self.refused.setdefault(self.now, reason)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.now = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A phase of a test is over; setting up and tearing down count only if they fail."""
        if report.when == "call" or report.outcome != "passed":
            before = self.tests.get(report.nodeid, "passed")
            self.tests[report.nodeid] = report.outcome if before == "passed" else before

    def pytest_sessionfinish(self) -> None:
        """The round is over."""
        import diffusers

        found = {"version": diffusers.__version__, "tests": self.tests, "refused": self.refused}
        found["n_wrapped"] = self.n_wrapped
        Path(os.environ[RESULTS]).write_text(json.dumps(found), encoding="utf-8")


def wrap_every_class(notes: Notes) -> None:
    """Make every scheduler that is made from now on a wrapped one, however it is made."""
    from diffusers import schedulers

    import trimtab as tt
    from trimtab.integrations.diffusers import wrap

    nowhere = tt.as_constraint(lambda x: x, lambda x: x.new_zeros(len(x)))

    def wrapping(cls: type) -> Any:
        @functools.wraps(cls.__init__)  # type: ignore[misc]
        def make(self: Any, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            if type(self) is not cls:
                return  # of a class made from this one, which is wrapped when that is done
            try:
                self.__class__ = type(wrap(self, nowhere, tt.Stepwise()))
            except ValueError as reason:
                notes.refuse(str(reason).split(",")[0])
                raise
            notes.served()

        plain = cls.__init__  # type: ignore[misc]
        return make

    for cls in {thing for name in dir(schedulers) if isinstance(thing := getattr(schedulers, name), type)}:
        if name_of_scheduler(cls):
            cls.__init__ = wrapping(cls)  # type: ignore[misc]


def name_of_scheduler(cls: type) -> bool:
    """Whether this is a class of schedulers, and not of their outputs."""
    return cls.__name__.endswith("Scheduler") and hasattr(cls, "config_name")


if __name__ == "__main__":
    sys.exit(main())
