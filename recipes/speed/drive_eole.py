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
from opennmt_settings import TRAINING, PieceDecoder, corpus, write_data
from task import (
    BEAM,
    DROPOUT,
    EOS,
    LENGTH_PENALTY,
    SHAPES,
    STEPS,
    DecodingData,
    Shape,
    TrainingData,
)


def make_configuration(directory: Path, shape: Shape) -> TrainConfig:
    """The config that `eole train` would make of these settings."""
    vocabulary = str(directory / "vocabulary.txt")
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
        **TRAINING,
        "world_size": 1,
        "gpu_ranks": [],
        "compute_dtype": "fp32",
        "dropout_steps": [0],
        "dropout": [DROPOUT],
        "attention_dropout": [DROPOUT],
    }
    return TrainConfig(
        src_vocab=vocabulary,
        tgt_vocab=vocabulary,
        share_vocab=True,
        data=corpus(directory),
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


class EoleDecoder(PieceDecoder):
    """Its Translator."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        data = DecodingData(arguments.task, arguments.size)
        directory = data.directory / "eole"
        write_data(directory, data.vocabulary, None)
        model, context = make_model(make_configuration(directory, data.shape))
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
        super().__init__(data, vocabulary)
        self.ids[EOS] = vocabulary[context.config.eos_token]

    def search(self, batch: dict[str, Any]) -> Any:
        """Its search."""
        return self.translator.predict_batch(batch, False)


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
