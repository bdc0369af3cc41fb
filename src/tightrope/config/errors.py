"""What does a person read when something they gave us is wrong? One line: where, what, and the likely fix."""

from __future__ import annotations


class TightropeError(Exception):
    """A mistake in what the user gave (config, data, model folder), told in one line.

    >>> print(TightropeError("wrong type", where="ppo.yaml:3", expected="a number", found="'low'", fix="write 0.1"))
    ppo.yaml:3: wrong type; expected a number, found 'low'; write 0.1
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        found: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.found = found
        self.expected = expected
        self.fix = fix

    def __str__(self) -> str:
        expected = f"expected {self.expected}" if self.expected else ""
        found = f"found {self.found}" if self.found else ""
        contrast = ", ".join(part for part in (expected, found) if part)
        line = "; ".join(part for part in (self.what, contrast, self.fix) if part)
        return one_line(f"{self.where}: {line}" if self.where else line)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive Exception's own reduce; workers send errors between processes.
        return rebuild, (self.what, self.where, self.found, self.expected, self.fix)


class NonFiniteNumbers(TightropeError):
    """NaN or infinity where a number was needed: nothing is learned from it."""


class CheckpointMissed(TightropeError):
    """A checkpoint could not be written; the one before it is untouched. ``misses`` counts them in a row."""

    misses: int = 0


def rebuild(what: str, where: str | None, found: str | None, expected: str | None, fix: str | None) -> TightropeError:
    return TightropeError(what, where=where, found=found, expected=expected, fix=fix)


def one_line(text: str) -> str:
    """Text without line breaks or other control characters, so that it can neither split nor repaint a terminal line.

    >>> one_line("two\\nlines")
    'two lines'
    """
    joined = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in joined)
