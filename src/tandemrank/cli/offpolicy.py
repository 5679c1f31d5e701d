"""The commands that ask a log about a policy, estimate, compare and decide, and the options of a question, which they share."""

import os
import sys
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tandemrank._base.progress import load_first, working
from tandemrank.cli import sessions
from tandemrank.cli.options import (
    Curve,
    Engine,
    FeatureTables,
    Json,
    PageOptions,
    Plugin,
    Seed,
    Since,
    Until,
    app,
    bundled,
    command_line,
    listed,
    read_curve_option,
)
from tandemrank.cli.sessions import SessionOptions
from tandemrank.cli.shadows import Shadows, differences, print_differences, print_systems, shadows_of
from tandemrank.cli.terminal import print_json, print_summary, show
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    from tandemrank.decisions.decision import Decision
    from tandemrank.logs.sources import Source
    from tandemrank.offpolicy.question import Question
    from tandemrank.offpolicy.valuation import Side
    from tandemrank.policies.two_stage import TwoStagePolicy


NO_FEATURES = FeatureTables()
Policy = Annotated[Path | None, typer.Option(help="Saved policy to value.")]
Scores = Annotated[
    Path | None,
    typer.Option(
        help="Instead of --policy, any system: Parquet with query_id, item_id, candidate_score, ranker_score, or a run of TREC."
    ),
]
Against = Annotated[
    str,
    typer.Option(
        help="What to compare with: production (the policy that drew the log), a saved policy, Parquet of scores, a run, or "
        "the name of a --shadow."
    ),
]


@dataclass(frozen=True)
class QuestionOptions:
    """The options that ask a log: those of every command that takes a `Question`."""

    propensity: Annotated[
        str,
        typer.Option(help="auto (the best that the log and the options allow), logged, exact, fitted or frequency."),
    ] = "auto"
    logging_policy: Annotated[
        Path | None, typer.Option(help="Saved policy that drew the log, for exact propensities.")
    ] = None
    estimator: Annotated[
        str,
        typer.Option(
            help="auto (beta_ips where propensities are known, ips where they are counted or fitted), ips or beta_ips; of "
            "sessions auto (doubly_robust), self_normalised or ips."
        ),
    ] = "auto"
    curve: Curve = None
    reward: Annotated[
        str | None,
        typer.Option(help="Count this instead of clicks: the column of the log with what clicked items were worth."),
    ] = None
    independent: Annotated[
        str | None,
        typer.Option(
            help="What a bound takes one by one: impressions, for a bound about the log's own impressions (the default where "
            "each list was drawn anew), or queries, about other queries like these."
        ),
    ] = None
    engine: Engine = "local"
    plugin: Plugin = None
    seed: Seed = 0

    @property
    def unit(self) -> str:
        """What is counted."""
        return self.reward or "clicks"

    def question(self, **more: Any) -> "Question":
        """What they ask; files are read."""
        from tandemrank.offpolicy.question import Question
        from tandemrank.policies import two_stage

        return Question(
            examination=read_curve_option(self.curve) or "reciprocal",
            estimator=self.estimator,  # type: ignore[arg-type]  # refused by name if it is none
            propensity=self.propensity,  # type: ignore[arg-type]
            logging_policy=None if self.logging_policy is None else two_stage.load(self.logging_policy),
            seed=self.seed,
            reward_column=None if self.unit == "clicks" else self.unit,
            engine=self.engine,  # type: ignore[arg-type]
            independent=self.independent,  # type: ignore[arg-type]
            **more,
        )


@dataclass(frozen=True)
class LogOptions:
    """The log, and K and K2 of systems that are given by their scores, as asked for or by the log."""

    logs: Annotated[list[str], typer.Option("--logs", help="Click log: files, folders or globs. May be repeated.")]
    list_length: Annotated[
        int | None,
        typer.Option(
            help="Length of the shown list, K, of a system given by its scores; by default that of the log's longest list.",
            min=1,
        ),
    ] = None
    candidates: Annotated[
        str | None,
        typer.Option(
            help="Number of candidates, K2, of a system given by its scores; by default 500, or all items if fewer. `estimate` "
            "takes several of any policy, such as 20,50,100: what each is worth, and costs."
        ),
    ] = None
    since: Since = None
    until: Until = None

    @cached_property
    def source(self) -> "Source":
        """The log of the period."""
        from tandemrank.logs.sources import during

        return during(self.logs, since=self.since, until=self.until)

    @property
    def counts(self) -> list[int]:
        """Numbers of candidates."""
        return [] if self.candidates is None else listed(self.candidates, int)

    @cached_property
    def places(self) -> int:
        """K: as asked for, else the longest list of the log."""
        from tandemrank.logs.reading import read

        return self.list_length or int(read(self.source).rank.max(initial=0)) + 1

    def refuse_unused(self, *sides: object) -> None:
        """Refuses sizes where no side is given by its scores: a saved policy has its own. And several of them."""
        if len(self.counts) > 1:
            raise ConfigError(f"--candidates: expected one number; got {self.candidates}. `estimate` takes several.")
        if any(isinstance(side, Path) or (isinstance(side, str) and os.path.isfile(side)) for side in sides):
            return
        if self.candidates is not None or self.list_length is not None:
            raise ConfigError(
                "--candidates and --list-length are for a system given by its scores; a saved policy has its own K2 and K. "
                "Leave them out."
            )


