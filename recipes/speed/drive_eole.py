"""eole: its configuration, batches by length, trainer and beam search.

Its layers normalise before the sublayer only, so our weights do not fit: it translates with random
weights of its own.
"""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from driver import Trainer, serve
from eole.config.run import PredictConfig, TrainConfig
from eole.constants import CorpusTask
from eole.inputters.dynamic_iterator import build_dynamic_dataset_iter
from eole.models.model import get_model_class
from eole.predict import GNMTGlobalScorer
from eole.predict.translator import Translator
from eole.train_single import TrainingInitializer
from eole.trainer import build_trainer
from eole.utils import Statistics
from eole.utils.optimizers import Optimizer
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


def write_data(directory: Path, vocabulary: int, data: TrainingData | None) -> None:
    """The vocabulary, one word per line, and the training data as words (or one pair)."""
    directory.mkdir(parents=True, exist_ok=True)
    words = "".join(f"{WORD.format(number)}\t1\n" for number in range(FIRST_PIECE, vocabulary))
    (directory / "vocabulary.txt").write_text(words, encoding="ascii")
    for side in ("source", "target"):
        path = directory / f"train.{side}"
        if path.exists():
            continue
        lines = [WORD.format(FIRST_PIECE)]
        if data is not None:
            sentences = (data.sentence(side, index)[:-1] for index in range(len(data)))
            lines = [" ".join(map(WORD.format, sentence)) for sentence in sentences]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def make_configuration(directory: Path, shape: Shape) -> TrainConfig:
    """The config that `eole train` would make of these settings."""
    vocabulary = str(directory / "vocabulary.txt")
    corpus = {
        "path_src": str(directory / "train.source"),
        "path_tgt": str(directory / "train.target"),
        "transforms": [],
        "weight": 1,
    }
    model = {
        "architecture": "transformer",
        "layers": shape.layers,
        "hidden_size": shape.dim,
        "heads": shape.heads,
        "transformer_ff": shape.feed_forward_dim,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "add_qkvbias": True,
        "add_final_linear_bias": True,
        "add_ffnbias": True,
        "embeddings": {
            "word_vec_size": shape.dim,
            "position_encoding_type": "SinusoidalInterleaved",
        },
    }
    training = {
        "model_path": str(directory / "model"),
        "batch_type": "tokens",
        "batch_size": BATCH_TOKENS,
        "normalization": "tokens",
        "bucket_size": BUCKET,
        "num_workers": 0,
        "world_size": 1,
        "gpu_ranks": [],
        "compute_dtype": "fp32",
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": WARMUP,
        "decay_method": "noam",
        "max_grad_norm": 0,
        "label_smoothing": LABEL_SMOOTHING,
        "dropout_steps": [0],
        "dropout": [DROPOUT],
        "attention_dropout": [DROPOUT],
    }
    return TrainConfig(
        src_vocab=vocabulary,
        tgt_vocab=vocabulary,
        share_vocab=True,
        data={"corpus": corpus},
        transforms=[],
        seed=1,
        model=model,
        training=training,
    )


def make_model(config: TrainConfig) -> tuple[Any, Any]:
    """A model of its own class, and what else it has made for training."""
    context = TrainingInitializer(config).initialize()
    made = get_model_class(context.config.model)
    model = made.for_training(context.config.model, context.vocabs, context.config.training)
    return model, context


class EoleTrainer(Trainer):
    """Its Trainer on its own iterator."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        torch.set_num_threads(arguments.threads)
        torch.manual_seed(1)
        directory = arguments.task / "eole"
        data = TrainingData(arguments.task)
        write_data(directory, data.vocabulary, data)
        model, context = make_model(make_configuration(directory, SHAPES[arguments.size]))
        for module in model.modules():
            # The others have no dropout inside the feed-forward sublayer.
            if type(module).__name__ == "MLP":
                module.dropout_1.p = 0.0
        optimizer = Optimizer.from_config(model, context.config)
        self.trainer = build_trainer(context.config, -1, model, context.vocabs, optimizer)
        iterator = build_dynamic_dataset_iter(
            context.config, context.transforms, context.vocabs, task=CorpusTask.TRAIN, device_id=-1
        )
        self.batches = self.trainer._accum_batches(iterator)

    def update(self) -> int:
        """One update, as in its training loop."""
        batches, normalization = next(self.batches)
        statistics = Statistics()
        self.trainer._train_step(batches, normalization, statistics, Statistics())
        return int(statistics.n_tokens)


class EoleDecoder:
    """Its Translator."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        self.data = DecodingData(arguments.task, arguments.size)
        directory = self.data.directory / "eole"
        write_data(directory, self.data.vocabulary, None)
        model, context = make_model(make_configuration(directory, self.data.shape))
        settings = defaults(PredictConfig)
        settings |= {"beam_size": BEAM, "min_length": STEPS - 1, "max_length": STEPS}
        settings |= {"max_length_ratio": 0, "transforms": [], "optional_eos": [], "seed": 1}
        self.translator = Translator(
            model.eval(),
            context.vocabs,
            SimpleNamespace(**settings),
            context.config.model,
            device_id=-1,
            global_scorer=GNMTGlobalScorer(LENGTH_PENALTY, 0.0, "avg", "none"),
            report_score=False,
        )
        vocabulary = context.vocabs["src"]
        self.numbers = [vocabulary[WORD.format(number)] for number in range(self.data.vocabulary)]
        self.numbers[EOS] = vocabulary[context.config.eos_token]

    @torch.inference_mode()
    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Outputs of the batches, one after the other."""
        return [output for batch in batches for output in self.translate_batch(batch)]

    def translate_batch(self, numbers: list[int]) -> list[list[int]]:
        """Outputs of one batch."""
        sentences = [[self.numbers[i] for i in self.data.sentences[n]] for n in numbers]
        batch = {
            "src": torch.tensor(sentences),
            "srclen": torch.tensor([len(sentence) for sentence in sentences]),
            "ind_in_bucket": list(range(len(numbers))),
        }
        found = self.translator.predict_batch(batch, False)
        return [outputs[0].tolist()[: STEPS - 1] for outputs in found["predictions"]]


def defaults(section: Any) -> dict[str, Any]:
    """The settings of a section of its configuration that have defaults."""
    fields = section.model_fields.items()
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in fields
        if not field.is_required()
    }


if __name__ == "__main__":
    serve(EoleTrainer, EoleDecoder)
