"""The entry point: every command is registered here, and errors become one message and an exit code.

Exit codes: 0 fine, 1 the job failed or was interrupted, 2 bad usage or input; of `decide` also 3, canary, and 4, do not.
"""

import sys

# Each registers its commands; --help lists them in this order.
from tandemrank.cli import logs, offpolicy, policies, serving, experiments, doctor  # noqa: F401  # isort: skip
from tandemrank.cli.groups import put_in_groups
from tandemrank.cli.options import app
from tandemrank.errors import InputError, TandemRankError

put_in_groups(app)


def main() -> None:
    """Runs the command line."""
    try:
        app(standalone_mode=True)
    except InputError as error:
        _fail(str(error), 2)
    except TandemRankError as error:
        _fail(str(error), 1)
    except OSError as error:  # what nobody nearer to it has explained
        _fail(f"the system refused {error.filename or 'something'}: {error.strerror or error}.", 1)
    except MemoryError as error:
        _fail(
            f"there is not enough memory ({error or 'no more could be had'}). Ask for less, or use a larger machine.", 1
        )


def _fail(message: str, code: int) -> None:
    print(f"tandemrank: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
