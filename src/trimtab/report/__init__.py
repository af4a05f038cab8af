"""What a finished run is shown as: tables, figures and the interactive page.

Everything here is made from a run directory, never by running anything.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(directory: Path) -> list[Path]:
    """Write summary, tables, figures and page of a run directory whose rows are there.

    Returns:
        What was written, in the order a person would look at it.
    """
    from trimtab.report.examples import write_examples
    from trimtab.report.figures import write_figures
    from trimtab.report.page import write_page
    from trimtab.report.tables import write_tables
    from trimtab.studies.summary import write_summary

    summary = write_summary(directory)
    tables = write_tables(directory, summary)
    figures = write_figures(directory, summary)
    examples = write_examples(directory, summary)
    page = write_page(directory)
    return [page, directory / "summary.json", *tables, *figures, examples]
