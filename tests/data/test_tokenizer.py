"""The tokenizer encodes any text, and can be made again."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pac.data.tokenizer import SHIPPED, VOCABULARY_SIZE, Tokenizer
from pac.model.config import SIZES
from tools.make_tokenizer import shipped_sentences, train_tokenizer

TOKENIZER = Tokenizer()


@given(st.text(max_size=12))
def test_any_text_encodes_and_comes_back(text: str) -> None:
    if text.startswith(("▁", " ")) or "\0" in text:  # SentencePiece's own mark for a space, and the end of a C string
        return
    ids, mask = TOKENIZER.encode(text)
    assert ids.shape == mask.shape == (50,)
    assert (ids < TOKENIZER.vocabulary_size).all()
    assert TOKENIZER.decode(ids, mask) == text.replace("▁", " ")


def test_tasks_are_short_and_distinct() -> None:
    encoded = {text: tuple(TOKENIZER.pieces(text)) for text in shipped_sentences()}
    assert len(set(encoded.values())) == len(encoded)
    assert max(map(len, encoded.values())) < 50
    assert len(TOKENIZER.pieces("pick up the red block")) == 5


def test_padding_is_masked_and_long_text_is_cut() -> None:
    ids, mask = TOKENIZER.encode("")
    assert not mask.any()
    ids, mask = TOKENIZER.encode("humanoid.walk")
    assert mask.sum() == len(TOKENIZER.pieces("humanoid.walk"))
    assert not ids[~mask].any()
    assert np.diff(mask.astype(int)).max() == 0  # real ones first
    ids, mask = TOKENIZER.encode("long " * 100)
    assert mask.all()
    assert Tokenizer(num_tokens=3).encode("walk over there now")[0].shape == (3,)


def test_the_shipped_model_can_be_made_again() -> None:
    assert train_tokenizer(shipped_sentences()) == SHIPPED.read_bytes()
    assert (
        TOKENIZER.vocabulary_size
        <= VOCABULARY_SIZE
        == min(size.get("vocabulary_size", 32_000) for size in SIZES.values())
    )


def test_a_users_model_loads(tmp_path: Path) -> None:
    path = tmp_path / "own.model"
    path.write_bytes(train_tokenizer(["fold the towel", "fold the shirt"], vocabulary_size=290))
    own = pickle.loads(pickle.dumps(Tokenizer(path)))  # as it reaches a worker process
    ids, mask = own.encode("fold the socks")
    assert own.decode(ids, mask) == "fold the socks"


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_a_file_that_is_no_model_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "own.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"own\.model: expected a SentencePiece model"):
        Tokenizer(path)
