"""What a study runs: the protocol and its presets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from trimtab.core.budget import Unit
from trimtab.core.checks import check_integer, check_number, check_type, unknown
from trimtab.core.files import plain_name
from trimtab.core.record import Closing
from trimtab.evaluation.domains import FLOWS, SYNTHETIC

__all__ = ["CALIBRATION_SEED", "PRESETS", "REFERENCE_SEED", "SWEPT", "Study", "budget_name", "preset"]

GRID = tuple(i / 20 for i in range(21))
SCHEDULES = (
    "terminal",
    "stepwise",
    "periodic",
    "adaptive:paper",
    "adaptive:on-policy",
    "adaptive:dp",
    "planned",
    "hindsight",
)

QUICK = SCHEDULES
SWEPT = ("terminal", "stepwise", "periodic", "adaptive:paper", "adaptive:dp")
"""The schedules of the kappa sweep: what was, and what is proposed instead."""

ITERATED = ("terminal", "stepwise", "periodic", "inexact", "repeat", "raced")
"""The schedules of a study in iterations."""

CALIBRATION_SEED = 1_000_000
"""Calibration seeds count from here, evaluation seeds from 0."""

REFERENCE_SEED = 3_000_000
"""And from here those of full projection that final samples are compared with as distributions."""


class Seeds(NamedTuple):
    """The seeds of a domain in a study.

    Attributes:
        calibration: The first calibration seed, and one past the last.
        reference: The same of the seeds of full projection that final samples are compared with.
        blocks: Where the blocks of evaluation seeds begin, from 0, and where the last one ends.
    """

    calibration: tuple[int, int]
    reference: tuple[int, int]
    blocks: tuple[int, ...]


def _is_said_of_a_sampler(item: tuple[object, object]) -> bool:
    name, said = item
    if not isinstance(name, str) or not isinstance(said, Mapping) or not isinstance(said.get("factory", ""), str):
        return False
    return "seeds" not in said or _are_seeds(said["seeds"])


def _are_seeds(said: object) -> bool:
    """Whether this is what a record says of the seeds of samples that belong together."""
    if not isinstance(said, Mapping) or set(said) != set(Seeds._fields):
        return False
    rising = all(
        isinstance(several, list | tuple)
        and len(several) > 1
        and all(type(one) is int for one in several)
        and all(low < high for low, high in pairwise(several))
        for several in said.values()
    )
    return rising and said["blocks"][0] == 0 and len(said["calibration"]) == len(said["reference"]) == 2


@dataclass(frozen=True)
class Study:
    """One study, whole: everything its rows depend on besides the code.

    Attributes:
        preset: The name it goes by.
        domains: Keys of `trimtab.evaluation.domains.DOMAINS`.
        schedules: Keys of `trimtab.evaluation.studies.schedules.STUDY_SCHEDULES`.
        budgets: Fractions of T, ascending.
        seeds: Number of evaluation seeds, 0 to seeds - 1.
        block: Seeds a task; a task is one batched rollout.
        calibration_seeds: Number of calibration seeds.
        table_budget: Of the tables and of the kappa sweep.
        example_seeds: Rollouts a schedule and budget that are kept to look at.
        kappas: Values of the kappa sweep; none switches it off.
        kappa_domains: The domains that are swept.
        kappa_seeds: Number of evaluation seeds of the sweep.
        samplers: Those of `domains` that are the user's own (or have settings of their own), by name: their "factory",
            "settings", and "code", a hash by which other versions are told apart; where samples belong together, also
            "seeds", ranges that hold whole groups (`trimtab.evaluation.studies.whole_groups`).
        unit: What budgets count. Of "projection"s they are fractions of T; of "iteration"s, fractions of those that
            full projection takes on the same samples.
        closing: Whether the closing projection is "paid" from the budget, for equal total cost, or "free" and apart, as
            the paper counts.
    """

    preset: str
    domains: tuple[str, ...] = SYNTHETIC
    schedules: tuple[str, ...] = SCHEDULES
    budgets: tuple[float, ...] = GRID
    seeds: int = 16
    block: int = 16
    calibration_seeds: int = 64
    table_budget: float = 0.25
    example_seeds: int = 2
    kappas: tuple[float, ...] = ()
    kappa_domains: tuple[str, ...] = SYNTHETIC
    kappa_seeds: int = 16
    samplers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    unit: Unit = "projection"
    closing: Closing = "free"

    def __post_init__(self) -> None:
        """Refuse a study that could not be summarised; one may come from a file."""
        check_type(self.preset, str, "the preset of a study")
        for name in ("domains", "schedules", "kappa_domains"):
            several = check_type(getattr(self, name), tuple, f"{name} of a study")
            for one in several:
                check_type(one, str, f"each of the {name} of a study")
        for name in ("budgets", "kappas"):
            for value in check_type(getattr(self, name), tuple, f"{name} of a study"):
                check_number(value, f"each of the {name} of a study", 0, 1)
        for name in (*self.domains, *self.kappa_domains):
            plain_name(name, "the name of a domain")
        if not isinstance(self.samplers, Mapping) or not all(map(_is_said_of_a_sampler, self.samplers.items())):
            raise TypeError(f"samplers of a study are facts by name, 'factory' among them: got {self.samplers!r:.60}")
        for name, said in self.samplers.items():
            if "seeds" in said and said["seeds"]["blocks"][-1] != self.seeds:
                raise ValueError(
                    f"the blocks of {name} end at {said['seeds']['blocks'][-1]}, its seeds at {self.seeds}"
                )
        if not self.domains or len(set(self.domains)) != len(self.domains):
            raise ValueError(f"a study needs domains, each named once: got {list(self.domains)}")
        if self.unit not in get_args(Unit):
            raise ValueError(f"the unit of a study is 'projection' or 'iteration': got {self.unit!r}")
        if self.closing not in ("paid", "free") or (self.closing == "paid" and self.unit == "iteration"):
            raise ValueError(
                "the closing projection of a study is 'paid' or 'free', and 'free' where budgets count iterations: got "
                f"{self.closing!r} with budgets of {self.unit}s"
            )
        if list(self.budgets) != sorted(set(self.budgets)) or not self.budgets:
            raise ValueError(f"budgets are fractions of T in ascending order: got {list(self.budgets)}")
        if self.table_budget not in self.budgets:
            raise ValueError(f"the table's budget {self.table_budget} is not one of {list(self.budgets)}")
        for name in ("seeds", "block", "calibration_seeds", "kappa_seeds"):
            check_integer(getattr(self, name), f"{name} of a study")
        most = min(self.seeds, self.block)
        check_integer(self.example_seeds, "example_seeds, which are in the first block of seeds,", 0, most)
        missing = {"terminal", "stepwise", "periodic"} - set(self.schedules)
        if missing:
            raise ValueError(
                f"a study needs terminal, stepwise and periodic to compare with; {sorted(missing)} missing"
            )

    def in_iterations(self) -> Study:
        """The same study with budgets that count iterations, on the schedules that spend those; no kappa sweep."""
        return replace(self, unit="iteration", schedules=ITERATED, kappas=(), kappa_domains=())

    def only(self, domains: tuple[str, ...]) -> Study:
        """The same study on some domains, in the order of the full one."""
        order = [*self.domains, *(d for d in domains if d not in self.domains)]
        chosen = tuple(d for d in order if d in domains)
        return replace(self, domains=chosen, kappa_domains=tuple(d for d in self.kappa_domains if d in domains))

    def origin(self, domain: str) -> str:
        """Where a domain comes from, as JSON text; "" for a built-in one."""
        return json.dumps(self.samplers[domain], sort_keys=True) if domain in self.samplers else ""

    def seeds_of(self, domain: str, number: int) -> Seeds:
        """The seeds of a domain: those that its record names, or `number` in blocks, and the usual ones beside them."""
        said = self.samplers.get(domain, {}).get("seeds")
        if said is not None:
            return Seeds(**{name: tuple(several) for name, several in said.items()})
        return Seeds(
            calibration=(CALIBRATION_SEED, CALIBRATION_SEED + self.calibration_seeds),
            reference=(REFERENCE_SEED, REFERENCE_SEED + number),
            blocks=(*range(0, number, self.block), number),
        )

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Study:
        """Read what `facts` wrote."""
        known = {f.name for f in fields(cls)}
        if not known >= set(facts):
            raise ValueError(f"not a study of this version: unknown settings {sorted(set(facts) - known)}")
        settings: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()}
        return cls(**settings)

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any]) -> Study:
        """The study of a `summary.json`, whose configuration also names the code that ran it."""
        return cls.from_facts({name: value for name, value in summary["config"].items() if name != "code"})


_KAPPAS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95)

PRESETS: dict[str, Study] = {
    "tiny": Study(
        "tiny",
        domains=("so3", "terrain-ridge"),
        schedules=QUICK,
        budgets=(0.0, 0.25, 0.5, 1.0),
        seeds=3,
        block=2,
        calibration_seeds=8,
        example_seeds=1,
        kappas=(0.0, 0.3),
        kappa_domains=("so3",),
        kappa_seeds=2,
    ),
    "quick": Study(
        "quick",
        schedules=QUICK,
        budgets=(0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
        seeds=8,
        block=8,
        calibration_seeds=16,
        kappas=(0.0, 0.1, 0.3, 0.8),
        kappa_seeds=8,
    ),
    "paper": Study("paper", domains=(*SYNTHETIC, *FLOWS), kappas=_KAPPAS),
    "large": Study(
        "large", seeds=256, block=64, calibration_seeds=256, kappas=_KAPPAS, kappa_seeds=64, example_seeds=2
    ),
}
"""`paper` is the paper's protocol; the others differ from it in numbers, and small ones leave out the learned value."""


def preset(name: str) -> Study:
    """A preset by name.

    Example:
        >>> study = preset("paper")
        >>> len(study.budgets) * study.seeds
        336
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def budget_name(budget: float) -> str:
    """A budget as summaries and pages name it.

    Example:
        >>> budget_name(0.25), budget_name(1)
        ('0.25', '1.00')
    """
    return f"{check_number(budget, 'a budget, a share of T,', 0, 1):.2f}"
