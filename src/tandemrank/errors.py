"""The error tree. Every message says what was expected, what came, and what to do.

TandemRankError
  x InputError        bad usage or bad input: the command line exits with 2
      - ConfigError     a switch, an option or a configuration file
      - DataError       ratings and data sets
      - LogError        click logs
      - PolicyError     scores and saved policies
  x JobError          the job itself failed: the command line exits with 1
      - DownloadError   a data set could not be fetched
      - OutputError     a result could not be written
"""


class TandemRankError(Exception):
    """Base of every error that the library raises on purpose."""


class InputError(TandemRankError, ValueError):
    """The input is at fault, and the message says where."""


class ConfigError(InputError):
    """A switch has a value that it does not take."""


class DataError(InputError):
    """A ratings file or data set cannot be used."""


class LogError(InputError):
    """A click log cannot be used."""


class PolicyError(InputError):
    """Scores or a saved policy cannot be used."""


class JobError(TandemRankError):
    """The input was fine; the job failed."""


class DownloadError(JobError):
    """A data set could not be fetched."""


class OutputError(JobError):
    """A result could not be written."""


def shortened(value: object, most: int = 40) -> str:
    """A wrong value as a message repeats it, on one line, in about so many characters, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # integers of thousands of digits, lists in lists in lists
        return f"a {type(value).__name__} that is too large to print"
    return text if len(text) <= most else f"{text[:most]}…"
