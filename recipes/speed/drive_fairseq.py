"""fairseq: its task, batches by length, trainer and generator; decoding with our weights."""

import argparse
import itertools
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")

import torch
from driver import Trainer as Driven
from driver import serve
from fairseq import options, tasks
from fairseq.data import indexed_dataset, iterators
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_generator import SequenceGenerator
from fairseq.trainer import Trainer
from load_weights import load_layers
from task import (
    BATCH_TOKENS,
    BEAM,
    DROPOUT,
    EPSILON,
    FIRST_PIECE,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    LENGTH_PENALTY,
    PAD,
    SHAPES,
    STEPS,
    WARMUP,
    DecodingData,
    Shape,
    TrainingData,
    pad,
    positions,
)

# fairseq's start and padding are ours the other way round; all other numbers are the same.
FAIRSEQ_BOS, FAIRSEQ_PAD = 0, 1
POSITIONS = 1024


def write_dictionaries(directory: Path, vocabulary: int) -> None:
    """A dictionary for each side, whose words are numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    words = "".join(f"{number:06d} 1\n" for number in range(FIRST_PIECE, vocabulary))
    for language in ("en", "de"):
        (directory / f"dict.{language}.txt").write_text(words, encoding="ascii")


def write_data(directory: Path, data: TrainingData) -> None:
    """The training data as fairseq-preprocess writes it."""
    write_dictionaries(directory, data.vocabulary)
    for side, language in (("source", "en"), ("target", "de")):
        stem = directory / f"train.en-de.{language}"
        if stem.with_name(f"{stem.name}.idx").exists():
            continue
        builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=data.vocabulary)
        for index in range(len(data)):
            builder.add_item(torch.from_numpy(data.sentence(side, index).astype("int32")))
        builder.finalize(f"{stem}.idx")


def make_configuration(directory: Path, shape: Shape) -> Any:
    """The settings that fairseq-train would make of these options."""
    settings = {
        "task": "translation",
        "source-lang": "en",
        "target-lang": "de",
        "arch": "transformer",
        "encoder-embed-dim": shape.dim,
        "decoder-embed-dim": shape.dim,
        "encoder-ffn-embed-dim": shape.feed_forward_dim,
        "decoder-ffn-embed-dim": shape.feed_forward_dim,
        "encoder-layers": shape.layers,
        "decoder-layers": shape.layers,
        "encoder-attention-heads": shape.heads,
        "decoder-attention-heads": shape.heads,
        "dropout": DROPOUT,
        "attention-dropout": DROPOUT,
        "activation-dropout": 0.0,
        "optimizer": "adam",
        "adam-betas": "(0.9, 0.98)",
        "lr": LEARNING_RATE,
        "lr-scheduler": "inverse_sqrt",
        "warmup-updates": WARMUP,
        "criterion": "label_smoothed_cross_entropy",
        "label-smoothing": LABEL_SMOOTHING,
        "max-tokens": BATCH_TOKENS,
        "num-workers": 0,
        "seed": 1,
    }
    words = [str(directory)]
    for name, value in settings.items():
        words += [f"--{name}", str(value)]
    words += ["--share-all-embeddings", "--cpu", "--no-save", "--disable-validation"]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=words))


class FairseqTrainer(Driven):
    """Its Trainer on its own epoch iterator."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        torch.set_num_threads(arguments.threads)
        torch.manual_seed(1)
        directory = arguments.task / "fairseq"
        write_data(directory, TrainingData(arguments.task))
        configuration = make_configuration(directory, SHAPES[arguments.size])
        task = tasks.setup_task(configuration.task)
        model = task.build_model(configuration.model)
        criterion = task.build_criterion(configuration.criterion)
        self.trainer = Trainer(configuration, task, model, criterion)
        self.batches = self.endless_batches()

    def endless_batches(self) -> Any:
        """Epoch after epoch."""
        for epoch in itertools.count(1):
            iterator = self.trainer.get_train_iterator(epoch, load_dataset=epoch == 1)
            self.trainer.begin_epoch(epoch)
            epoch_batches = iterator.next_epoch_itr(shuffle=True)
            yield from iterators.GroupedIterator(epoch_batches, 1)

    def update(self) -> int:
        """One update."""
        samples = next(self.batches)
        self.trainer.train_step(samples)
        return int(samples[0]["ntokens"])


class FairseqDecoder:
    """Its SequenceGenerator."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        self.data = DecodingData(arguments.task, arguments.size)
        directory = arguments.task / "fairseq-decode"
        write_dictionaries(directory, self.data.vocabulary)
        configuration = make_configuration(directory, self.data.shape)
        task = tasks.setup_task(configuration.task)
        model = task.build_model(configuration.model)
        with torch.no_grad():
            load(model, self.data)
        model.eval()
        model.prepare_for_inference_(configuration)
        self.model = model
        self.generator = SequenceGenerator(
            [self.model],
            task.target_dictionary,
            beam_size=BEAM,
            max_len_a=0,
            max_len_b=STEPS - 1,
            min_len=STEPS - 1,
            len_penalty=LENGTH_PENALTY,
        )

    @torch.inference_mode()
    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Outputs of the batches, one after the other."""
        return [output for batch in batches for output in self.translate_batch(batch)]

    def translate_batch(self, numbers: list[int]) -> list[list[int]]:
        """Outputs of one batch."""
        sentences = [self.data.sentences[number] for number in numbers]
        source = torch.from_numpy(pad(sentences))
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        source[source == PAD] = FAIRSEQ_PAD
        sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}
        found = self.generator.generate([self.model], sample, bos_token=FAIRSEQ_BOS)
        return [hypotheses[0]["tokens"].tolist()[:-1] for hypotheses in found]


def load(model: Any, data: DecodingData) -> None:
    """Put our weights in the place of its own."""
    embedding = torch.from_numpy(data.weight("target_embedding")).clone()
    embedding[[FAIRSEQ_BOS, FAIRSEQ_PAD]] = embedding[[FAIRSEQ_PAD, FAIRSEQ_BOS]]
    model.encoder.embed_tokens.weight.copy_(embedding)
    table = torch.zeros(POSITIONS, data.shape.dim)
    first = FAIRSEQ_PAD + 1  # the position of the first token
    table[first:] = torch.from_numpy(positions(POSITIONS - first, data.shape.dim))
    for side, name in ((model.encoder, "encoder"), (model.decoder, "decoder")):
        side.embed_positions.weights = table
        load_layers(side.layers, data, name, epsilon=EPSILON)


if __name__ == "__main__":
    serve(FairseqTrainer, FairseqDecoder)
