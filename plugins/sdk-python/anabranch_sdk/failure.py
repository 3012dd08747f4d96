"""Failures by class."""

from __future__ import annotations

from typing import Literal

FailureClass = Literal["retry", "poison", "fatal"]
_CLASSES = ("retry", "poison", "fatal")


class Failure(Exception):
    """Why a change or document could not be processed.

    Raise it; anything else that is raised is poison, code `exception`.
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


def failure_of(raised: Exception, who: str = "the transform") -> Failure:
    """What was raised while one change was answered, as its failure."""
    if isinstance(raised, Failure):
        return raised
    return Failure.poison("exception", f"{who} raised {type(raised).__name__}: {raised}")


def sendable(text: str) -> str:
    """A text as it may leave the guest: a half of a character, which UTF-8 does not have, is replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
