"""Instructions as tokens: SentencePiece, with a small model shipped in the package or any other that a user names.

The shipped model falls back on bytes, so that any text encodes; it was trained on the task names and phrases in
assets/tokenizer.txt. `python -m pac.data.tokenizer` makes it again, byte for byte.
"""

import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import sentencepiece
from jaxtyping import Bool, Int64

from pac.resources import ASSETS

NUM_TOKENS = 50  # N^L: the paper's longest instruction
SHIPPED = ASSETS / "tokenizer.model"
VOCABULARY_SIZE = 512  # of the shipped model; what the smallest model sizes can embed


class Tokenizer:
    """Text -> a fixed number of token ids and a mask."""

    def __init__(self, model: str | Path | None = None, num_tokens: int = NUM_TOKENS) -> None:
        self.path = SHIPPED if model is None else Path(model)
        try:
            # SentencePiece takes an empty model for none given, and crashes later.
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=self.path.read_bytes() or b"empty")
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{self.path}: expected a SentencePiece model, found {type(error).__name__}: {error}. Train one with "
                "sentencepiece, or leave the setting out to use the one that comes with PAC."
            ) from error
        self.num_tokens = num_tokens
        self._encode = lru_cache(maxsize=65_536)(self._encode_once)

    @property
    def vocabulary_size(self) -> int:
        return int(self._processor.vocab_size())

    def pieces(self, text: str) -> list[int]:
        """All token ids of a text, however many."""
        return list(self._processor.encode(text))

    def encode(self, text: str) -> tuple[Int64[np.ndarray, " text"], Bool[np.ndarray, " text"]]:
        """Ids and mask, padded to `num_tokens`; a longer text loses its end. The arrays are shared: do not write."""
        return self._encode(text)

    def decode(self, ids: Int64[np.ndarray, " text"], mask: Bool[np.ndarray, " text"]) -> str:
        return str(self._processor.decode(ids[mask].tolist()))

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[Path, int]]:
        return Tokenizer, (self.path, self.num_tokens)  # a worker process loads its own

    def _encode_once(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        found = self.pieces(text)[: self.num_tokens]
        ids = np.zeros(self.num_tokens, np.int64)
        ids[: len(found)] = found
        return ids, np.arange(self.num_tokens) < len(found)


def train_tokenizer(sentences: list[str], vocabulary_size: int = VOCABULARY_SIZE) -> bytes:
    """A SentencePiece model for these sentences; the same sentences give the same bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="unigram",
        vocab_size=vocabulary_size,
        hard_vocab_limit=False,  # few sentences may not fill it
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",  # the default rules weigh 240 kB
        remove_extra_whitespaces=False,
        num_threads=1,  # the order of sums decides the last digit of a score
        minloglevel=2,
    )
    return model.getvalue()


def shipped_sentences() -> list[str]:
    return SHIPPED.with_suffix(".txt").read_text().splitlines()


if __name__ == "__main__":
    SHIPPED.write_bytes(train_tokenizer(shipped_sentences()))
