"""Plain text to go on pretraining on: documents, cut into pieces, one endless shuffled stream.

    document   one text file, one row of a JSONL, CSV or parquet file (column ``text``), one topic of ``builtin``
    piece      at most ``length`` tokens of one document; the next piece begins with the token this one ends with, so
               every token but a document's first is predicted exactly once an epoch

Pieces lie back to back in a pass and never see each other. No special tokens are added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from tightrope.config.errors import TightropeError
from tightrope.data.readers import checked_text, placed, read_bytes, read_rows, short, text_of
from tightrope.data.samplers import EpochOrders
from tightrope.protocols import State
from tightrope.types import Demonstrations, TokenRows

BUILTIN = "builtin"
BUILTIN_HELD_OUT = 10
"""Every so many topics, one is held out."""
TEXT_FILES = (".txt", ".md")
ROW_FILES = (".jsonl", ".json", ".ndjson", ".csv", ".parquet")


def corpus_files(corpus: str) -> list[Path]:
    """The files of ``ptx.corpus``, sorted; none for the built-in one. Raises TightropeError for an empty folder."""
    if corpus == BUILTIN:
        return []
    path = Path(corpus)
    if not path.is_dir():
        return [path]
    known = TEXT_FILES + ROW_FILES
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix.lower() in known)
    if not found:
        raise TightropeError("the corpus folder holds no text", where=corpus, expected=" or ".join(known))
    return found


def read_documents(corpus: str, held_out: bool = False) -> list[str]:
    """``held_out``: to be measured on and never trained on, every tenth topic of the built-in text. Of a user's own
    text all is there for either. Raises TightropeError for a file or row that cannot be read."""
    if corpus == BUILTIN:
        from pydoc_data.topics import topics  # Python's own documentation

        texts = list(dict.fromkeys(topics[name] for name in sorted(topics)))  # some stand there under several names
        return [text for i, text in enumerate(texts) if (i % BUILTIN_HELD_OUT == 0) == held_out]
    return [document for file in corpus_files(corpus) for document in documents_of(file)]


def documents_of(file: Path) -> list[str]:
    if file.suffix.lower() in ROW_FILES:
        documents = list[str]()
        for row in read_rows(file):
            with placed(row.where):
                documents.append(text_of(row.values, "text"))
        return documents
    content = read_bytes(file)
    with placed(str(file)):
        try:
            return [checked_text(content.decode("utf-8-sig"), "the corpus")]
        except UnicodeDecodeError as error:
            raise TightropeError("not UTF-8 text", fix="save the file as UTF-8") from error


def cut(ids: Sequence[int], length: int) -> list[tuple[int, ...]]:
    """Pieces of one document; one with fewer than two tokens predicts nothing and gives none.

    >>> cut([1, 2, 3, 4, 5, 6], 3)
    [(1, 2, 3), (3, 4, 5), (5, 6)]
    >>> cut([1], 3)
    []
    """
    return [tuple(ids[start : start + length]) for start in range(0, len(ids) - 1, length - 1)]


def load_corpus(
    corpus: str, tokenizer: PreTrainedTokenizerBase, length: int, context: int
) -> tuple[tuple[int, ...], ...]:
    """All pieces. Raises TightropeError for pieces that do not fit the model and for a text without any."""
    if length > context:
        raise TightropeError(
            "ptx.sequence_length is longer than the model's context",
            expected=f"at most {context}",
            found=str(length),
            fix=f"set ptx.sequence_length: {context}",
        )
    pieces = pieces_of(read_documents(corpus), tokenizer, length)
    if not pieces:
        raise TightropeError("the corpus holds no text to learn from", where=corpus, fix="give it at least two tokens")
    return pieces


def pieces_of(documents: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int) -> tuple[tuple[int, ...], ...]:
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in documents]
    return tuple(piece for ids in encoded for piece in cut(ids, length))


def load_held_out(
    text: str, trained: str | None, tokenizer: PreTrainedTokenizerBase, length: int, tokens: int
) -> tuple[tuple[int, ...], ...]:
    """The first pieces of held-out text, with about so many tokens. ``trained``: the corpus of the run, if it has one.

    Raises TightropeError where a document is in both, and where there is nothing to read.
    """
    documents = read_documents(text, held_out=True)
    shared = set(documents) & (set() if trained is None else set(read_documents(trained)))
    if shared:
        raise TightropeError(
            "evaluation.forgetting holds text that ptx.corpus trains on",
            where=text,
            found=f"{len(shared)} documents in both, such as {short(min(shared))!r}",
            fix="name text of its own",
        )
    pieces = list[tuple[int, ...]]()
    for piece in pieces_of(documents, tokenizer, length):
        if sum(len(found) - 1 for found in pieces) >= tokens:
            break
        pieces.append(piece)
    if not pieces:
        raise TightropeError("evaluation.forgetting holds no text", where=text, fix="give it at least two tokens")
    return tuple(pieces)


class CorpusStream:
    """Pieces in shuffled epochs, from a random stream of its own. ``position`` counts the pieces drawn so far.

    >>> stream = CorpusStream([(1, 2, 3), (4, 5), (6, 7)], seed=0)
    >>> sum(stream.draw(1).rows.n_actions for _ in range(3)), stream.position
    (4, 3)
    """

    def __init__(self, pieces: Sequence[Sequence[int]], seed: int) -> None:
        self._pieces = tuple(pieces)
        self._orders = EpochOrders(seed, "corpus", len(self._pieces))
        self._digest = hashlib.sha256(repr(self._pieces).encode()).hexdigest()
        self.position = 0

    def draw(self, tokens: int) -> Demonstrations:
        """The next pieces, as many as it takes to predict ``tokens`` tokens, at least one."""
        chosen = list[Sequence[int]]()
        predicted = 0
        while not chosen or predicted < tokens:
            chosen.append(self._pieces[self._orders.at(self.position)])
            predicted += len(chosen[-1]) - 1
            self.position += 1
        return Demonstrations(TokenRows.of([(piece[:1], piece[1:]) for piece in chosen]))

    def state_dict(self) -> State:
        return {"position": self.position, "digest": self._digest}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the pieces are not those of the checkpoint: a position means nothing in others."""
        if state["digest"] != self._digest:
            raise ValueError("ptx.corpus is not the text (or not in the tokens) that the checkpoint was trained on")
        self.position = state["position"]
