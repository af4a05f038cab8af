"""Text that comes from files, made harmless for the format it is written into."""

from __future__ import annotations

import re

__all__ = ["csv_text", "latex_text", "markdown_text"]

_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "κ": r"$\kappa$",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MARKDOWN = re.compile(r"([\\`*\[\]|<>~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;))")
_FORMULA = re.compile(r"\s*[=+\-@]")


def latex_text(text: str) -> str:
    r"""Text for LaTeX: no character of it is a command.

    Example:
        >>> print(latex_text(r"\input{/etc/passwd} 5% ± 1"))
        \textbackslash{}input\{/etc/passwd\} 5\% $\pm$ 1
    """
    return "".join(_TEX.get(letter, letter) for letter in _one_line(text))


def markdown_text(text: str) -> str:
    r"""Text for a cell or a line of Markdown: no markup, no link, no HTML, no new cell or line.

    Example:
        >>> print(markdown_text("a_b | <img> [x](y)"))
        a_b \| \<img\> \[x\](y)
    """
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def csv_text(value: object) -> object:
    """A cell for CSV: text that a spreadsheet would take for a formula begins with an apostrophe.

    Example:
        >>> csv_text("=1+1"), csv_text(-1.5), csv_text("-1.5"), csv_text("periodic")
        ("'=1+1", -1.5, "'-1.5", 'periodic')
    """
    if not isinstance(value, str):
        return value
    text = _one_line(value)
    return f"'{text}" if _FORMULA.match(text) else text


def _one_line(text: str) -> str:
    return _CONTROL.sub(" ", text)
