from __future__ import annotations

import pytest
import torch

import free
import trimtab as tt
from cases import Sphere
from trimtab.integrations.loggers import to_mlflow, to_tensorboard, to_wandb


def two_runs(on_step):
    corrector = free.Corrector(Sphere(), tt.Periodic(1), 3, on_step=on_step)
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


# ------------------------------------------------------------------ the loggers themselves, where they are installed


@pytest.mark.filterwarnings("ignore")  # theirs
def test_tensorboard_itself_reads_back_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        expected = list(means(two_runs(to_tensorboard(writer))))
    events = EventAccumulator(str(tmp_path)).Reload()
    for name in ("defect", "residual", "projected"):
        logged = [(event.step, event.value) for event in events.Scalars(f"trimtab/{name}")]
        assert logged == [(i, pytest.approx(values[name])) for i, values in enumerate(expected)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_itself_reads_back_what_was_logged(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more packages than the light MLflow has
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        expected = list(means(two_runs(to_mlflow(mlflow))))
    client = mlflow.MlflowClient()
    for name in ("defect", "residual", "projected"):
        history = client.get_metric_history(run.info.run_id, f"trimtab/{name}")
        logged = [(metric.step, metric.value) for metric in sorted(history, key=lambda metric: metric.step)]
        assert logged == [(i, pytest.approx(values[name])) for i, values in enumerate(expected)]


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_itself_takes_every_step(tmp_path):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    with wandb.init(mode="offline", dir=str(tmp_path), project="trimtab") as run:
        last = list(means(two_runs(to_wandb(run))))[-1]
        assert run.step == 6
        assert {name: run.summary[f"trimtab/{name}"] for name in last} == pytest.approx(last)
