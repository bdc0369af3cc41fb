"""The ``tightrope`` command: which words exist, and how any mistake becomes one line and exit code 2.

Commands are named by import strings, so that ``--help`` and mistyped words never wait for torch.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnknownCommandError, UnknownOptionError

from tightrope import __version__
from tightrope.cli.arguments import INTERRUPTED
from tightrope.config.errors import TightropeError, one_line

WRONG_INPUT = 2
BROKEN_PIPE = 141
"""128 + SIGPIPE: whoever read our output left, as ``head`` does."""

LESS_MEMORY = (
    "a smaller model or model.lora needs less, and so do training.token_budget and model.gradient_checkpointing"
)

COMMANDS = {
    "demo": ("tightrope.cli.demo:demo", "Watch a small model learn from preferences, in minutes."),
    "check": ("tightrope.cli.check:check", "Prove a config and its data before anything is trained."),
    "sft": ("tightrope.cli.stages:sft", "Fine-tune on demonstrations."),
    "ppo": ("tightrope.cli.stages:ppo", "Train against a reward with PPO."),
    "rloo": ("tightrope.cli.stages:rloo", "Train against a reward with RLOO."),
    "dpo": ("tightrope.cli.stages:dpo", "Train on preferences directly with DPO."),
    "train": ("tightrope.cli.stages:train_any", "Run the stage a config names, a plugin's algorithm too."),
    "resume": ("tightrope.cli.stages:resume", "Go on with a run that was interrupted, bit for bit."),
    "generate": ("tightrope.cli.generate:generate", "Write several answers to each prompt, to be compared."),
    "label": ("tightrope.cli.label:label", "Compare answers in the terminal and write preferences."),
    "eval": ("tightrope.cli.eval:evaluate", "Measure a model with several judges, alone or against another."),
    "chat": ("tightrope.cli.chat:chat", "Talk to a model in the terminal."),
    "export": ("tightrope.cli.export:export", "Write a run's model as a folder for other tools."),
    "samples": ("tightrope.cli.samples:samples", "Read what the policy wrote at any step of a run."),
    "env": ("tightrope.cli.env:env", "Show versions and the machine, for a bug report."),
}
REWARD_MODEL_COMMANDS = {
    "train": ("tightrope.cli.rm:train", "Train a reward model on preferences."),
    "score": ("tightrope.cli.rm:score", "Score answers with a reward model."),
    "audit": ("tightrope.cli.audit:audit", "Find what is wrong with a reward model or its data."),
    "serve": ("tightrope.cli.serve:serve", "Give rewards to other processes over HTTP."),
}

CONFIG_COMMANDS = {
    "explain": ("tightrope.cli.config:explain", "Say what an option is, and where its value comes from."),
    "show": ("tightrope.cli.config:show", "Show every value of a config and where it comes from."),
    "schema": ("tightrope.cli.config:schema", "Print the JSON Schema for editors."),
}


def build() -> App:
    # Help texts are plain: markdown would load a parser at each --help.
    app = App(
        name="tightrope",
        help="RLHF on one machine: SFT, reward model, PPO, RLOO, DPO. With any command: --threads N, to compute on N.",
        help_format="plaintext",
        version=__version__,
    )
    reward_model = App(
        name="rm", help="Train a reward model; score with it, audit it, serve it.", help_format="plaintext"
    )
    config = App(name="config", help="Explain options, and where a config's values come from.", help_format="plaintext")
    groups = ((app, COMMANDS), (reward_model, REWARD_MODEL_COMMANDS), (config, CONFIG_COMMANDS))
    for group, commands in groups:
        for name, (function, help_line) in commands.items():
            group.command(function, name=name, help=help_line)
    app.command(reward_model)
    app.command(config)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command; leaves the process with an exit code when something is wrong."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    quiet_libraries()
    try:
        words = without_threads(words)
        build()(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except UnknownCommandError:
        fail(unknown_command(words))
    except UnknownOptionError as error:
        fail(unknown_option(words) or misused(error))
    except CycloptsError as error:
        fail(misused(error))
    except TightropeError as error:
        fail(error)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes stdout once more at exit, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BROKEN_PIPE) from None
    except OSError as error:
        fail(told_by_the_system(error))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        fail(TightropeError("out of memory", found=str(error).partition("\n")[0] or None, fix=LESS_MEMORY))


def told_by_the_system(error: OSError) -> TightropeError:
    """A file or device that is not there, not ours, or full."""
    where = None if error.filename is None else str(error.filename)
    return TightropeError(error.strerror or str(error) or type(error).__name__, where=where)


def out_of_memory(error: Exception) -> bool:
    """torch has no class for a CPU that is full, and looking its class up would import it.

    >>> out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")), out_of_memory(RuntimeError("x"))
    (True, False)
    """
    told = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in told or "can't allocate memory" in told


def quiet_libraries() -> None:
    """Read by libraries when they are first imported; what a person has set stays."""
    # Idle OpenMP threads spin by default: beside one other busy program a small model trains 7 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # "Writing model shards" and "Loading weights" would be drawn across the panel.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def without_threads(words: Sequence[str]) -> list[str]:
    """Takes ``--threads N`` of any command: torch reads the number when it is imported. Raises TightropeError.

    >>> without_threads(["ppo", "run.yaml"])
    ['ppo', 'run.yaml']
    """
    left = list(words)
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name != "--threads":
            continue
        end = place + (1 if equals else 2)
        asked = value if equals else "".join(words[place + 1 : end])
        if not (asked.isascii() and asked.isdigit() and int(asked) > 0):
            raise TightropeError(
                "not a number of threads", where="--threads", expected="1 or more", found=asked or None
            )
        os.environ["OMP_NUM_THREADS"] = asked
        del left[place:end]
        break
    return left


def misused(error: CycloptsError) -> TightropeError:
    what = one_line(str(error)).rstrip(".")
    return TightropeError(what, fix=None if "Did you mean" in what else "see tightrope --help")


def unknown_option(words: Sequence[str]) -> TightropeError | None:
    from tightrope.cli.flags import option_as_flag

    return option_as_flag(words)


def unknown_command(words: Sequence[str]) -> TightropeError:
    """cyclopts would import every command to say this."""
    groups = {"rm": REWARD_MODEL_COMMANDS, "config": CONFIG_COMMANDS}
    within, names = (f"{words[0]} ", groups[words[0]]) if words[0] in groups else ("", {**COMMANDS, **groups})
    word = words[1] if within and words[1:] else words[0]
    near = difflib.get_close_matches(word, names, n=1)
    return TightropeError(
        f"there is no {'option' if word.startswith('-') else 'command'} `{within}{word}`",
        fix=f"did you mean `tightrope {within}{near[0]}`?" if near else f"see tightrope {within}--help",
    )


def fail(error: TightropeError) -> None:
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(WRONG_INPUT) from error


if __name__ == "__main__":
    main()
