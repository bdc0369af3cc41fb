"""``tightrope export``: a run's model as a folder that transformers and peft load, with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tightrope.config.errors import TightropeError


def export(
    run: Path,
    /,
    *,
    checkpoint: Annotated[str, Parameter(help="latest, best (on held-out data), or iter-N.")] = "latest",
    to: Annotated[Path | None, Parameter(help="Folder to write. Absent: the run's own export folder.")] = None,
    merged: Annotated[
        bool | None,
        Parameter(negative="--adapter", help="Only the whole model, or only the LoRA adapter. Absent: both."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None, Parameter(help="Type of the stored weights. Absent: as trained.")
    ] = None,
) -> None:
    """Write the model of a run, finished or stopped, as a Hugging Face folder with a model card.

    Parameters
    ----------
    run
        Folder of the run.
    """
    if to is not None and to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise TightropeError("this folder is not empty", where=str(to), fix="choose another --to")
    import torch

    from tightrope.assemble.export import export_run
    from tightrope.models.export import Form

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    form = Form(merged=merged is not False, adapter=merged is not True, dtype=None if dtype is None else kinds[dtype])
    done = export_run(run, checkpoint, to, form)
    print(f"step {done.step} of {done.total}: {done.folder}")
