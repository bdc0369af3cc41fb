"""Which words does the small model know? Its tokenizer: one token a word or punctuation mark.

The vocabulary is the most frequent tokens of the sentences it learns from. Sentences with any other word are left
out of the demonstrations, so the model never learns to write ``<unk>``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tightrope.demo.corpus import TOKEN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
SPECIAL = (PAD, EOS, UNKNOWN)
VOCABULARY_SIZE = 3000


def vocabulary_of(sentences: Sequence[str], size: int = VOCABULARY_SIZE) -> tuple[str, ...]:
    """Special tokens, then the most frequent tokens; equally frequent ones in alphabetical order.

    >>> vocabulary_of(["a film, a film", "a plot"], size=5)
    ('<pad>', '<eos>', '<unk>', 'a', 'film')
    """
    counts = Counter(token for sentence in sentences for token in TOKEN.findall(sentence))
    frequent = sorted(counts, key=lambda token: (-counts[token], token))
    return (*SPECIAL, *frequent[: size - len(SPECIAL)])


def is_known(text: str, vocabulary: frozenset[str]) -> bool:
    """True when every token of the text is in the vocabulary."""
    return all(token in vocabulary for token in TOKEN.findall(text))


def word_tokenizer(vocabulary: Sequence[str], context: int) -> PreTrainedTokenizerFast:
    """A Hugging Face tokenizer; ``save_pretrained`` writes it beside the model.

    It lower-cases, splits at white space and around punctuation marks, and decodes without a space before a mark.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[.,!?;:]"), "isolated")]
    )
    # WordPiece joins words with spaces and closes up most marks; its subword prefix never occurs here.
    words.decoder = decoders.Sequence(
        [decoders.WordPiece(prefix="##", cleanup=True), decoders.Replace(" ;", ";"), decoders.Replace(" :", ":")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
