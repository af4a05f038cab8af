"""The settings of a study, and the presets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple

from trimtab.core.checks import check_integer, check_number, check_type, unknown
from trimtab.core.record import Closing
from trimtab_lab.domains import FLOWS, SYNTHETIC
from trimtab_lab.files import plain_name

__all__ = [
    "CALIBRATION_SEED",
    "HOMOGENEOUS",
    "PRESETS",
    "REFERENCE_SEED",
    "SWEPT",
    "Seeds",
    "Study",
    "StudyError",
    "budget_name",
    "preset",
]

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

SWEPT = ("terminal", "stepwise", "periodic", "adaptive:paper", "adaptive:dp")
"""The schedules of the kappa sweep."""

HOMOGENEOUS = "terrain-dome"
"""The domain in which all steps make the same defect, so that timing should not matter."""

CALIBRATION_SEED = 1_000_000
"""The first calibration seed. Evaluation seeds start at 0."""

REFERENCE_SEED = 3_000_000
"""The first seed of the full-projection samples that final samples are compared with as distributions."""


class StudyError(RuntimeError):
    """A study cannot be run, continued or read; the message says why and what to do."""


class Seeds(NamedTuple):
    """The seeds of a domain in a study.

    Attributes:
        calibration: The first calibration seed, and one past the last.
        reference: The same for the full-projection samples that final samples are compared with.
        blocks: The boundaries of the blocks of evaluation seeds, from 0 on.
    """

    calibration: tuple[int, int]
    reference: tuple[int, int]
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """The settings of one study: everything that its rows depend on, except the code.

    Attributes:
        preset: The name of the study.
        domains: Keys of `trimtab_lab.domains.DOMAINS`.
        schedules: Keys of `trimtab_lab.studies.schedules.STUDY_SCHEDULES`.
        budgets: Fractions of T, ascending.
        seeds: Number of evaluation seeds, 0 to seeds - 1.
        block: Seeds per task; a task is one batched rollout.
        calibration_seeds: Number of calibration seeds.
        table_budget: The budget of the tables and of the kappa sweep.
        example_seeds: Rollouts per schedule and budget that are kept for drawings.
        kappas: Values of the kappa sweep; no sweep if empty.
        kappa_domains: The domains of the sweep.
        kappa_seeds: Number of evaluation seeds of the sweep.
        samplers: Records of the domains that are not built in, or have changed settings, by name: their "factory",
            "settings" and "code" (a hash).
        closing: "paid" if the budget includes the closing projection, "free" if it does not, as in the paper.
        exceptions: Settings that differ for some domains, by name: "seeds", "block", "calibration_seeds", "budgets" or
            "schedules"; seeds and budgets are fewer than the study's. Their final samples are not compared as
            distributions.
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
    closing: Closing = "free"
    exceptions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    base_schedules: ClassVar = ("terminal", "stepwise", "periodic")

    def __post_init__(self) -> None:
        """Check the settings: they may come from a file."""
        check_type(self.preset, str, "the preset of a study")
        for name in ("domains", "schedules", "kappa_domains"):
            for one in check_type(getattr(self, name), tuple, f"{name} of a study"):
                check_type(one, str, f"each of the {name} of a study")
        for name in ("budgets", "kappas"):
            for value in check_type(getattr(self, name), tuple, f"{name} of a study"):
                check_number(value, f"each of the {name} of a study", 0, 1)
        for name in (*self.domains, *self.kappa_domains):
            plain_name(name, "the name of a domain")
        for name, record in check_type(self.samplers, Mapping, "samplers of a study").items():  # type: ignore[type-abstract]
            check_type(record, Mapping, f"the record of {name}")  # type: ignore[type-abstract]
        if not self.domains or len(set(self.domains)) != len(self.domains):
            raise ValueError(f"a study needs domains, each named once: got {list(self.domains)}")
        if self.closing not in ("paid", "free"):
            raise ValueError(f"the closing projection of a study must be 'paid' or 'free': got {self.closing!r}")
        if list(self.budgets) != sorted(set(self.budgets)) or not self.budgets:
            raise ValueError(f"budgets must be fractions of T in ascending order: got {list(self.budgets)}")
        if self.table_budget not in self.budgets:
            raise ValueError(f"the table's budget {self.table_budget} is not one of {list(self.budgets)}")
        for name in ("seeds", "block", "calibration_seeds", "kappa_seeds"):
            check_integer(getattr(self, name), f"{name} of a study")
        for name, differs in check_type(self.exceptions, Mapping, "exceptions of a study").items():  # type: ignore[type-abstract]
            unknown_names = set(differs) - {"seeds", "block", "calibration_seeds", "budgets", "schedules"}
            fewer = set(differs.get("budgets", ())) <= set(self.budgets) and differs.get("seeds", 1) <= self.seeds
            if (
                unknown_names
                or not fewer
                or not set(self.base_schedules) <= set(differs.get("schedules", self.schedules))
            ):
                raise ValueError(
                    f"the exceptions of {name} must be fewer seeds or budgets, or schedules with terminal, stepwise "
                    f"and periodic among them: got {differs}"
                )
        most = min(self.seeds, self.block)
        check_integer(self.example_seeds, "example_seeds, which are in the first block of seeds,", 0, most)
        missing = set(self.base_schedules) - set(self.schedules)
        if missing:
            raise ValueError(
                f"a study needs terminal, stepwise and periodic to compare with; {sorted(missing)} missing"
            )

    def only(self, domains: tuple[str, ...]) -> Study:
        """Return the same study on some domains, in the order of the full one."""
        order = [*self.domains, *(d for d in domains if d not in self.domains)]
        return replace(
            self,
            domains=tuple(d for d in order if d in domains),
            kappa_domains=tuple(d for d in self.kappa_domains if d in domains),
            exceptions={d: differs for d, differs in self.exceptions.items() if d in domains},
        )

    def origin(self, domain: str) -> str:
        """Return the record of a domain as JSON text; "" for a built-in domain with its own settings."""
        return json.dumps(self.samplers[domain], sort_keys=True) if domain in self.samplers else ""

    def budgets_of(self, domain: str) -> tuple[float, ...]:
        """Return the budgets that a domain is run at."""
        return tuple(self.exceptions.get(domain, {}).get("budgets", self.budgets))

    def schedules_of(self, domain: str) -> tuple[str, ...]:
        """Return the schedules that a domain is run with."""
        return tuple(self.exceptions.get(domain, {}).get("schedules", self.schedules))

    @property
    def all_schedules(self) -> tuple[str, ...]:
        """The schedules of all domains."""
        return tuple(
            dict.fromkeys(key for keys in (self.schedules, *map(self.schedules_of, self.domains)) for key in keys)
        )

    def seeds_of(self, domain: str, number: int) -> Seeds:
        """Return the seeds of a domain: `number` evaluation seeds, or fewer for an exception, and the usual others."""
        differs = self.exceptions.get(domain, {})
        number = min(number, differs.get("seeds", number))
        return Seeds(
            calibration=(CALIBRATION_SEED, CALIBRATION_SEED + differs.get("calibration_seeds", self.calibration_seeds)),
            reference=(REFERENCE_SEED, REFERENCE_SEED + number),
            blocks=(*range(0, number, differs.get("block", self.block)), number),
        )

    def facts(self) -> dict[str, Any]:
        """Return the settings as JSON."""
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
        """Return the study of a `summary.json`, whose configuration also names the code."""
        return cls.from_facts({name: value for name, value in summary["config"].items() if name != "code"})


