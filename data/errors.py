"""The errors that a user can cause, as opposed to our bugs.

The command line turns each of these into one line on stderr and exit code 1, or 2 for wrong usage;
anything else keeps its traceback. A message names the thing, the value and the remedy, and says
where it was found.
"""


class UserError(Exception):
    """The user's input or environment is at fault; the message is one line meant for the user."""


class SettingsError(UserError):
    """A setting is unknown, of the wrong type or out of range."""


class OptionError(SettingsError):
    """A setting that the command line gives is wrong by itself: wrong usage, exit code 2."""


class DataError(UserError):
    """A corpus, a text file or a tokenizer cannot be read or does not fit."""


class CheckpointError(UserError):
    """A model directory or checkpoint is missing, damaged, or does not fit the settings."""


class BackendError(UserError):
    """An attention backend, device or precision asked for by name cannot run here."""
