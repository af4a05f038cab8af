from __future__ import annotations

import torch

import trimtab as tt
from cases import Sphere
from trimtab.integrations.loggers import to_mlflow, to_tensorboard, to_wandb


def two_runs(on_step):
    corrector = tt.Corrector(Sphere(), tt.Periodic(1), 3, on_step=on_step)
    records = []
    for _ in range(2):
        x = torch.full((2, 3), 0.5)
        for t in range(3):
            x = corrector(x * 1.3, t)
        records.append(corrector.rollout)
    return records


class Logged(list):
    """Takes calls as the three loggers do."""

    def add_scalar(self, tag, value, step):
        self.append((step, {tag: value}))

    def log(self, values):
        self.append(values)

    def log_metrics(self, values, step):
        self.append((step, values))


def means(records):
    for run in records:
        for t in range(3):
            yield {
                "defect": float(run.defects[t].mean()),
                "residual": float(run.residuals[t].mean()),
                "projected": float(run.projected[t].float().mean()),
            }


def test_mlflow_and_tensorboard_count_steps_over_runs():
    logged = Logged()
    expected = list(enumerate({f"run/{k}": v for k, v in m.items()} for m in means(two_runs(to_mlflow(logged, "run")))))
    assert logged == expected
    scalars = Logged()
    two_runs(to_tensorboard(scalars, "run"))
    assert scalars == [(step, {tag: value}) for step, values in expected for tag, value in values.items()]


def test_wandb_gets_one_dictionary_a_step():
    logged = Logged()
    expected = [{f"trimtab/{k}": v for k, v in m.items()} for m in means(two_runs(to_wandb(logged)))]
    assert logged == [values | {"trimtab/t": i % 3} for i, values in enumerate(expected)]
