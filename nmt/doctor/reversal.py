"""A toy task that every attention kind has to learn: to reverse six digits, without a mistake."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nmt.config.config import AttentionTypesConfig, ModelConfig
from nmt.model.transformer import Transformer

BEGIN, END, FIRST_DIGIT, VOCABULARY = 1, 2, 3, 13
LENGTH = 7  # six digits and the end
ENOUGH = 0.98  # the share of sequences at which the task counts as learned


@dataclass(frozen=True)
class Learned:
    """A model, its share of sequences that are reversed exactly, and its updates."""

    model: Transformer
    match: float
    updates: int


def digits(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Source and target [count, 7]: six digits and the end, forwards and backwards."""
    forwards = torch.randint(FIRST_DIGIT, VOCABULARY, (count, LENGTH - 1), generator=generator)
    end = torch.full((count, 1), END)
    return torch.cat([forwards, end], dim=1), torch.cat([forwards.flip(1), end], dim=1)


def exact_match(model: Transformer) -> float:
    """The share of 256 unseen sequences that greedy decoding reverses without a mistake."""
    source, target = digits(256, torch.Generator().manual_seed(1234))
    visible = torch.ones_like(source, dtype=torch.bool)
    model.eval()
    with torch.no_grad():
        cache = model.start(model.encode(source, visible), visible, beam=1, max_length=LENGTH)
        tokens, outputs = torch.full((256, 1), BEGIN), []
        for _ in range(LENGTH):
            tokens = model.logits(model.step(tokens, cache)).argmax(-1)
            outputs.append(tokens)
    model.train()
    return (torch.cat(outputs, dim=1) == target).all(dim=1).float().mean().item()


def learn_reversal(
    attention: AttentionTypesConfig, *, most_updates: int, layers: int = 1, seed: int = 1
) -> Learned:
    """Train a small model until the task is learned, for `most_updates` at most."""
    torch.manual_seed(seed)
    config = ModelConfig(
        dim=64,
        heads=4,
        encoder_layers=layers,
        decoder_layers=layers,
        feed_forward_dim=128,
        dropout=0.0,
        attention_dropout=0.0,
        attention=attention,
    )
    model = Transformer(
        config, source_vocabulary_size=VOCABULARY, target_vocabulary_size=VOCABULARY
    )
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    visible = torch.ones(128, LENGTH, dtype=torch.bool)
    match = 0.0
    for update in range(1, most_updates + 1):
        source, target = digits(128, generator)
        shifted = torch.cat([torch.full((128, 1), BEGIN), target[:, :-1]], dim=1)
        logits = model.logits(model(source, visible, shifted))
        loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if update % 50 == 0 and update >= 100:
            match = exact_match(model)
            if match >= ENOUGH:
                break
    return Learned(model, match, update)
