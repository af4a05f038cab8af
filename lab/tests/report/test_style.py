from __future__ import annotations

import io

import pytest

from trimtab_lab.report.style import figure_style


def _drawn(plt):
    figure, axes = plt.subplots(1, 2, figsize=(3, 2), sharey=True)
    axes[0].plot([0, 1], [1, 2], marker="o")
    axes[1].add_patch(plt.Circle((0.5, 1.5), 0.2))
    figure.tight_layout()
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def test_drawing_leaves_the_backend_the_settings_and_the_figures_of_the_user_alone():
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    try:
        pyplot.switch_backend("svg")
        pyplot.rcParams["font.size"] = 13
        mine = pyplot.figure()
        with figure_style() as plt:
            _drawn(plt)
        assert matplotlib.get_backend() == "svg"
        assert pyplot.rcParams["font.size"] == 13
        assert pyplot.get_fignums() == [mine.number]
    finally:
        pyplot.close("all")
        pyplot.switch_backend(before)
        pyplot.rcdefaults()


def test_a_picture_is_the_one_that_pyplot_draws():
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    before = pyplot.get_backend()
    with figure_style() as plt:
        ours = _drawn(plt)
        try:
            pyplot.switch_backend("Agg")
            assert _drawn(pyplot) == ours
        finally:
            pyplot.close("all")
            pyplot.switch_backend(before)
