"""The operations that benchmarks count are those that a model really spends."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.bench.kinds import all_kinds, with_attention
from nmt.bench.work import training_operations, translation_operations
from nmt.config.config import ModelConfig
from nmt.data.batching import Batch
from nmt.model.transformer import Transformer
from nmt.ops.backend import force_backend
from nmt.training.loss import TranslationLoss
from nmt.training.update import loss_inputs

VOCABULARY = 40
# torch's counter leaves products that add in place out.
IN_PLACE = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}
MODEL = ModelConfig(
    dim=16, heads=2, encoder_layers=2, decoder_layers=1, feed_forward_dim=24, tie_embeddings="all"
)


def batch_of(rows: int, source: int, target: int) -> Batch:
    """Sentences of equal length: no padding."""
    ids = torch.full((rows, source), 5)
    output = torch.full((rows, target), 6)
    visible = torch.ones_like(output, dtype=torch.bool)
    return Batch(
        source=ids,
        source_visible=torch.ones_like(ids, dtype=torch.bool),
        target_input=output,
        target_output=output,
        target_visible=visible,
        indices=torch.arange(rows).numpy(),
        num_target_tokens=rows * target,
    )


@pytest.mark.parametrize("kind", all_kinds())
def test_an_update_without_padding_spends_what_is_counted(kind: str) -> None:
    model = with_attention(MODEL, kind)
    transformer = Transformer(
        model, source_vocabulary_size=VOCABULARY, target_vocabulary_size=VOCABULARY
    )
    loss = TranslationLoss(transformer, smoothing=0.1)
    batch = batch_of(3, 7, 5)
    counter = FlopCounterMode(display=False, custom_mapping=IN_PLACE)
    with force_backend("torch"), counter:  # torch's counter sees nothing of kernels
        value, _ = loss(*loss_inputs(batch, torch.device("cpu")))
        value.backward()
    expected = training_operations(model, [batch], vocabulary=VOCABULARY)
    assert counter.get_total_flops() == expected


def test_padding_is_no_work() -> None:
    batch = batch_of(2, 7, 5)
    visible = batch.source_visible.clone()
    visible[0, 4:] = False
    padded = replace(batch, source_visible=visible)
    alone = [batch_of(1, 4, 5), batch_of(1, 7, 5)]
    assert training_operations(MODEL, [padded], vocabulary=9) == training_operations(
        MODEL, alone, vocabulary=9
    )


def test_translation_encodes_once_and_decodes_for_every_hypothesis() -> None:
    one, two, three = (
        translation_operations(MODEL, source=6, target=4, beam=beam, vocabulary=VOCABULARY)
        for beam in (1, 2, 3)
    )
    assert three - two == two - one > 0
    assert 2 * one > two, "the encoder runs once a sentence"
