"""OpenNMT-py: its options, batches by length, trainer and beam search.

Its layers normalise before the sublayer only, so our weights do not fit: it translates with random
weights of its own.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from driver import Trainer, serve
from onmt.inputters.dynamic_iterator import build_dynamic_dataset_iter
from onmt.model_builder import build_model
from onmt.opts import train_opts
from onmt.train_single import _init_train
from onmt.trainer import build_trainer
from onmt.translate import GNMTGlobalScorer, Translator
from onmt.utils import Optimizer, Statistics
from onmt.utils.parse import ArgumentParser
from opennmt_settings import TRAINING, PieceDecoder, corpus, write_data
from task import (
    BEAM,
    DROPOUT,
    EOS,
    FIRST_PIECE,
    LENGTH_PENALTY,
    SHAPES,
    STEPS,
    DecodingData,
    Shape,
    TrainingData,
)


def make_options(directory: Path, shape: Shape) -> Any:
    """The options that onmt_train would make of these."""
    vocabulary = directory / "vocabulary.txt"
    settings = {
        "save_data": directory / "data",
        "save_model": directory / "model",
        "src_vocab": vocabulary,
        "tgt_vocab": vocabulary,
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "enc_layers": shape.layers,
        "dec_layers": shape.layers,
        "hidden_size": shape.dim,
        "word_vec_size": shape.dim,
        "heads": shape.heads,
        "transformer_ff": shape.feed_forward_dim,
        "dropout": DROPOUT,
        "attention_dropout": DROPOUT,
        **TRAINING,
        "param_init": 0,
        "seed": 1,
    }
    words = ["-data", str(corpus(directory))]
    for name, value in settings.items():
        words += [f"-{name}", str(value)]
    words += ["-share_vocab", "-share_embeddings", "-share_decoder_embeddings"]
    words += ["-position_encoding", "-param_init_glorot"]
    parser = ArgumentParser()
    train_opts(parser)
    options, _ = parser.parse_known_args(words)
    ArgumentParser.validate_train_opts(options)
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    return options


def make_model(options: Any) -> tuple[Any, Any, Any]:
    """A model of its own class, its vocabularies and its transforms."""
    _, vocabularies, transforms = _init_train(options)
    model = build_model(options, options, vocabularies, None, -1)
    for module in model.modules():
        # The others have no dropout inside the feed-forward sublayer.
        if type(module).__name__ == "PositionwiseFeedForward":
            module.dropout_1.p = 0.0
    return model, vocabularies, transforms


class OpenNMTTrainer(Trainer):
    """Its Trainer on its own iterator."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        torch.set_num_threads(arguments.threads)
        torch.manual_seed(1)
        directory = arguments.task / "opennmt"
        data = TrainingData(arguments.task)
        write_data(directory, data.vocabulary, data)
        options = make_options(directory, SHAPES[arguments.size])
        model, vocabularies, transforms = make_model(options)
        optimizer = Optimizer.from_opt(model, options)
        self.trainer = build_trainer(options, -1, model, vocabularies, optimizer)
        iterator = build_dynamic_dataset_iter(options, transforms, vocabularies)
        self.batches = self.trainer._accum_batches(iterator)

    def update(self) -> int:
        """One update, as in its training loop."""
        batches, normalization = next(self.batches)
        statistics = Statistics()
        self.trainer._gradient_accumulation(batches, normalization, statistics, Statistics())
        return int(statistics.n_words)


class OpenNMTDecoder(PieceDecoder):
    """Its Translator."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        data = DecodingData(arguments.task, arguments.size)
        directory = arguments.task / "opennmt-decode"
        write_data(directory, data.vocabulary, None)
        model, vocabularies, _ = make_model(make_options(directory, data.shape))
        self.translator = Translator(
            model.eval(),
            vocabularies,
            beam_size=BEAM,
            min_length=STEPS - 1,
            max_length=STEPS,
            max_length_ratio=0,
            global_scorer=GNMTGlobalScorer(LENGTH_PENALTY, 0.0, "avg", "none"),
            dump_beam="",
        )
        vocabulary = vocabularies["src"]
        super().__init__(data, vocabulary)
        unknown, padding, end = (vocabulary[token] for token in ("<unk>", "<blank>", "</s>"))
        self.ids[:FIRST_PIECE] = [padding, unknown, end, unknown]
        assert self.ids[EOS] == end

    def search(self, batch: dict[str, Any]) -> Any:
        """Its search, whose ids have a dimension for features."""
        batch["src"] = batch["src"][:, :, None]
        return self.translator.translate_batch(batch, attn_debug=False)


if __name__ == "__main__":
    serve(OpenNMTTrainer, OpenNMTDecoder)
