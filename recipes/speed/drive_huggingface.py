"""Hugging Face's MarianMT: our batches and a plain training loop; decoding with our weights."""

import argparse

import torch
from driver import Trainer, serve
from load_weights import load_layers
from task import (
    BEAM,
    BOS,
    DROPOUT,
    EOS,
    EPSILON,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    LENGTH_PENALTY,
    PAD,
    SHAPES,
    STEPS,
    DecodingData,
    Shape,
    TrainingData,
    pad,
    positions,
)
from torch.nn import functional
from transformers import MarianConfig, MarianMTModel

POSITIONS = 512


def make_model(shape: Shape, vocabulary: int, *, attention: str) -> MarianMTModel:
    """A model of its own class."""
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=shape.dim,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.feed_forward_dim,
        decoder_ffn_dim=shape.feed_forward_dim,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=0.0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=POSITIONS,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS,
        attn_implementation=attention,
    )
    return MarianMTModel(config)


class HuggingFaceTrainer(Trainer):
    """The loop of its examples, with torch's fused Adam."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        torch.set_num_threads(arguments.threads)
        torch.manual_seed(1)
        self.data = TrainingData(arguments.task)
        shape = SHAPES[arguments.size]
        self.model = make_model(shape, self.data.vocabulary, attention=arguments.option).train()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=LEARNING_RATE / 100, betas=(0.9, 0.98), fused=True
        )
        self.number = 0

    def update(self) -> int:
        """One update."""
        indices = self.data.batch(self.number)
        self.number += 1
        source = torch.from_numpy(self.data.padded("source", indices))
        target = torch.from_numpy(self.data.padded("target", indices))
        start = torch.full((len(target), 1), BOS)
        logits = self.model(
            input_ids=source,
            attention_mask=source.ne(PAD),
            decoder_input_ids=torch.cat([start, target[:, :-1]], dim=1),
            use_cache=False,
        ).logits
        loss = functional.cross_entropy(
            logits.flatten(0, 1),
            target.flatten(),
            ignore_index=PAD,
            label_smoothing=LABEL_SMOOTHING,
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return int(target.ne(PAD).sum())


class HuggingFaceDecoder:
    """Its `generate`, stopping as early as it can."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        self.data = DecodingData(arguments.task, arguments.size)
        shape = self.data.shape
        self.model = make_model(shape, self.data.vocabulary, attention=arguments.option).eval()
        with torch.no_grad():
            load_weights(self.model, self.data)

    @torch.inference_mode()
    def translate(self, batches: list[list[int]]) -> list[list[int]]:
        """Outputs of the batches, one after the other."""
        return [output for batch in batches for output in self.translate_batch(batch)]

    def translate_batch(self, numbers: list[int]) -> list[list[int]]:
        """Outputs of one batch."""
        source = torch.from_numpy(pad([self.data.sentences[number] for number in numbers]))
        found = self.model.generate(
            input_ids=source,
            attention_mask=source.ne(PAD).long(),
            num_beams=BEAM,
            do_sample=False,
            early_stopping=True,
            length_penalty=LENGTH_PENALTY,
            min_new_tokens=STEPS,
            max_new_tokens=STEPS,
        )
        return [without_controls(output) for output in found.tolist()]


def without_controls(output: list[int]) -> list[int]:
    """The numbers after the start and before the end."""
    output = output[1:]
    return output[: output.index(EOS)] if EOS in output else output


def load_weights(model: MarianMTModel, data: DecodingData) -> None:
    """Put our weights in the place of its own."""
    table = torch.from_numpy(positions(POSITIONS, data.shape.dim))
    model.model.shared.weight.copy_(torch.from_numpy(data.weight("target_embedding")))
    for side, name in ((model.model.encoder, "encoder"), (model.model.decoder, "decoder")):
        side.embed_positions.weight.copy_(table)
        load_layers(side.layers, data, name, epsilon=EPSILON)


if __name__ == "__main__":
    serve(HuggingFaceTrainer, HuggingFaceDecoder)
