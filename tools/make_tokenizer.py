"""Make the tokenizer that ships with PAC: `python tools/make_tokenizer.py`. The same sentences give the same file."""

import io

import sentencepiece

from pac.data.tokenizer import SHIPPED, VOCABULARY_SIZE


def train_tokenizer(sentences: list[str], vocabulary_size: int = VOCABULARY_SIZE) -> bytes:
    """Return a SentencePiece model for these sentences. The same sentences give the same bytes."""
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
