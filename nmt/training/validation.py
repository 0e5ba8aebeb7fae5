"""How good the model is now: loss on the validation set, and the score of its real translations."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nmt.config.config import Config
from nmt.data.batching import Batch, validation_batches
from nmt.data.corpus import EncodedCorpus
from nmt.data.prepare import Prepared, ValidationSet
from nmt.data.reading import validation_roles
from nmt.data.text import SIDES
from nmt.decoding.translator import Translator
from nmt.evaluation import bleu, chrf
from nmt.languages import bleu_tokenizer
from nmt.model.transformer import Transformer
from nmt.training.distributed import Processes
from nmt.training.loss import TranslationLoss
from nmt.training.update import Updater, loss_inputs

logger = logging.getLogger(__name__)

SAMPLES_SHOWN = 3
# What else each record of a validation says of the model. Training knows nothing of it, but that
# checkpoints carry `alignment_head`.
Inspection = Callable[[Config, Prepared, Transformer], dict[str, Any]]


@dataclass(frozen=True)
class Validator:
    """The validation corpora and what is done with them."""

    config: Config
    prepared: Prepared
    processes: Processes
    inspect: Inspection

    @property
    def sets(self) -> dict[str, ValidationSet]:
        """The validation corpora by name, the one that chooses `best` first."""
        roles = validation_roles(self.config.data)
        named = {
            corpus.name or role: self.prepared.validations[role] for role, corpus in roles.items()
        }
        first = self.config.validate.corpus or next(iter(named))
        return {first: named[first], **named}

    def batches(self, corpus: EncodedCorpus | None = None) -> list[Batch]:
        """All of a validation corpus (default: the first) in batches, the same in every process."""
        tokens = self.config.validate.batch_tokens or self.config.train.batch_tokens
        corpus = self.prepared.validation if corpus is None else corpus
        return list(validation_batches(corpus, batch_tokens=tokens))

    def run(self, updater: Updater) -> dict[str, Any]:
        """The record for metrics.jsonl; `score` is what `best` goes by.

        The numbers are those of the corpus that chooses `best`. If there are several, `corpora` has
        the numbers of each.
        """
        model = updater.loss.model
        model.eval()
        try:
            with torch.inference_mode():
                records = {name: self.scores(each, updater) for name, each in self.sets.items()}
                record: dict[str, Any] = dict(next(iter(records.values())))
                if len(records) > 1:
                    record["corpora"] = {name: numbers(it) for name, it in records.items()}
                record |= self.inspect(self.config, self.prepared, model)
        finally:
            model.train()
        record["score"] = record[self.config.validate.metric]
        return record

    def scores(self, validation: ValidationSet, updater: Updater) -> dict[str, Any]:
        """The scores of one corpus."""
        record = self.losses(validation, updater)
        return record | self.translations(validation, updater.loss.model)

    def losses(self, validation: ValidationSet, updater: Updater) -> dict[str, Any]:
        """Mean label-smoothed loss and perplexity, the batches shared among the processes.

        Each process adds up all batches in the same order: the sums do not depend on their number.
        """
        loss: TranslationLoss = updater.loss
        rank, size = self.processes.rank, self.processes.size
        batches = self.batches(validation.corpus)
        own = []
        with updater.precision():
            for batch in batches[rank::size]:
                values = loss(*loss_inputs(batch, updater.device))
                own.append([value.item() for value in values])
        everyone = self.processes.gather(own)
        sums = torch.zeros(2, dtype=torch.float64)
        for index in range(len(batches)):
            sums += torch.tensor(everyone[index % size][index // size])
        smoothed, likelihood = sums.tolist()
        tokens = sum(batch.num_target_tokens for batch in batches)
        return {
            "loss": smoothed / tokens,
            "perplexity": math.exp(min(likelihood / tokens, 700.0)),
        }

    def translations(self, validation: ValidationSet, model: Transformer) -> dict[str, Any]:
        """BLEU and chrF of the translations of raw text, the lines shared among the processes."""
        settings = self.config.validate
        if settings.beam == 0:
            return {}
        most = settings.sentences or None
        source, target = (validation.text[side][:most] for side in SIDES)
        rank, size = self.processes.rank, self.processes.size
        translator = Translator.from_model(model, self.prepared.codec, self.config.decode)
        own = translator.translate(source[rank::size], beam=settings.beam)
        output = [""] * len(source)
        for other, texts in enumerate(self.processes.gather([item.text for item in own])):
            output[other::size] = texts
        samples = [
            {"source": source[index], "translation": output[index], "reference": target[index]}
            for index in range(min(SAMPLES_SHOWN, len(source)))
        ]
        for sample in samples:
            for name, text in sample.items():
                logger.info("  %-11s %s", name, text)
        tokenizer = bleu_tokenizer(self.config.data.target_language)
        scores = bleu(output, [target], tokenize=tokenizer), chrf(output, [target])
        return {
            "bleu": scores[0].value,
            "chrf": scores[1].value,
            "signature": scores[0].signature,
            "samples": samples,
        }


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record, without texts."""
    return {name: value for name, value in record.items() if isinstance(value, int | float)}
