"""Our own trainer and translator; --option is the kind, and `bfloat16` or `int8` after a comma."""

import argparse
import itertools

import torch
from driver import Trainer, serve
from make_models import WORD
from make_task import training_config
from task import BEAM, LENGTH_PENALTY, STEPS, DecodingData, TrainingData

from nmt.bench.training import Task, TrainingModel
from nmt.data.batching import BatchStream
from nmt.data.prepare import prepare
from nmt.decoding.translator import Translator

NO_LIMIT = 10_000_000  # tokens of a batch: its sentences are counted instead


class OurTrainer(Trainer):
    """Updates as nmt-train makes them, the next batches made by a thread meanwhile."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        torch.set_num_threads(arguments.threads)
        kind, _, precision = arguments.option.partition(",")
        config = training_config(arguments.task, arguments.size, precision or "float32")
        corpus = prepare(config).train
        stream = BatchStream(
            corpus,
            batch_tokens=config.train.batch_tokens,
            seed=config.seed,
            prefetch=config.train.prefetch,
        )
        self.updates = stream.updates()
        vocabulary = TrainingData(arguments.task).vocabulary
        first = [next(self.updates)]
        task = Task(config, vocabulary, vocabulary, first)
        self.model = TrainingModel(task, kind, torch.device("cpu"))

    def update(self) -> int:
        """One update."""
        self.model.updates = list(itertools.islice(self.updates, 1))
        self.model()
        return self.model.updates[0].tokens


class OurDecoder:
    """nmt-translate's translator, from numbers to numbers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        kind, _, weights = arguments.option.partition(",")
        data = DecodingData(arguments.task, arguments.size)
        self.translator = Translator.load(
            data.directory / f"model-{kind}",
            device="cpu",
            int8=weights == "int8",
            threads=arguments.threads,
        )
        self.lines = [" ".join(WORD.format(i) for i in x[:-1]) for x in data.sentences]

    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Outputs of the batches, one after the other."""
        outputs = []
        for batch in batches:
            found = self.translator.translate(
                [self.lines[number] for number in batch],
                beam=BEAM,
                length_penalty=LENGTH_PENALTY,
                min_length=STEPS - 1,
                max_length=STEPS - 1,
                batch_tokens=NO_LIMIT,
            )
            outputs += [list(translation.ids) for translation in found]
        return outputs


if __name__ == "__main__":
    serve(OurTrainer, OurDecoder)
