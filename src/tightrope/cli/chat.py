"""``tightrope chat``: talk to a model in the terminal, or through a pipe.

What a model writes is hostile: it goes through ``printable`` before it reaches the terminal.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tightrope.cli.arguments import Seed, Temperature, new_tokens_of
from tightrope.cli.flags import require_numbers
from tightrope.config.errors import TightropeError
from tightrope.config.schema import LEAST_TEMPERATURE
from tightrope.storage.samples import printable

if TYPE_CHECKING:
    from tightrope.assemble.conversation import Conversation, Talker

USUAL_NEW_TOKENS = 256
HELP = """/reset                forget the conversation        /undo    take the last question and answer back
/retry                another answer                 /compare the same question to the base (LoRA runs)
/system TEXT          set or clear the instruction   /set temperature 0.7
/save FILE.jsonl      add the conversation as a row  /quit    or Ctrl-D; Ctrl-C stops an answer"""


def chat(
    model: Path,
    /,
    *,
    system: Annotated[str | None, Parameter(help="Instruction before the conversation.")] = None,
    reward: Annotated[Path | None, Parameter(help="Reward model whose score stands under each answer.")] = None,
    temperature: Temperature = 1.0,
    max_new_tokens: Annotated[
        int | None, Parameter(help="Longer answers are cut. Absent: 256, or half the context if that is less.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Talk to a model: each line is a question, `/help` lists the commands. Lines may also come from a pipe.

    A model without a chat template goes on with the text. When the context is full the oldest turns are dropped.

    Parameters
    ----------
    model
        Model folder or run.
    """
    require_numbers({"--max-new-tokens": max_new_tokens}, temperature, seed)
    from tightrope.assemble.conversation import Conversation, Talker

    talker = Talker(model, reward, seed)
    new_tokens = new_tokens_of(max_new_tokens, USUAL_NEW_TOKENS, talker.context)
    session = Session(talker, Conversation(system), temperature, new_tokens)
    if not talker.has_template:
        note("this model has no chat template: it goes on with the text")
    session.run()


def note(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def read_line() -> str | None:
    """None at the end of the input."""
    try:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        note("\n/quit or Ctrl-D leaves")
        return ""
    return line.strip() if line else None


class Session:
    def __init__(self, talker: Talker, talk: Conversation, temperature: float, new_tokens: int) -> None:
        self._talker, self._talk = talker, talk
        self._temperature, self._new_tokens = temperature, new_tokens

    def run(self) -> None:
        while (line := read_line()) is not None:
            try:
                if line.startswith("/"):
                    if self._command(*line.partition(" ")[::2]):
                        return
                elif line:
                    self._ask(line)
            except TightropeError as error:
                note(f"error: {error}")

    def _command(self, word: str, rest: str) -> bool:
        """True when it is time to leave."""
        turns = self._talk.turns
        if word == "/quit":
            return True
        if word == "/help":
            note(HELP)
        elif word == "/reset":
            turns.clear()
        elif word == "/system":
            self._talk.system = rest or None
        elif word == "/set":
            self._set(rest)
        elif word == "/save":
            self._save(rest)
        elif word in ("/undo", "/retry", "/compare"):
            self._again(word)
        else:
            note(f"no command {word}; /help lists them")
        return False

    def _again(self, word: str) -> None:
        turns = self._talk.turns
        if len(turns) < 2:
            note("nothing was asked yet")
        elif word == "/compare" and not self._talker.compares:
            note("there is no base to compare with: give a LoRA run whose base model is still there")
        elif word == "/compare":
            answer = turns.pop()
            note("base:")
            try:
                self._write(base=True)
            finally:
                turns.append(answer)
        else:
            answer, question = turns.pop(), turns.pop()
            if word == "/retry":
                try:
                    self._ask(question["content"])
                except TightropeError:
                    turns += [question, answer]
                    raise

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if name != "temperature" or not LEAST_TEMPERATURE <= number < math.inf:
            raise TightropeError("cannot be set", found=rest or "nothing", expected="/set temperature 0.7")
        self._temperature = number

    def _save(self, name: str) -> None:
        if not name:
            raise TightropeError("no file", expected="/save FILE.jsonl")
        try:
            with Path(name).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"messages": self._talk.messages}) + "\n")
        except OSError as error:
            raise TightropeError("cannot be written", where=name, found=error.strerror) from error
        note(f"saved: {name}")

    def _ask(self, question: str) -> None:
        """A question that got no answer is no part of the talk: the next one would be the second in a row."""
        turns = self._talk.turns
        turns.append({"role": "user", "content": question})
        try:
            dropped = self._talker.fit(self._talk, self._new_tokens)
            if dropped:
                note(f"the context is full: the oldest {dropped} turns were dropped")
            answer = self._write(base=False)
            score = self._talker.score(self._talk, answer)
        except TightropeError:
            turns.pop()
            raise
        turns.append({"role": "assistant", "content": answer})
        if score is not None:
            note(f"reward {score:+.3f}")

    def _write(self, *, base: bool) -> str:
        """Ctrl-C keeps what was written so far."""
        said = ""
        try:
            for piece in self._talker.answer(self._talk, self._temperature, self._new_tokens, base=base):
                said += piece
                print(printable(piece), end="", flush=True)
        except KeyboardInterrupt:
            note(" (stopped)")
        print(flush=True)
        return said
