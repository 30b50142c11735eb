"""Every error that a user can cause, as one family. Imports nothing, so that it costs nothing.

The front doors print a `UserError` as it is, without a traceback, and exit with `exit_code`.
"""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend; the message says what was given and what would do."""

    exit_code = 2


class ConfigError(UserError):
    """The flags do not fit each other, the machine or the files they name."""


class DataError(UserError):
    """A data set cannot be read, or nothing in it is usable."""


class ModelError(UserError):
    """A model folder is missing, incomplete or of an architecture that cannot be trained here."""


class RewardError(UserError):
    """A reward cannot be built, or its source stays down."""


class CheckpointError(UserError):
    """A checkpoint cannot be written, or does not fit the run that wants to load it."""


class EngineError(UserError):
    """The inference engine cannot hold the model, does not fit this run, or stopped answering."""

    exit_code = 1


class TrainingError(UserError):
    """The run cannot go on: too many steps skipped in a row, another rank failed."""

    exit_code = 1