@app.command()
@bundled
def estimate(
    asked: QuestionOptions,
    log: LogOptions,
    features: FeatureTables,
    over: SessionOptions,
    policy: Policy = None,
    scores: Scores = None,
    shadow: Shadows = None,
    lists: Annotated[
        str,
        typer.Option(
            help="What is shown: sampled (lists drawn from the policy) or most-likely (as `recommend` gives)."
        ),
    ] = "sampled",
    list_reward: Annotated[
        str | None,
        typer.Option(
            help="Count a reward of the whole list: this column, a number for each impression. Few items alone."
        ),
    ] = None,
    belief: Annotated[
        Path | None,
        typer.Option(
            help="With several --candidates: saved policy of `learn --method beliefs`, of another log, to know what the "
            "re-ranker loses."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="With several --candidates: write an HTML page with the curve to this path.")
    ] = None,
    curve_interval: Annotated[
        bool,
        typer.Option(
            "--curve-interval",
            help="Carry the error of the curve (a file of `tandemrank examine --json`) into the interval, and print the value "
            "against its steepness.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Estimates what a policy would be worth if it were live (off-policy): value, interval, diagnostics and a verdict.

    Give a log that the policy was not trained on: on its own training log every policy looks better than it is.
    With --sessions: clicks per session, and down to which step the log can tell.
    """
    load_first("offpolicy.valuation")
    from tandemrank.offpolicy.exposure import MostLikely
    from tandemrank.offpolicy.uncertainty import read_curve_interval
    from tandemrank.offpolicy.valuation import estimate_all, sensitivity_of

    curve = asked.curve
    if curve_interval and curve in (None, "reciprocal", "dcg"):
        raise ConfigError(
            "--curve-interval needs --curve, a JSON file of `tandemrank examine --json` with its interval."
        )
    if lists not in ("sampled", "most-likely") or (curve_interval and lists != "sampled"):
        raise ConfigError(f"--lists takes sampled, or most-likely without --curve-interval; got {lists!r}.")
    several = len(log.counts) > 1 and not curve_interval and not over.sessions
    how = over.arguments(
        curve_interval=curve_interval,
        lists=lists != "sampled",
        engine=asked.engine != "local",
        independent=asked.independent,
        reward=asked.reward,
        shadow=shadow,
        list_reward=list_reward,
    )
    question = (replace(asked, estimator="auto") if over.sessions else asked).question()
    if not several:
        log.refuse_unused(scores)
        if belief is not None or report is not None:
            raise ConfigError("--belief and --report are for several --candidates, such as 20,50,100. Leave them out.")
    elif policy is not None and log.list_length is not None:
        raise ConfigError(
            "--list-length is for a system given by its scores; a saved policy has its own. Leave it out."
        )
    if shadow:
        if lists != "sampled" or curve_interval:
            raise ConfigError("--shadow are lists as they are: leave out --lists and --curve-interval.")
        sides = shadows_of(shadow, policy, scores)
        with working("reading the log and valuing the lists"):
            values = dict(zip(sides, estimate_all(list(sides.values()), log.source, question), strict=True))
        print_systems(values, asked.unit, as_json)
        return
    side = policy_of(policy, scores, log, features)
    if over.sessions:
        sessions.estimate(side, log.logs, question, asked.estimator, how, as_json)
        return
    if several:
        _how_many(side, log, question, belief, report, most_likely=lists != "sampled", as_json=as_json)
        return
    if list_reward is not None:
        _print_list_value(side, lists, list_reward, log, question, as_json)
        return
    with working("reading the log and valuing the policy"):
        if curve is None or not curve_interval:
            [value] = estimate_all([side if lists == "sampled" else MostLikely(side)], log.source, question)
            print_summary(value.summary(), as_json)
            return
        value, found = sensitivity_of(side, log.source, question, read_curve_interval(curve))
    print_summary(value.summary() | asdict(found), as_json)


def _how_many(
    side: "TwoStagePolicy",
    log: LogOptions,
    question: "Question",
    belief: Path | None,
    report: Path | None,
    *,
    most_likely: bool,
    as_json: bool,
) -> None:
    """What each number of candidates is worth, and costs."""
    from tandemrank._base.ids import same_ids
    from tandemrank.offpolicy.how_many import estimate_candidates
    from tandemrank.policies.two_stage import load
    from tandemrank.reports import how_many as pages

    believed = None if belief is None else load(belief)
    if believed is not None and not same_ids(believed.vocabulary, side.vocabulary):
        raise ConfigError(f"--belief: expected a policy with the queries and items of the other; got {belief}.")
    with working("reading the log and valuing every number of candidates"):
        found = estimate_candidates(
            side,
            log.source,
            log.counts,
            question,
            belief=None if believed is None else believed.ranker,
            most_likely=most_likely,
        )
    if report is not None:
        pages.report(found, command=command_line()).write(report)
    if as_json:
        print_json(found.summary())
        return
    show(found.sentence)
    show(pages.counts(found).terminal())
    show("\n".join(pages.notes(found)))


@app.command()
@bundled
def compare(
    asked: QuestionOptions,
    log: LogOptions,
    features: FeatureTables,
    policy: Policy = None,
    scores: Scores = None,
    shadow: Shadows = None,
    against: Against = "production",
    as_json: Json = False,
) -> None:
    """Compares a policy with production, or with another policy: the paired difference in clicks per impression.

    Several --shadow are compared in one table, whose intervals and bounds hold together. Give a log that no policy was trained
    on: on its own training log every policy looks better than it is.
    """
    load_first("offpolicy.valuation")
    from tandemrank.offpolicy.valuation import compare as compared

    question = asked.question()
    log.refuse_unused(scores, against)
    if shadow:
        with working("reading the log and comparing"):
            gaps = differences(shadows_of(shadow, policy, scores), against, log.source, question)
        print_differences(against, gaps, asked.unit, as_json)
        return
    new, old = policy_of(policy, scores, log, features), other_side(against, log, features)
    with working("reading the log and comparing"):
        found = compared(new, old, log.source, question)
    brief: dict[str, object] = {"new": found.new.value, "old": found.old.value}
    of_new = {"propensity": found.new.propensity, "propensity_reason": found.new.propensity_reason}
    print_summary(found.summary() if as_json else brief | found.summary() | brief | of_new, as_json)


def _print_list_value(
    side: "TwoStagePolicy", lists: str, reward: str, log: LogOptions, question: "Question", as_json: bool
) -> None:
    from tandemrank.offpolicy.exposure import MostLikely
    from tandemrank.offpolicy.logger import FittedLogger
    from tandemrank.offpolicy.whole_lists import value_of_lists

    if question.propensity not in ("auto", "exact", "frequency") or question.reward_column is not None:
        raise ConfigError(
            "--list-reward counts lists, by --logging-policy or in the log: leave out --propensity and --reward."
        )
    drew = question.logging_policy
    assert not isinstance(drew, FittedLogger)
    with working("reading the log and valuing the policy"):
        shown = side if lists == "sampled" else MostLikely(side)
        found = value_of_lists(shown, log.source, reward, logging_policy=drew, seed=question.seed)
    print_summary(found, as_json)


def policy_of(
    policy: Path | None, scores: Path | None, log: LogOptions, features: FeatureTables = NO_FEATURES
) -> "TwoStagePolicy":
    """The policy that is asked about; a saved one answers for what it has not seen by features."""
    from tandemrank.policies import outside, two_stage

    if (policy is None) == (scores is None):
        raise ConfigError(
            "give a policy by --policy, a saved one, or by --scores, Parquet of scores or a run; one of them."
        )
    if policy is not None:
        return features.extended(two_stage.load(policy))
    return outside.policy_from_file(cast(Path, scores), max(log.counts, default=None), log.places)


def other_side(against: str, log: LogOptions, features: FeatureTables = NO_FEATURES) -> "Side":
    """The other side: production, a saved policy, or any system by its scores."""
    from tandemrank.offpolicy.values import PRODUCTION

    if against == PRODUCTION:
        return PRODUCTION
    path = Path(against)
    if not os.path.exists(path):
        raise ConfigError(
            f"--against takes production, a saved policy, Parquet of scores or a run; nothing is at {against}."
        )
    return policy_of(path, None, log, features) if os.path.isdir(path) else policy_of(None, path, log)


@app.command()
@bundled
def decide(
    asked: QuestionOptions,
    log: LogOptions,
    features: FeatureTables,
    page: PageOptions,
    policy: Annotated[
        list[Path] | None, typer.Option("--policy", help="Saved policy that may ship. May be repeated.")
    ] = None,
    scores: Annotated[
        list[Path] | None,
        typer.Option(
            "--scores",
            help="Any system: Parquet with query_id, item_id, candidate_score, ranker_score, or a run of TREC. Repeatable.",
        ),
    ] = None,
    shadow: Shadows = None,
    against: Against = "production",
    at_least: Annotated[
        float, typer.Option(help="Ship only if the difference is surely above this many clicks per impression.")
    ] = 0.0,
    level: Annotated[
        float, typer.Option(help="Confidence level: the chance that nothing worse is called ship.")
    ] = 0.95,
    segment: Annotated[
        str | None,
        typer.Option(
            help="Column of the log, or of --query-features, which is then for this alone: the difference for each of its "
            "values, too."
        ),
    ] = None,
    no_segment_below: Annotated[
        float | None,
        typer.Option(help="Do not ship where the difference in a segment is below this many clicks per impression."),
    ] = None,
    most_clicks: Annotated[
        float | None,
        typer.Option(
            help="Most clicks that one impression can get, if fewer than the places of its list: tighter bounds. Of a --reward "
            "the most of it: without it there is no bound."
        ),
    ] = None,
    guardrail: Annotated[
        list[str] | None,
        typer.Option(
            help="Another reward that must not fall: a column of the log or clicks, and perhaps the least difference per "
            "impression, as clicks=-0.01 (by default minus 1% of what the old side has). May be repeated."
        ),
    ] = None,
    risk: Annotated[float, typer.Option(help="Share of production's clicks that a canary may lose at worst.")] = 0.01,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page for the meeting to this path.")] = None,
    as_json: Json = False,
) -> None:
    """Decides whether a policy is surely better than production; exit code 0: ship, 3: canary, 4: do not ship.

    With several policies every bound is corrected for their number, so the best of them may be taken. Give a log that no policy
    was trained on.
    """
    load_first("decisions.decision")
    from tandemrank.decisions import decision

    log.refuse_unused(*(scores or []), against)
    named = page.named(report is not None)
    table = None if segment is None else features.query_features
    features = features if segment is None else replace(features, query_features=None)
    shadows = shadows_of(shadow, policy, scores) if shadow else {}
    sides = shadows or _sides(policy or [], scores or [], log, features)
    other = shadows.pop(against) if against in shadows else other_side(against, log, features)
    question = asked.question(level=level)
    with working("reading the log and deciding"):
        found = decision.decide(
            sides,
            log.source,
            question,
            against=other,
            at_least=at_least,
            segment=segment,
            query_features=table,
            no_segment_below=no_segment_below,
            most_clicks=most_clicks,
            risk=risk,
            guardrails=_guardrails(guardrail or []),
        )
    if report is not None:
        from tandemrank.logs.sources import days_of, period_in
        from tandemrank.reports import decision as pages

        period = days_of(period_in(log.source))
        pages.report(found, command=command_line(), period=period, named=named).write(report)
    if as_json:
        print_json(found.summary())
    else:
        _print(found, report)
    raise typer.Exit(found.exit_code)


COLOURS = {"ship": "green", "canary": "yellow", "do not": "red"}


def _print(found: "Decision", report: Path | None) -> None:
    from tandemrank.reports import decision as pages

    words = pages.headline(found)
    show(typer.style(words, fg=COLOURS[found.call], bold=True) if sys.stdout.isatty() else words)
    if warning := pages.warning(found):
        show(warning)
    show(f"{found.reward} per impression above {found.against}; asked: more than {found.at_least:+g}")
    show(pages.policies(found).terminal())
    for one in found.candidates:
        show(f"{one.name}: {one.call}")
        for reason in one.reasons:
            show(f"  - {reason}")
        if one.segments:
            show(pages.segments(one).terminal(f"{one.name} by {found.segment_column}"))
    if report is not None:
        show(f"report: {report}")


def _guardrails(given: list[str]) -> dict[str, float | None]:
    """Rewards by name, with the least that is good."""
    found: dict[str, float | None] = {}
    for one in given:
        name, _, least = one.partition("=")
        try:
            found[name] = float(least) if least else None
        except ValueError as error:
            raise ConfigError(f"--guardrail takes NAME or NAME=LEAST, as clicks=-0.01; got {one!r}.") from error
    return found


def _sides(
    policies: list[Path], scores: list[Path], log: LogOptions, features: FeatureTables
) -> "dict[str, TwoStagePolicy]":
    """The policies by their paths."""
    if not policies and not scores:
        raise ConfigError("give at least one policy: --policy, a saved policy, or --scores, a Parquet of scores.")
    names = [str(path) for path in (*policies, *scores)]
    if len(set(names)) < len(names):
        raise ConfigError(f"expected every policy once; got {max(names, key=names.count)} twice.")
    saved = {str(path): policy_of(path, None, log, features) for path in policies}
    return saved | {str(path): policy_of(None, path, log) for path in scores}
