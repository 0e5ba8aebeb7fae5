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
from task import (
    BATCH_TOKENS,
    BEAM,
    DROPOUT,
    EOS,
    FIRST_PIECE,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    LENGTH_PENALTY,
    SHAPES,
    STEPS,
    WARMUP,
    DecodingData,
    Shape,
    TrainingData,
)

WORD = "{:06d}"
BUCKET = 32768  # pairs that are sorted by length together: more than there are


def write_vocabulary(path: Path, vocabulary: int) -> None:
    """A word a line; the control symbols come by themselves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = "".join(f"{WORD.format(number)}\t1\n" for number in range(FIRST_PIECE, vocabulary))
    path.write_text(words, encoding="ascii")


def write_text(directory: Path, data: TrainingData) -> None:
    """The training data as words."""
    for side in ("source", "target"):
        path = directory / f"train.{side}"
        if not path.exists():
            sentences = (data.sentence(side, index)[:-1] for index in range(len(data)))
            lines = (" ".join(map(WORD.format, sentence)) for sentence in sentences)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


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
        "bucket_size": BUCKET,
        "num_workers": 0,
        "param_init": 0,
        "seed": 1,
    }
    text = {
        "path_src": str(directory / "train.source"),
        "path_tgt": str(directory / "train.target"),
    }
    words = ["-data", str({"corpus": {**text, "weight": 1, "transforms": []}})]
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
        write_vocabulary(directory / "vocabulary.txt", data.vocabulary)
        write_text(directory, data)
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


class OpenNMTDecoder:
    """Its Translator."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        self.data = DecodingData(arguments.task, arguments.size)
        directory = arguments.task / "opennmt-decode"
        write_vocabulary(directory / "vocabulary.txt", self.data.vocabulary)
        for side in ("source", "target"):
            (directory / f"train.{side}").write_text("000004\n", encoding="ascii")
        options = make_options(directory, self.data.shape)
        model, self.vocabularies, _ = make_model(options)
        self.translator = Translator(
            model.eval(),
            self.vocabularies,
            beam_size=BEAM,
            min_length=STEPS - 1,
            max_length=STEPS,
            max_length_ratio=0,
            global_scorer=GNMTGlobalScorer(LENGTH_PENALTY, 0.0, "avg", "none"),
            dump_beam="",
        )
        vocabulary = self.vocabularies["src"]
        unknown, self.padding, _, end = (
            vocabulary[token] for token in ("<unk>", "<blank>", "<s>", "</s>")
        )
        self.numbers = [vocabulary[WORD.format(number)] for number in range(self.data.vocabulary)]
        self.numbers[:FIRST_PIECE] = [self.padding, unknown, end, unknown]
        assert self.numbers[EOS] == end

    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Outputs of the batches, one after the other."""
        return [output for batch in batches for output in self.translate_batch(batch)]

    def translate_batch(self, numbers: list[int]) -> list[list[int]]:
        """Outputs of one batch."""
        sentences = [[self.numbers[i] for i in self.data.sentences[n]] for n in numbers]
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        source = torch.tensor(sentences)[:, :, None]
        batch = {"src": source, "srclen": lengths, "ind_in_bucket": list(range(len(numbers)))}
        found = self.translator.translate_batch(batch, attn_debug=False)
        return [outputs[0].tolist()[: STEPS - 1] for outputs in found["predictions"]]


if __name__ == "__main__":
    serve(OpenNMTTrainer, OpenNMTDecoder)
