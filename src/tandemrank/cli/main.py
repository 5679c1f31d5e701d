"""The entry point: every command is registered here, options stand in groups, errors become one message and an exit code.

Exit codes: 0 fine, 1 the job failed or was interrupted, 2 bad usage or input; of `decide` also 3, canary, and 4, do not.
"""

import inspect
import sys
from collections.abc import Callable
from copy import copy
from typing import Annotated, get_args

import typer
from typer.models import OptionInfo, ParameterInfo

# Each registers its commands; --help lists them in this order.
from tandemrank.cli import logs, offpolicy, policies, serving, experiments, doctor  # noqa: F401  # isort: skip
from tandemrank.cli.options import app
from tandemrank.errors import InputError, TandemRankError

# In which group of --help an option stands, and what it takes to choose from: the same in every command.
GROUPS = {
    "What is read": (
        "logs", "bare", "log", "sources", "kind", "since", "until", "query_features", "item_features", "pair_features", "data",
        "qrels", "context", "column", "click_name", "policies", "queries", "exclude",
    ),
    "Whose value": ("policy", "scores", "shadow", "against", "lists", "list_length", "candidates", "belief"),
    "What counts": ("reward", "list_reward", "curve", "curve_interval", "by"),
    "Propensities and bounds": ("propensity", "logging_policy", "estimator", "independent", "level"),
    "The decision": ("at_least", "segment", "no_segment_below", "most_clicks", "guardrail", "risk"),
    "What is made": (
        "method", "methods", "start", "query_embeddings", "item_embeddings", "preset", "config", "switches", "impressions",
        "runs", "references", "propensities", "sample", "samples", "sample_queries", "grades", "fix",
    ),
    "Sessions": ("sessions", "horizon", "discount", "state"),
    "What users get": ("exploration", "host", "port", "token_file", "rollback", "promote", "window", "settle"),
    "What is printed or written": ("out", "report", "as_json", "to", "titles", "images"),
    "How it runs": (
        "seed", "engine", "jobs", "resume", "plugin", "live", "warm", "replica", "fsync_every_request", "seal_seconds",
    ),
}  # fmt: skip
FEW = 8  # a command with no more has one group

CHOICES = {
    "propensity": ("auto", "logged", "exact", "fitted", "frequency"),
    "estimator": ("auto", "completed", "ips", "beta_ips", "doubly_robust", "self_normalised"),
    "independent": ("impressions", "queries"),
    "lists": ("sampled", "most-likely"),
    "exclude": ("clicked", "shown"),
    "engine": ("local", "ray"),
    "preset": ("tandem", "paper", "stages"),
    "method": ("auto", "beliefs", "independent", "baseline", "stacking", "joint"),
    "to": ("numpy", "faiss", "opensearch", "elasticsearch", "vespa", "onnx", "trec"),
    "kind": ("ubi", "metarank", "obd", "ga4", "clax", "long", "wide"),
}


def put_in_groups(app: typer.Typer) -> None:
    """Gives every option its group, and its choices: in `--help`, and when a shell completes it."""
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    order = ["", *GROUPS]
    for command in app.registered_commands:
        run = command.callback
        assert run is not None
        places: list[tuple[int, inspect.Parameter]] = []
        given = inspect.signature(run).parameters
        for name, parameter in given.items():
            found = copy(next(x for x in parameter.annotation.__metadata__ if isinstance(x, ParameterInfo)))
            if name in CHOICES:
                found.metavar = f"[{'|'.join(CHOICES[name])}]"
                found.autocompletion = _completing(CHOICES[name])
            if isinstance(found, OptionInfo) and len(given) > FEW:
                found.rich_help_panel = group_of[name]
            ours = Annotated[get_args(parameter.annotation)[0], found]  # type: ignore[valid-type]
            made = parameter.replace(annotation=ours, kind=inspect.Parameter.KEYWORD_ONLY)
            places.append((order.index(found.rich_help_panel or ""), made))
        ordered = [made for _, made in sorted(places, key=lambda x: x[0])]
        run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        run.__annotations__ = {x.name: x.annotation for x in ordered}


def _completing(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


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
            f"there is not enough memory ({error or 'all of it is in use'}). Ask for less, or use a larger machine.", 1
        )


def _fail(message: str, code: int) -> None:
    print(f"tandemrank: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
