"""What `reward_bench` has found: a text for the console, and a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightrft.tools.bench_samples import Samples
from lightrft.tools.page import Row, html_table, text_table, write_page

SHOWN_ON_CONSOLE = 20
SHOWN_ON_PAGE = 1000
HEADER = ("grader", "mean", "whole", "less", "unparsed", "timeout", "error", "seconds", "slowest row")
LISTED = ("grader", "row", "why", "references", "end of the response")
AGREEMENT = ("grader", "other", "rows", "agree", "only the first", "only the other")


@dataclass(frozen=True)
class Report:
    """Everything that was found, as tables."""

    samples: Samples
    scores: list[Row]
    listed: list[Row]
    agreements: list[Row]
    disagreements: list[Row]
    slowest: list[Row]

    def text(self) -> str:
        """For the console."""
        lines = [f"{len(self.samples.rollouts)} {self.samples.title}", text_table(HEADER, self.scores)]
        if self.samples.problems:
            lines.append(f"{len(self.samples.problems)} rows could not be used:")
            lines += [f"  {problem}" for problem in self.samples.problems[:SHOWN_ON_CONSOLE]]
        if self.agreements:
            lines += ["", text_table(AGREEMENT, self.agreements)]
        if self.listed:
            what = "without a whole reward" if self.samples.are_right else "without a verdict or an answer"
            lines += ["", f"{len(self.listed)} {what}:"]
            lines += [f"  {row[0]} {row[1]}: {row[2]}" for row in self.listed[:SHOWN_ON_CONSOLE]]
            if len(self.listed) > SHOWN_ON_CONSOLE:
                lines.append(f"  … and {len(self.listed) - SHOWN_ON_CONSOLE} more")
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """For the browser."""
        problems = [(p.source, p.reason, p.detail) for p in self.samples.problems]
        sections = [
            ("Graders", html_table(HEADER, self.scores)),
            ("Agreement", html_table(AGREEMENT, self.agreements)),
            (f"Disagreements ({len(self.disagreements)})",
             html_table(("graders", "row", "verdicts", "references", "end of the response"),
                        self.disagreements[:SHOWN_ON_PAGE])),
            (f"Listed rows ({len(self.listed)})", html_table(LISTED, self.listed[:SHOWN_ON_PAGE])),
            ("Slowest rows", html_table(("grader", "row", "time", "end of the response"), self.slowest)),
            (f"Rows that could not be used ({len(problems)})",
             html_table(("row", "reason", "detail"), problems[:SHOWN_ON_PAGE])),
        ]  # fmt: skip
        write_page(path, f"Rewards: {self.samples.title}", sections)
