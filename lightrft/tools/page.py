"""Small reports: a table on the console, and the same as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top }
th { background: #f2f2f2 }
td { white-space: pre-wrap; overflow-wrap: anywhere }
pre { background: #f6f6f6; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere }
"""

Row = Sequence[object]


def text_table(header: Sequence[str], rows: Sequence[Row]) -> str:
    """Columns as wide as their widest cell, numbers as they are."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def html_table(header: Sequence[str], rows: Sequence[Row]) -> str:
    """The same for a page. What a model or a file has written is shown, never run."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    """A block of text, its lines kept."""
    return f"<pre>{html.escape(text)}</pre>"


def write_page(path: Path, title: str, sections: Sequence[tuple[str, str]]) -> None:
    """Write `(heading, html)` sections to `path`; a reader sees the whole file or none."""
    parts = "\n".join(f"<h2>{html.escape(heading)}</h2>\n{content}" for heading, content in sections)
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n{parts}\n</body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.partial")
    # A lone surrogate, as a broken response may hold, cannot be written as UTF-8.
    unfinished.write_text(page, "utf-8", errors="backslashreplace")
    os.replace(unfinished, path)
