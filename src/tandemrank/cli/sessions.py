"""The options and the results of sessions, for estimate, learn, simulate and evaluate."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandemrank._base.progress import load_first, training_progress, working
from tandemrank.cli.options import ExperimentOptions, command_line
from tandemrank.cli.terminal import note, print_json, print_summary, rows_table, show, two_columns
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    from tandemrank.offpolicy.question import Question
    from tandemrank.policies.two_stage import TwoStagePolicy
    from tandemrank.training.config import LearningConfig
    from tandemrank.training.start import Start

Sessions = Annotated[
    int | None,
    typer.Option(
        help="So many sessions of the world of sessions (docs/explanation/sessions.md), whose switches are then --set's.",
        min=1,
    ),
]


@dataclass(frozen=True)
class SessionOptions:
    """What a session is, and how much of it counts."""

    sessions: Annotated[
        bool,
        typer.Option(
            "--sessions", help="Clicks per session, not per list: the log has session_id, and step or timestamp."
        ),
    ] = False
    horizon: Annotated[
        int | None, typer.Option(help="Steps of a session that count; by default 10, or the longest session.")
    ] = None
    discount: Annotated[
        float | None, typer.Option(help="What a click counts one step later, 0 to 1; by default 1.")
    ] = None
    state: Annotated[
        str | None,
        typer.Option(
            help="Columns that are the state, separated by commas; by default the column state, or last_click,since_click."
        ),
    ] = None

    def arguments(self, **without: Any) -> dict[str, Any]:
        """Those of `sessions.estimate` and `sessions.learn`; refuses options that have no effect with sessions, or alone."""
        own = {"horizon": self.horizon, "discount": self.discount, "state": self.state}
        if not self.sessions:
            refuse(
                {name: x for name, x in own.items() if x is not None},
                "is for sessions: give --sessions, or leave it out",
            )
            return {}
        refuse({name: x for name, x in without.items() if x}, "has no effect with --sessions: leave it out")
        state = None if self.state is None else [part.strip() for part in self.state.split(",")]
        return {"horizon": self.horizon, "discount": 1.0 if self.discount is None else self.discount, "state": state}


def refuse(given: Mapping[str, object], words: str) -> None:
    """Refuses the first of these options."""
    for name in given:
        raise ConfigError(f"--{name.replace('_', '-')} {words}.")


def estimate(
    policy: "TwoStagePolicy", logs: list[str], question: "Question", estimator: str, how: dict[str, Any], as_json: bool
) -> None:
    """What a policy is worth over sessions."""
    load_first("sessions.valuation")
    from tandemrank.sessions import valuation

    with working("reading the log and valuing the policy over sessions"):
        name: Any = "doubly_robust" if estimator == "auto" else estimator
        found = valuation.estimate(policy, logs, estimator=name, question=question, **how)
    print_summary(found.summary(), as_json)


def learn(
    logs: list[str], out: Path, config: "LearningConfig", start: "Start", how: dict[str, Any], as_json: bool
) -> None:
    """Learns from sessions: writes OUT/METHOD/policy and OUT/summary.json. `how`: other arguments of `sessions.learn`."""
    load_first("sessions.learning")
    from tandemrank._base.files import claimed, write_json
    from tandemrank.reports.training import TRAINING
    from tandemrank.sessions import learning
    from tandemrank.training.learning import Listener

    inputs = [*logs, start.query_features, start.item_features]
    with training_progress() as (stage, epoch), claimed(out, TRAINING, inputs=inputs):
        learned = learning.learn(
            logs,
            config,
            start=start,
            checkpoints=out / "checkpoints",
            listener=Listener(stage=stage, epoch=epoch, note=note),
            **how,
        )
    summary = {"command": command_line(), **learned.summary()}
    for entry in summary["methods"]:
        entry["policy"] = str(learned.trained[entry["method"]].policy.save(out / entry["method"] / "policy"))
    write_json(out / "summary.json", summary)
    if as_json:
        print_json(summary)
        return
    for entry in summary.pop("methods"):
        steps = entry.pop("steps")
        show(two_columns(entry))
        show(rows_table("steps", steps))


def simulate(
    options: ExperimentOptions, out: Path, sessions: int, *, seed: int, propensities: bool, as_json: bool
) -> None:
    """Draws sessions of production in the world of sessions."""
    load_first("sessions.simulation")
    from tandemrank.sessions.simulation import write_log

    config = _world(options)
    with working("sessions drawn", sessions) as progress:
        found = write_log(config, out, sessions, seed=seed, logged=propensities, progress=progress)
    print_summary(asdict(found), as_json)


def evaluate(options: ExperimentOptions, policies: list[Path], sessions: int, *, seed: int, as_json: bool) -> None:
    """What saved policies are truly worth in the world of sessions, the first less each other one."""
    load_first("sessions.simulation")
    from tandemrank.policies.two_stage import load
    from tandemrank.sessions import simulation
    from tandemrank.sessions.simulation import SessionWorld

    world = SessionWorld.of(_world(options), seed)
    with working("playing sessions"):
        found = simulation.evaluate({str(path): load(path) for path in policies}, world, sessions, seed=seed)
    rows = [asdict(one) for one in found]
    if as_json:
        print_json({"sessions": sessions, "policies": rows})
    else:
        show(rows_table(f"clicks per session, of {sessions:,}, and less the first policy's", rows))


def _world(options: ExperimentOptions) -> Any:
    """The switches of the world."""
    from tandemrank._base.config import resolve
    from tandemrank.sessions.simulation import SessionWorldConfig

    if options.data is not None:
        raise ConfigError("--data has no effect with --sessions: the world of sessions has its own. Leave it out.")
    return resolve(SessionWorldConfig, file=options.config, switches=options.switches or ())
