"""Failures by class."""

from __future__ import annotations

from typing import Literal

FailureClass = Literal["retry", "poison", "fatal"]
_CLASSES = ("retry", "poison", "fatal")


class Failure(Exception):
    """Why a change or document could not be processed.

    Raise it. Anything else that is raised has the code `exception`: of a transform it is poison of its change; of a sink
    it is retry, since no document is at fault for it, and fatal while it is opened.
    """

    def __init__(self, failure_class: FailureClass, code: str, message: str, *, after: float | None = None) -> None:
        super().__init__(message)
        if failure_class not in _CLASSES:
            raise ValueError(f"{failure_class!r} is no class of failure: {', '.join(_CLASSES)}")
        #: What can be done about it.
        self.failure_class: FailureClass = failure_class
        #: A short stable word for programs, such as `bad-currency`.
        self.code = str(code)
        #: For people: what is wrong and what to do. Never a secret.
        self.message = str(message)
        #: After how many seconds a retry is welcome, where a sink knows it.
        self.after = after

    @classmethod
    def retry(cls, code: str, message: str, *, after: float | None = None) -> Failure:
        """It may work later: the host tries again. A sink may say after how many seconds that is welcome."""
        return cls("retry", code, message, after=after)

    @classmethod
    def poison(cls, code: str, message: str) -> Failure:
        """This change or document can never work; others can."""
        return cls("poison", code, message)

    @classmethod
    def fatal(cls, code: str, message: str) -> Failure:
        """Nothing can work as things are configured or written."""
        return cls("fatal", code, message)


def failure_of(raised: Exception) -> Failure:
    """What was raised while one change was answered: no Failure is poison. The same row would come to the same."""
    return _exception(raised, "the transform", "poison")


def sink_failure(raised: Exception, failure_class: FailureClass = "retry") -> Failure:
    """What a sink raised: no Failure is retry. A connection may have broken, for which no document is given up."""
    return _exception(raised, "the sink", failure_class)


def _exception(raised: Exception, who: str, failure_class: FailureClass) -> Failure:
    if isinstance(raised, Failure):
        return raised
    return Failure(failure_class, "exception", f"{who} raised {type(raised).__name__}: {raised}")


def whole(which: str, text: str) -> str:
    """A text that the host takes: one that has half a character would end the call."""
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = f"{which} has half a character, which UTF-8 does not have: the host takes none"
        raise Failure.poison("text", problem) from None
    return text


def sendable(text: str) -> str:
    """A text as it may leave the guest: a half of a character, which UTF-8 does not have, is replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def done(returned: object, who: str) -> object:
    """What an author's function returned: a coroutine has done nothing yet, and a Failure is one also where it is returned."""
    if isinstance(returned, Failure):
        raise returned
    if hasattr(returned, "__await__"):
        close = getattr(returned, "close", None)
        if close is not None:
            close()
        raise Failure.fatal("async", f"{who} returned an awaitable; it has to answer at once")
    return returned
