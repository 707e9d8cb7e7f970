"""Instructions as tokens, by SentencePiece. A small model ships with PAC, and users may name another.

The shipped model falls back on bytes, so that it encodes any text. It was trained on the task names and phrases in
assets/tokenizer.txt by tools/make_tokenizer.py.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import sentencepiece
from jaxtyping import Bool, Int64

from pac.files import problem
from pac.resources import ASSETS

NUM_TOKENS = 50  # N^L: the paper's longest instruction
SHIPPED = ASSETS / "tokenizer.model"
VOCABULARY_SIZE = 512  # of the shipped model: the smallest model sizes can embed it


class Tokenizer:
    """Tokenizer from a text to a fixed number of token ids and a mask."""

    def __init__(self, model: str | Path | None = None, num_tokens: int = NUM_TOKENS) -> None:
        self.path = SHIPPED if model is None else Path(model)
        try:
            # SentencePiece takes an empty model as no model and crashes later.
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=self.path.read_bytes() or b"empty")
        except (OSError, RuntimeError) as error:
            found, fix = f"{type(error).__name__}: {error}", "Train one, or leave the setting out for the one of PAC."
            raise problem(self.path, expected="a SentencePiece model", found=found, fix=fix) from error
        self.num_tokens = num_tokens
        self._encode = lru_cache(maxsize=65_536)(self._encode_once)

    @property
    def vocabulary_size(self) -> int:
        return int(self._processor.vocab_size())

    def pieces(self, text: str) -> list[int]:
        """Return all token ids of a text."""
        return list(self._processor.encode(text))

    def encode(self, text: str) -> tuple[Int64[np.ndarray, " text"], Bool[np.ndarray, " text"]]:
        """Return ids and mask, padded or cut to `num_tokens`. The arrays are shared: do not write to them."""
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
