"""Our own part of the comparison with other toolkits, on a few lines of text."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from translation_models import WORDS, make_config, make_directory, random_lines

from nmt.data.codec import Codec
from nmt.decoding.translator import Translator
from nmt.model.transformer import Transformer

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "speed"))

from compare import PARTS, agreement, requests_of
from drive_nmt import OurDecoder, OurTrainer
from driver import measure_decoding, measure_training
from make_task import ends, write_decoding, write_training
from task import BOS, EOS, DecodingData, TrainingData


def options(task: Path, option: str) -> argparse.Namespace:
    return argparse.Namespace(task=task, size="small", threads=1, option=option)


def test_training_counts_every_target_token_once(tmp_path: Path) -> None:
    """An epoch of updates has the tokens of the corpus; padding is not among them."""
    lines = {"train": random_lines(300, seed=1), "val": random_lines(2, seed=2)}
    for name, text in lines.items():
        (tmp_path / f"{name}.en").write_text("".join(f"{x}\n" for x in text), encoding="utf-8")
        upper = "".join(f"{x.upper()}\n" for x in text)
        (tmp_path / f"{name}.de").write_text(upper, encoding="utf-8")
    write_training(tmp_path / "task", tmp_path)
    data = TrainingData(tmp_path / "task")
    assert len(data) == 300
    first = data.padded("target", data.batch(0))
    assert first.shape[0] * first.shape[1] <= 4096
    assert all(row[row != 0][-1] == EOS for row in first)
    trainer = OurTrainer(options(tmp_path / "task", "rela-g"))
    before = trainer.model.updates[0].tokens
    found = measure_training(trainer, 1)
    assert before + found["tokens"] <= len(data.sides["target"][0])
    assert found["seconds"] > 0.0


def test_translations_go_from_numbers_to_numbers(tmp_path: Path) -> None:
    """They are those of nmt-translate on the text."""
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: no export to it")
    config = make_config()
    config = replace(config, model=replace(config.model, tie_embeddings="all"))
    words = " ".join(WORDS)
    codec = Codec.learn(config.data, [(words, words.upper())], shared_vocabulary=True)
    torch.manual_seed(2)
    size = len(codec.target.vocabulary)
    model = Transformer(config.model, source_vocabulary_size=size, target_vocabulary_size=size)
    with torch.no_grad():  # outputs of random weights end seldom
        end = model.output_weight[EOS]
        model.decoder[-1].feed_forward_residual.norm.bias.copy_(2.0 * end / end.dot(end))
    path = make_directory(tmp_path / "model", config, codec, model.eval())
    lines = ["the strange man", *random_lines(9, longest=6)]
    write_decoding(tmp_path / "task", lines, {"softmax": path})
    data = DecodingData(tmp_path / "task")
    lines.sort(key=lambda line: len(codec.source.encode(line)))
    expected = Translator.load(path, device="cpu").translate(lines, beam=4, length_penalty=0.6)
    pairs = [(codec.source.encode(x), list(y.ids)) for x, y in zip(lines, expected, strict=True)]
    pairs = [(source, output) for source, output in pairs if ends(source, len(output))]
    assert len(pairs) > 5
    assert data.sentences == [source for source, _ in pairs]
    assert data.weight("target_embedding").shape == (size, 32)
    decoder = OurDecoder(options(tmp_path / "task", "softmax"))
    found = measure_decoding(decoder, [[0, 1, 2], [3], list(range(4, len(pairs)))])
    assert found["outputs"] == [output for _, output in pairs]
    assert not any(BOS in output or EOS in output for output in found["outputs"])


def test_batches_are_spread_over_all_lengths() -> None:
    warm_up, measured = requests_of(PARTS["decode-64-2"], 1000, 1)
    assert [batch[0] for batch in measured["batches"]] == [128, 384, 640, 896]
    assert all(batch == list(range(batch[0], batch[0] + 64)) for batch in measured["batches"])
    assert warm_up["batches"] == measured["batches"][-1:]
    _, single = requests_of(PARTS["decode-1-1"], 1000, 1)
    assert [batch[0] for batch in single["batches"]] == list(range(20, 1000, 40))
    assert all(len(batch) == 1 for batch in single["batches"])


def test_agreement_is_asked_only_of_the_same_weights() -> None:
    ours = [[5], [6, 7]]
    found = agreement(
        {"nmt softmax": ours, "marian": [[5], [6]], "opennmt": [[1]], "nmt rela-g": [[2], [3]]}
    )
    assert found == {"nmt softmax": 1.0, "marian": 0.5, "opennmt": None, "nmt rela-g": None}
