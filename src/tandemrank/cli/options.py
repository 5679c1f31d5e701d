"""The application that commands register with, and the options that several of them share."""

import inspect
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandemrank import __version__
from tandemrank.errors import ConfigError, JobError

if TYPE_CHECKING:
    from tandemrank.policies.two_stage import TwoStagePolicy
    from tandemrank.reports.sections import Named


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tandemrank {__version__}")  # noqa: T201
        raise typer.Exit


app = typer.Typer(
    name="tandemrank",
    help="Learn and judge both stages of a ranking system, the candidate generator and the re-ranker, from click logs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Learn and judge both stages of a ranking system, the candidate generator and the re-ranker, from click logs."""


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """A command with parameters that are dataclasses: their fields become its options, and it gets each of them whole."""
    own = inspect.signature(command).parameters
    bundles: dict[str, Any] = {name: x.annotation for name, x in own.items() if is_dataclass(x.annotation)}
    options_of = {name: inspect.signature(kind).parameters for name, kind in bundles.items()}

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: kind(**{option: given.pop(option) for option in options_of[name] if option in given})
            for name, kind in bundles.items()
        }
        command(**made, **given)

    plain = [x for name, x in own.items() if name not in bundles]
    every = [*plain, *(x for options in options_of.values() for x in options.values())]
    keywords = [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in every]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {x.name: x.annotation for x in keywords}
    return run


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Seed = Annotated[int, typer.Option(help="The seed of everything random.", min=0, max=2**63 - 1, metavar="<int>")]
Data = Annotated[
    str | None,
    typer.Option(
        help="synthetic, ml-1m (downloaded), a zip or folder of MovieLens-1M, or a CSV or Parquet ratings file."
    ),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with switches; flags override it.")]
Switches = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any switch, as name=value. May be repeated."),
]


def _import_plugins(names: list[str] | None) -> list[str] | None:
    if names:
        from tandemrank.policies.own import import_plugin

        for name in names:
            import_plugin(name)
    return names


Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="Module or .py file with models of your own, which saved policies are made of; it is imported. May be repeated.",
        callback=_import_plugins,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted job stopped.")]


@contextmanager
def resumable() -> Iterator[None]:
    """Around a job that can go on later: Ctrl-C becomes a message that says how."""
    try:
        yield
    except KeyboardInterrupt:
        raise JobError(
            "interrupted. What was finished is kept; the same command with --resume goes on from there."
        ) from None


def command_line() -> str:
    """The command as it was typed, for the report."""
    return shlex.join(["tandemrank", *sys.argv[1:]])


@dataclass(frozen=True)
class ExperimentOptions:
    """The data and the switches of an experiment."""

    data: Data = None
    config: Config = None
    switches: Switches = None

    def experiment(self, preset: str = "tandem", **flags: Any) -> Any:
        """The configuration that they give; files are read."""
        from tandemrank._base.config import resolve
        from tandemrank.experiments.config import PRESETS, ExperimentConfig

        if preset not in PRESETS:
            *others, last = PRESETS
            raise ConfigError(f"--preset takes {', '.join(others)} or {last}; got {preset!r}.")
        flags = {"data": self.data, **flags}
        switches = self.switches or ()
        return resolve(ExperimentConfig, preset=PRESETS[preset], file=self.config, switches=switches, flags=flags)


@dataclass(frozen=True)
class FeatureTables:
    """Features of queries, items and pairs that the policy has not seen."""

    query_features: Annotated[
        Path | None, typer.Option(help="Features of queries that the policy has not seen: Parquet with query_id.")
    ] = None
    item_features: Annotated[Path | None, typer.Option(help="The same for the items, with item_id.")] = None
    pair_features: Annotated[
        Path | None, typer.Option(help="The same for pairs, with query_id, item_id and numbers.")
    ] = None

    def extended(self, policy: "TwoStagePolicy") -> "TwoStagePolicy":
        """The policy with an answer for them."""
        from tandemrank.policies.two_stage import extended

        return extended(policy, **vars(self))


Titles = Annotated[
    list[Path] | None,
    typer.Option(
        "--titles",
        help="What ids are called: Parquet or CSV with item_id or query_id, title, perhaps url and image. May be repeated.",
    ),
]


@dataclass(frozen=True)
class PageOptions:
    """How queries and items stand on the page."""

    titles: Titles = None
    images: Annotated[
        bool, typer.Option("--images", help="The page shows the pictures of --titles, and fetches them.")
    ] = False

    def named(self, page: bool = True) -> "Named":
        """Names for a page."""
        from tandemrank.reports.sections import named

        if (self.titles or self.images) and not page:
            raise ConfigError("--titles are for the page: give --report, too, or leave them out.")
        if self.images and not self.titles:
            raise ConfigError("--images needs --titles, the table that has them.")
        return named(self.titles, images=self.images)


def listed(text: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"expected whole numbers separated by commas; got {text!r}.") from error


Curve = Annotated[
    str | None,
    typer.Option(
        help="Examination curve: reciprocal (1/k, the default), dcg (1/log2(k+1)), or a JSON file with theta, as "
        "`tandemrank examine --json` prints it."
    ),
]


def read_curve_option(curve: str | None, *, cells: bool = True) -> Any:
    """The curve by its name, or in a file; there, unless `cells` are not wanted, by more than the rank if it is."""
    from tandemrank.clicks.models import read_curve, read_examination

    if curve in (None, "reciprocal", "dcg"):
        return curve
    return read_examination(curve) if cells else read_curve(curve)


Engine = Annotated[
    str,
    typer.Option(
        help="What reads the log: local, or ray, one task per file (at RAY_ADDRESS, else local; every node must see the files)."
    ),
]
Logs = Annotated[
    list[str] | None,
    typer.Option(
        "--logs", help="Click log: Parquet, CSV or JSON lines; files, folders, globs or URLs. May be repeated."
    ),
]
WHEN = "a date, an ISO time, Unix seconds, or a share of the log by time such as 70%."
Since = Annotated[str | None, typer.Option(help=f"Only impressions from then on: {WHEN}")]
Until = Annotated[str | None, typer.Option(help=f"Only impressions before then: {WHEN}")]
BareLogs = Annotated[list[str] | None, typer.Argument(help="The same without --logs.", metavar="[LOG]...")]


def given_logs(bare: list[str] | None, logs: list[str] | None) -> list[str]:
    """The log, by --logs as everywhere, or as an argument."""
    if found := [*(logs or []), *(bare or [])]:
        return found
    raise ConfigError("expected a click log; got none. Give it by --logs: files, folders, globs or URLs.")
