"""The files, settings and search that OpenNMT-py and eole, its successor, have in common."""

from pathlib import Path
from typing import Any

import torch
from task import (
    BATCH_TOKENS,
    FIRST_PIECE,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    STEPS,
    WARMUP,
    WORD,
    DecodingData,
    TrainingData,
)

TRAINING = {
    "label_smoothing": LABEL_SMOOTHING,
    "optim": "adam",
    "adam_beta2": 0.98,
    "learning_rate": LEARNING_RATE,
    "warmup_steps": WARMUP,
    "decay_method": "noam",
    "max_grad_norm": 0,
    "batch_type": "tokens",
    "batch_size": BATCH_TOKENS,
    "normalization": "tokens",
    "bucket_size": 32768,  # pairs that are sorted by length together: more than there are
    "num_workers": 0,
}


def write_data(directory: Path, vocabulary: int, data: TrainingData | None) -> None:
    """Write the vocabulary, one word per line, and the training data as words, or one pair."""
    directory.mkdir(parents=True, exist_ok=True)
    words = "".join(f"{WORD.format(number)}\t1\n" for number in range(FIRST_PIECE, vocabulary))
    (directory / "vocabulary.txt").write_text(words, encoding="ascii")
    if data is not None:
        data.write_text(directory)
    else:
        for side in ("source", "target"):
            (directory / f"train.{side}").write_text("000004\n", encoding="ascii")


def corpus(directory: Path) -> dict[str, dict[str, Any]]:
    """The data of a training: the only corpus."""
    source, target = (str(directory / f"train.{side}") for side in ("source", "target"))
    return {
        "corpus": {"path_src": source, "path_tgt": target, "transforms": [], "weight": 1},
    }


class PieceDecoder:
    """Translates batches with a model whose ids are not those of the task."""

    def __init__(self, data: DecodingData, vocabulary: Any) -> None:
        self.data = data
        self.ids = [vocabulary[WORD.format(number)] for number in range(data.vocabulary)]

    def search(self, batch: dict[str, Any]) -> Any:
        """The outputs of one batch as the toolkit returns them."""
        raise NotImplementedError

    @torch.inference_mode()
    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Outputs of the batches, one after the other."""
        return [output for batch in batches for output in self.translate_batch(batch)]

    def translate_batch(self, numbers: list[int]) -> list[list[int]]:
        """Outputs of one batch."""
        sentences = [[self.ids[i] for i in self.data.sentences[n]] for n in numbers]
        batch = {
            "src": torch.tensor(sentences),
            "srclen": torch.tensor([len(sentence) for sentence in sentences]),
            "ind_in_bucket": list(range(len(numbers))),
        }
        found = self.search(batch)
        return [outputs[0].tolist()[: STEPS - 1] for outputs in found["predictions"]]
