"""The verdicts, in words: the one table that every command, page and document uses."""

from enum import StrEnum


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
    Verdict.CARE: "the interval is too narrow, for the log supports less than it says",
    Verdict.REFUSE: "the log says too little about what this pair would show; do not use the value",
}


def worst(*verdicts: Verdict) -> Verdict:
    """The worst of several verdicts: what rests on all of them deserves no better."""
    return max(verdicts, key=list(Verdict).index)
