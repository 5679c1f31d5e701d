"""One call, and how it ended: fine (also with a message of ours), in a traceback, or not at all."""

import faulthandler
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

SECONDS, FIRST_SECONDS = 30, 600  # of a call, and of the first one of a target, which compiles kernels


@dataclass(frozen=True)
class Call:
    """`run` ends without an exception where all is well; `words` say what it is."""

    words: str
    run: Callable[[], None]


@dataclass(frozen=True)
class Problem:
    """How a call ended that should have ended otherwise."""

    kind: Literal["traceback", "hang"]
    call: str
    why: str

    @property
    def where(self) -> str:
        """The last line of ours that it went through."""
        return self.why.rpartition(" at ")[2]


class HangError(BaseException):
    """A call took too long. Not an `Exception`, so that nobody takes it for an error of theirs."""


def problem_of(call: Call, seconds: int = SECONDS) -> Problem | None:
    """What is wrong with how a call ends, None for nothing."""

    def late(*_: object) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    faulthandler.dump_traceback_later(3 * seconds, exit=True)  # where no signal is heard, inside a library
    try:
        call.run()
    except HangError:
        return Problem("hang", call.words, where())
    except BaseException:
        return Problem("traceback", call.words, where())
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
    return None


def where() -> str:
    """The exception under way, and the last line of ours that it went through."""
    lines = traceback.format_exc().strip().splitlines()
    ours = [line.strip() for line in lines if "tandemrank/" in line]
    return f"{lines[-1][:300]} at {ours[-1] if ours else lines[-3].strip()}"
