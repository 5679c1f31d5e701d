"""The command line: parses, calls, prints. A table for a person, `--json` for a program.

Exit codes: 0 fine, 1 the job failed or was interrupted, 2 bad usage or input; of `decide` also 3, canary, and 4, do not.
"""

import typer

app = typer.Typer(
    name="tandemrank",
    help="Learn and judge both stages of a ranking system, the candidate generator and the re-ranker, from click logs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
