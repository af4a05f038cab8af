"""What a finished run is shown as: tables, figures and the interactive page.

Everything here is made from a run directory, never by running anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.evaluation.studies.run_files import RunFiles

__all__ = ["write_report"]


def write_report(files: RunFiles) -> list[Path]:
    """Write summary, tables, figures and page of a run directory whose rows are there.

    Everything comes from its rows, traces and `domains.json`: no domain is made and no code of the user's is run.

    Returns:
        What was written, in the order a person would look at it.
    """
    from trimtab.evaluation.report.examples import examples
    from trimtab.evaluation.report.figures import write_figures
    from trimtab.evaluation.report.page import write_page
    from trimtab.evaluation.report.study_tables import write_tables
    from trimtab.evaluation.studies.summary import write_summary

    summary = write_summary(files)
    tables = write_tables(files, summary)
    figures = write_figures(files, summary)
    page = write_page(files, summary, examples(files, summary))
    return [page, files.path("summary.json"), *tables, *figures, files.path("page.json")]