_KAPPAS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95)

_PLAIN = ("terminal", "stepwise", "periodic", "adaptive:paper")
_RAMP, _REPLICA, _FLOW = (tuple(f"{name}-{kind}" for name in SYNTHETIC) for kind in ("ramp", "replica", "flow"))
_SPHERE = ("se3-sphere", "se3-lever-sphere")
_ONE_ROW: dict[str, Any] = {"budgets": (0.0, 0.25, 1.0), "schedules": _PLAIN}
_PDM = {
    "seeds": 16,
    "block": 16,
    "calibration_seeds": 16,
    "budgets": (0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
    "schedules": (*_PLAIN, "first", "window", "planned"),
}

PRESETS: dict[str, Study] = {
    "main": Study(
        "main",
        domains=(*_RAMP, *_REPLICA, *SYNTHETIC, *_FLOW, *_SPHERE, HOMOGENEOUS, "pdm"),
        schedules=(*_PLAIN, "adaptive:dp", "trimtab"),
        seeds=256,
        block=256,
        example_seeds=8,
        kappa_domains=(),
        exceptions={
            **{name: {"schedules": (*_PLAIN, "adaptive:dp")} for name in _REPLICA},
            **dict.fromkeys((*SYNTHETIC, *_FLOW, *_SPHERE), _ONE_ROW),
            HOMOGENEOUS: _ONE_ROW | {"schedules": (*_PLAIN, "adaptive:dp")},
            "pdm": _PDM,
        },
    ),
    "tiny": Study(
        "tiny",
        domains=("so3", "terrain-ridge"),
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
        budgets=(0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
        seeds=8,
        block=8,
        calibration_seeds=16,
        kappas=(0.0, 0.1, 0.3, 0.8),
        kappa_seeds=8,
    ),
    "paper": Study("paper", domains=(*SYNTHETIC, *FLOWS), kappas=_KAPPAS),
    "large": Study("large", seeds=256, block=64, calibration_seeds=256, kappas=_KAPPAS, kappa_seeds=64),
}
"""`main` is the default: every table and figure of the paper in a few minutes. Its dynamics are ramps, chosen before
any comparison, with the fitted replicas; Langevin dynamics and constant speed are counter-examples at the table's
budget. `paper` is the paper's protocol on all dynamics."""


def preset(name: str) -> Study:
    """Return a preset by name.

    Example:
        >>> study = preset("paper")
        >>> len(study.budgets) * study.seeds
        336
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def budget_name(budget: float) -> str:
    """Return a budget as summaries and pages write it.

    Example:
        >>> budget_name(0.25), budget_name(1)
        ('0.25', '1.00')
    """
    return f"{check_number(budget, 'a budget, a fraction of T,', 0, 1):.2f}"
