"""One rule per file; the file name is the value of `--reward`. No torch here: rules run in grader processes.

A rule module has
    score(response, references) -> Score   a pure function of the response alone, never of the prompt;
    IN_PROCESS      True where a score costs microseconds, is linear in the text and cannot hang;
    NEEDS_REFERENCES  True where a row without a reference cannot be judged;
    PARTS           the names that every Score's `parts` has;
    check_reference(reference) -> str | None   optional: why this reference cannot be graded against;
    prepare()       optional: imports what the rule needs, so that a worker pays for it before its first
    sample.
"""
