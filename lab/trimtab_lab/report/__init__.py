"""The report of a finished run: tables, figures and the page, made from its files without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab_lab.studies.store import RunFiles

__all__ = ["write_report"]


def write_report(files: RunFiles) -> list[Path]:
    """Write summary, tables, figures and page of a run whose rows are there.

    No domain is made, and no code of the user is run.

    Returns:
        What was written, in the order a person would look at it.
    """
    from trimtab_lab.report.figures import write_figures
    from trimtab_lab.report.page import examples, write_page
    from trimtab_lab.report.study_tables import write_tables
    from trimtab_lab.studies.summary import write_summary

    summary = write_summary(files)
    tables = write_tables(files, summary)
    figures = write_figures(files, summary)
    page = write_page(files, summary, examples(files, summary))
    return [page, files.path("summary.json"), *tables, *figures, files.path("page.json")]
