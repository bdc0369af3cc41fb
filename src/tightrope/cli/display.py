"""What a person sees while a run goes on: a live panel on a terminal, one plain line a step elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tightrope.assemble.fanout import Nobody
from tightrope.protocols import Display
from tightrope.records import StepRecord
from tightrope.storage.samples import printable
from tightrope.types import Rollout, Scores

TILES = {
    "reward": ("reward", "{:+.3f}"),
    "held_out": ("held-out judge", "{:+.3f}"),
    "kl_seq": ("KL, nats/response", "{:.2f}"),
    "beta": ("beta", "{:.4f}"),
    "entropy_tok": ("entropy, nats/token", "{:.2f}"),
    "clip_fraction": ("clip fraction", "{:.1%}"),
    "explained_variance": ("explained variance", "{:+.2f}"),
    "response_tokens": ("response tokens", "{:.1f}"),
    "stopped_share": ("ended by itself", "{:.0%}"),
    "nll_tok": ("NLL, nats/token", "{:.3f}"),
    "held_out_nll": ("held-out NLL", "{:.3f}"),
    "loss": ("loss", "{:.4f}"),
    "accuracy": ("accuracy", "{:.1%}"),
    "held_out_accuracy": ("held-out accuracy", "{:.1%}"),
    "reward_chosen": ("reward of chosen", "{:+.3f}"),
    "reward_rejected": ("reward of rejected", "{:+.3f}"),
    "nonfinite": ("non-finite numbers", "{:.0f}"),
}

HELD_OUT_STAGES = ("/probe", "/held_out")
HELD_OUT_TILES = {"held_out": "held_out", "nll_tok": "held_out_nll", "accuracy": "held_out_accuracy"}
"""What the panel takes from a record about held-out rows, and the tile on which it stays until the next one."""

EVERY_STEP_UP_TO = 100
LINES_OF_A_LONG_RUN = 50


class ProbePair:
    """The first probe prompt with the response before training and the newest one."""

    def __init__(self) -> None:
        self.prompt: str | None = None
        self.before = ""
        self.now = ""

    def take(self, rollout: Rollout) -> None:
        if self.prompt is None:
            self.prompt = printable(rollout.prompts[0].text)
            self.before = printable(rollout.responses[0])
        self.now = printable(rollout.responses[0])


class Lines:
    """One line a step: for logs, pipes and continuous integration. Every ``digest_every`` steps a few samples too.

    Of a run over ``EVERY_STEP_UP_TO`` steps about ``LINES_OF_A_LONG_RUN`` lines are shown, and all with a note; the
    metrics on disk have every step.
    """

    def __init__(self, total_steps: int, digest_every: int = 0) -> None:
        self._total = total_steps
        self._digest_every = digest_every
        self._every = 1 if total_steps <= EVERY_STEP_UP_TO else total_steps // LINES_OF_A_LONG_RUN

    def write(self, record: StepRecord) -> None:
        of_training = not record.stage.endswith(HELD_OUT_STAGES)
        if of_training and not record.notes and record.step % self._every and record.step + 1 < self._total:
            return
        shown = {**record.metrics, **record.controls}
        parts = [f"{name} {form.format(shown[name])}" for name, (_, form) in TILES.items() if name in shown]
        note = "".join(f"  ! {text}" for text in record.notes.values())
        where = f"{record.stage} {record.step}/{self._total}"
        print(f"{where}  " + "  ".join(parts) + f"  {sum(record.seconds.values()):.1f}s" + note, flush=True)

    def keep(self, step: int, attempt: int, rollout: Rollout, scores: Scores, split: str) -> None:
        if split != "train" or not self._digest_every or step % self._digest_every:
            return
        for i in range(min(3, rollout.n_sequences)):
            prompt = printable(rollout.prompts[int(rollout.prompt_index[i])].text)
            print(f"    {float(scores.reward[i]):+.2f}  {prompt} ▸ {printable(rollout.responses[i])}", flush=True)

    def close(self) -> None:
        """Lines are complete as they are printed."""


class LivePanel:
    """Tiles, progress with ETA, and one probe prompt before and now, redrawn at each record."""

    def __init__(self, stage: str, total_steps: int, console: Console) -> None:
        self._stage = stage
        self._total = total_steps
        self._training: dict[str, float] = {}
        self._held_out: dict[str, float] = {}
        self._step = 0
        self._notes: deque[str] = deque(maxlen=3)
        self._pair = ProbePair()
        self._started: tuple[float, int] | None = None
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def write(self, record: StepRecord) -> None:
        self._record(record)
        self._live.update(self._render())

    def keep(self, step: int, attempt: int, rollout: Rollout, scores: Scores, split: str) -> None:
        if split == "probe":
            self._pair.take(rollout)
            self._live.update(self._render())

    def _record(self, record: StepRecord) -> None:
        if record.stage.endswith(HELD_OUT_STAGES):
            self._held_out = {tile: record.metrics[k] for k, tile in HELD_OUT_TILES.items() if k in record.metrics}
            return
        if self._started is None:
            self._started = (time.monotonic(), record.step)
        self._step = record.step + 1
        self._training = {**record.metrics, **record.controls}
        self._notes.extend(printable(text) for text in record.notes.values())

    def _eta(self) -> str:
        if self._started is None or self._step <= self._started[1] + 1:
            return "ETA …"
        per_step = (time.monotonic() - self._started[0]) / (self._step - self._started[1] - 1)
        return f"ETA {per_step * (self._total - self._step):.0f} s"

    def _render(self) -> Panel:
        bar = Table.grid(expand=True)  # a bar by itself does not end its line
        bar.add_row(ProgressBar(total=self._total, completed=self._step))
        tiles = Table.grid(padding=(0, 3))
        shown = self._training | self._held_out
        cells = [tile(name, shown) for name in TILES if name in shown]
        for start in range(0, len(cells), 4):
            tiles.add_row(*cells[start : start + 4])
        rows: list[RenderableType] = [bar, tiles]
        if self._pair.prompt is not None:
            rows.append(Text.assemble(("probe   ", "dim"), (self._pair.prompt, "bold")))
            rows.append(Text.assemble(("before  ", "dim"), self._pair.before))
            rows.append(Text.assemble(("now     ", "dim"), (self._pair.now, "green")))
        rows += [Text(f"! {note}", style="red") for note in self._notes]
        return Panel(
            Group(*rows), title=f"{self._stage}  {self._step}/{self._total}  {self._eta()}", title_align="left"
        )

    def close(self) -> None:
        self._live.stop()


def tile(name: str, shown: Mapping[str, float]) -> Text:
    """A label over its value; the KL beside its target."""
    label, form = TILES[name]
    value = form.format(shown[name])
    if name == "kl_seq" and "kl_target" in shown:
        value += f" / {shown['kl_target']:.1f}"
    return Text.assemble((f"{label}\n", "dim"), (value, "bold"))


def display_for(stage: str, total_steps: int, quiet: bool, digest_every: int = 0) -> Display:
    if quiet:
        return Nobody()
    if sys.stdout.isatty():
        return LivePanel(stage, total_steps, Console())
    return Lines(total_steps, digest_every)
