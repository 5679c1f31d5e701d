"""The verdicts: the words that every command, page and document uses, and the rules by which one is given."""

from enum import StrEnum

from tandemrank.clicks.examination import Behaviour
from tandemrank.logs.description import CARE_LISTS, REFUSE_LISTS
from tandemrank.logs.pairs import Contradiction, Dependence
from tandemrank.offpolicy.diagnostics import Diagnostics
from tandemrank.offpolicy.uncertainty import FEW_QUERIES, Pooled

# The verdict. Where exposure is missing beyond three standard errors and these shares, or so little data is left:
CARE_MISSING, REFUSE_MISSING = 0.05, 0.2
CARE_SAMPLE, REFUSE_SAMPLE = 300.0, 30.0
# Of what counts as it is believed, since the query was never shown it (docs/explanation/what-a-log-can-answer.md).
CARE_UNSEEN, REFUSE_UNSEEN = 0.2, 0.5
# Of what was examined, so little is left that single weights decide; an interval knows those that met a click alone.
CARE_EFFECTIVE = 0.01
CARE_QUERIES = FEW_QUERIES
CARE_LARGEST = 0.1
CARE_CLIPPED = 0.05
CONTRADICTS = "the log contradicts the examination curve"
SUM_OF_THETA = 0.1  # so close to sum_k theta_k a wrong balance is likely that of P(item at position)


class Verdict(StrEnum):
    """May a value be believed? From good to bad; the words are those of every table, page and JSON document."""

    OBSERVED = "as the log shows it"
    TRUST = "trust it"
    CARE = "use with care"
    REFUSE = "cannot be answered from this log"

    @property
    def meaning(self) -> str:
        """What the word says, in a sentence."""
        return MEANINGS[self]


MEANINGS = {
    Verdict.OBSERVED: "these are the clicks of the log itself, nothing was estimated",
    Verdict.TRUST: "the log supports the value and its interval",
    Verdict.CARE: "the log supports the value only in part: the uncertainty is larger than the interval",
    Verdict.REFUSE: "the log says too little about what this policy would show; do not use the value",
}


SEEN = (
    "the policy was trained on this very log, so what it was lucky with there counts again: the value is too high. Ask a log "
    "that it has not seen, or take the value that `learn` printed"
)


def worst(*verdicts: Verdict) -> Verdict:
    """The worst of several verdicts: what rests on all of them deserves no better."""
    return max(verdicts, key=list(Verdict).index)


