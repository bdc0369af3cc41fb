"""The proof: each claim with its number, as tables in Markdown, and one JSON object as the last line.

    python -m benchmarks.proof                          everything, about ten minutes on two cores
    python -m benchmarks.proof --only RLOO --seeds 1    only what has RLOO in its name, with one seed
    python -m benchmarks.proof --page docs/proof.md     writes the tables into the page, too

Exit code: 1 when a claim is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from benchmarks.proof.claims import Chapter, ChapterOf, Work, claim_table, table_of
from benchmarks.proof.known_answer import kl_placements, shares_of_the_optimum
from benchmarks.proof.learning import learned
from benchmarks.proof.mutation_score import mutation_score
from benchmarks.proof.seeded_faults import seeded_faults

CHAPTERS: tuple[ChapterOf, ...] = (shares_of_the_optimum, kl_placements, seeded_faults, mutation_score, learned)
BEGIN, END = "<!-- written by make proof: begin -->", "<!-- written by make proof: end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="runs and faults whose name holds this")
    parser.add_argument("--seeds", type=int, default=3, help="of each run of the first two chapters")
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced")
    options = parser.parse_args(arguments)
    if options.page is not None and options.only:
        parser.error("--page replaces all tables and takes no --only")
    context = multiprocessing.get_context("spawn")
    began = time.monotonic()
    with ProcessPoolExecutor(options.workers, context, torch.set_num_threads, (1,)) as pool:
        work = Work(pool, range(options.seeds), options.only)
        chapters = [chapter for chapter in map(shown, (chapter_of(work) for chapter_of in CHAPTERS)) if chapter.rows]
    print(f"{time.monotonic() - began:.0f} s with {options.workers} processes", file=sys.stderr)
    if options.page is not None:
        write_tables(options.page, chapters)
    return verdict(chapters)


def shown(chapter: Chapter) -> Chapter:
    if chapter.rows:
        print(text_of(chapter), flush=True)
    return chapter


def text_of(chapter: Chapter) -> str:
    return f"### {chapter.title}\n\n{chapter.text}\n\n{table_of(chapter.columns, chapter.rows)}\n"


def verdict(chapters: Sequence[Chapter]) -> int:
    """Prints all claims and the JSON line; the exit code."""
    claims = [claim for chapter in chapters for claim in chapter.claims]
    print(f"### Claims\n\n{claim_table(claims)}\n")
    print(json.dumps({claim.name: claim.to_json() for claim in claims}))
    return 0 if claims and all(claim.passed for claim in claims) else 1


def write_tables(page: Path, chapters: Sequence[Chapter]) -> None:
    """Raises ValueError where the page has no place for them."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no lines {BEGIN} and {END}")
    tables = "\n".join(text_of(chapter) for chapter in chapters)
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
