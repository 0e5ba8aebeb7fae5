"""Inspects attention at each validation: its measures, and the head that aligns words best."""

from dataclasses import asdict
from itertools import islice
from typing import Any

from nmt.analysis.aligner import Aligner
from nmt.analysis.head_choice import best_choice
from nmt.analysis.statistics import attention_summary
from nmt.checkpoint.model_directory import LoadedModel
from nmt.config.config import Config
from nmt.data.prepare import Prepared
from nmt.data.text import SIDES
from nmt.model.transformer import Transformer

ALIGNMENT_SAMPLE = 300  # sentence pairs from which the head for word alignments is chosen
ATTENTION_SAMPLE = 64  # sentence pairs on which sparsity and null rates are measured


def inspect_attention(config: Config, prepared: Prepared, model: Transformer) -> dict[str, Any]:
    """Sparsity, null rate and learned alphas by type and layer; the head for word alignments."""
    count = min(ATTENTION_SAMPLE, len(prepared.validation))
    return {
        "attention": attention_summary(model, prepared.validation, count=count),
        "alignment_head": alignment_head(config, prepared, model),
    }


def alignment_head(config: Config, prepared: Prepared, model: Transformer) -> dict[str, Any]:
    """The head whose links tell most about words: nmt-translate aligns its output by it."""
    pairs = zip(*map(prepared.validation_text, SIDES), strict=True)
    aligner = Aligner(LoadedModel(config, prepared.codec, model, config.run_dir))
    information = aligner.link_information(islice(pairs, ALIGNMENT_SAMPLE))
    return asdict(best_choice(aligner.grid, information.costs()))