def judge(
    found: Diagnostics,
    *,
    fitted_lists: float | None = None,
    against_model: str | None = None,
    over_impressions: bool = False,
    completed: bool = False,
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict and its reasons: the worst that is found decides.

    `fitted_lists`: lists per query that the logging policy was fitted to, None where it is known. `against_model`: what the log
    says against the click model. `over_impressions`: so is the interval, since queries are few. `completed`: what was never
    shown counts as it is believed, so that weights have nothing to balance.
    """
    of_exposure = _unseen if completed else _exposure_rules
    refusals = [*of_exposure(found, REFUSE_MISSING), *_refusals(found), *_fitted(fitted_lists, REFUSE_LISTS)]
    cautions = [
        *of_exposure(found, CARE_MISSING),
        *_cautions(found, over_impressions=over_impressions),
        *_fitted(fitted_lists, CARE_LISTS),
    ]
    curve = () if against_model is None else (against_model,)
    if reasons := tuple(reason for holds, reason in refusals if holds):
        return Verdict.REFUSE, (*reasons, *curve)
    if reasons := (*(reason for holds, reason in cautions if holds), *curve):
        return Verdict.CARE, reasons
    left = f"{found.effective_sample_size:.0f} effective of {found.examined:.0f} examined items"
    fits = f"{1 - found.unsupported:.0%} of it was shown to the query" if completed else f"balance {found.balance:.2f}"
    supports = f"the log supports what the policy would show: {fits}, {left}"
    about = f"; the interval is over impressions, about these {found.queries} queries alone" if over_impressions else ""
    return Verdict.TRUST, (f"{supports}{about}",)


def curve_words(found: Contradiction) -> str:
    """What to do about a curve that the log contradicts."""
    return (
        f"{CONTRADICTS}: {found.words}. Estimate it from the log: `tandemrank examine --logs LOG "
        "--json > curve.json`, then --curve curve.json"
    )


def stopping_words(found: Dependence) -> str:
    """What to do about readers who stop after a click, where the log does not say how they read on."""
    return f"{CONTRADICTS}: {found.words}, and the log cannot tell how they read on, so the value may be far too high"


def cells_words(found: Behaviour) -> str:
    """What a log says for examination by more than the rank."""
    if found.cells is not None and found.cells.offset and found.trust is not None:
        return f"{found.trust.words}: estimated from the log, and taken out"
    said = "" if found.dependence is None else f"{found.dependence.words}: "
    goes = "down the list" if found.cells is None or found.cells.down else "here and there"
    return f"{said}examination by rank and last click was estimated from the log ({goes}), and is used"


def _refusals(found: Diagnostics) -> list[tuple[bool, str]]:
    """What makes a value useless, and whether it holds."""
    return [
        (found.effective_sample_size < REFUSE_SAMPLE, _few(found)),
        (found.clicks == 0, "no item that the new policy would show was ever clicked"),
    ]


def _cautions(found: Diagnostics, *, over_impressions: bool) -> list[tuple[bool, str]]:
    """What makes an interval too narrow, and whether it holds."""
    largest = f"one (query, item) pair carries {found.largest_share:.0%} of all weight"
    clipped = f"{found.clipped:.0%} of the propensities are clipped, so the value is too low"
    return [
        (found.effective_sample_size < max(CARE_SAMPLE, CARE_EFFECTIVE * found.examined), _few(found)),
        (
            found.queries < CARE_QUERIES and not over_impressions,
            f"an interval from {found.queries} queries is too narrow",
        ),
        # Of few queries a pair may have much of the exposure itself, and be shown often.
        (found.largest_share > CARE_LARGEST and not over_impressions, largest),
        (found.clipped > CARE_CLIPPED, clipped),
    ]


def _fitted(lists: float | None, least: int) -> list[tuple[bool, str]]:
    """Whether a policy was fitted to too few lists of a query to know its tastes.

    What the logger knew of a query and the fit does not, made relevant items likelier to be shown than the fit believes: a
    value by its propensities is too high, and no interval over queries says so.
    """
    few = lists is not None and lists < least
    said = "" if lists is None else f"the logging policy was fitted to {lists:.3g} lists per query"
    return [
        (
            few,
            f"{said}, fewer than {least}: its propensities are too small for what it liked, and the value too high",
        )
    ]


def _unseen(found: Diagnostics, share: float) -> list[tuple[bool, str]]:
    """Whether too much of what the policy shows was never shown to the query and is believed alone: what chance can have left
    out, or a share of what it cannot."""
    most = REFUSE_UNSEEN if share == REFUSE_MISSING else CARE_UNSEEN
    never = f"{found.unsupported:.0%} of its exposure goes to items that the query was never shown{found.stages()}"
    believed = "these count as they are believed, as far as that holds where items were shown"
    beyond = found.unsupported * (1 - found.by_chance)
    return [
        (found.unsupported > most, f"{never}: {believed}"),
        (
            beyond > share and found.unsupported <= most,
            f"{never}, more than chance left out ({found.shown_once:.0%} goes to items that were shown once): {believed}",
        ),
    ]


def is_outside(found: Diagnostics, share: float = REFUSE_MISSING) -> bool:
    """Whether more than a share of what the policy shows is, surely, outside what the log can speak about."""
    return 1 - found.balance > max(share, 3 * found.balance_error)


def _exposure_rules(found: Diagnostics, share: float) -> list[tuple[bool, str]]:
    """Whether weighted exposure is off by more than a share, surely: too little, too much, or not known well enough."""
    off = found.balance - 1
    sure = abs(off) > 3 * found.balance_error
    stages = f"{found.unsupported:.0%} of its exposure goes to items that the query was never shown{found.stages()}"
    return [
        (
            is_outside(found, share),
            misfit_words(found)
            if -off - found.unsupported > max(-off / 2, 3 * found.balance_error)
            else f"{-off:.0%} of what the new policy shows is outside what the log can speak about ({stages})",
        ),
        (sure and off > share, misfit_words(found)),
        (
            found.balance_error > share,
            f"weighted exposure is known only to +-{1.96 * found.balance_error:.0%}, so a few items decide the value",
        ),
    ]


def misfit_words(found: Diagnostics) -> str:
    """Weighted exposure is too much, or too little of what was shown, and what may have been logged instead of rho_0, if any.

    With P(item at its position) it is too much by sum_k theta_k; P(item in the list) is never below rho_0.
    """
    said = f"the propensities do not fit the log: weighted exposure is {found.balance:.2f} of what it should be"
    if found.balance < 1:
        said = f"{said}, and {found.unsupported:.0%} goes to items that the query was never shown"
        hint = ". They are too large, as P(item in the list) is, or belong to another examination curve (--curve)"
        return f"{said}{hint}" if found.logged else said
    examined = found.examined * found.heaviest / found.impressions
    is_sum_of_theta = abs(found.balance - examined) <= max(3 * found.balance_error, SUM_OF_THETA * examined)
    asks = ". Did you log P(item at position)? A propensity is its sum over positions, each times theta"
    return f"{said}{asks}" if is_sum_of_theta and found.logged else said


def pooled_words(found: Pooled) -> str:
    """What propensities that change together with what is liked would do to a value."""
    return (
        f"propensities changed together with what is liked: by their mean over time the value would be {found.pooled:.4g}; "
        "every click counts by the propensity of its own showing"
    )


def _few(found: Diagnostics) -> str:
    left = f"the weights leave {found.effective_sample_size:.0f} effective of {found.examined:.0f} examined items"
    return left if found.effective_sample_size < CARE_SAMPLE else f"{left}: a few of them decide the value"
