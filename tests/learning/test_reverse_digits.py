"""Every attention kind really learns: to reverse six digits, exactly, in a few hundred updates."""

import pytest
import torch
from support.attention_cases import CASES, KINDS
from support.transformers import MIXED, everywhere
from torch import Tensor
from torch.nn import functional

from nmt.config.config import AttentionTypesConfig, ModelConfig
from nmt.model.observe import learned_parameters
from nmt.model.transformer import Transformer

BEGIN, END, FIRST_DIGIT, VOCABULARY = 1, 2, 3, 13
LEARNERS = {name: everywhere(case) for name, case in KINDS.items()} | {
    "entmax learned": everywhere(CASES["entmax learned"]),
    "rela-g learned threshold": everywhere(CASES["rela-g learned threshold"]),
    "rela-g layer": everywhere(CASES["rela-g layer"]),
    "rela-g gelu": everywhere(CASES["rela-g gelu"]),
    "mixed": MIXED,
}


def digits(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Source and target [count, 7]: six digits and the end, forwards and backwards."""
    forwards = torch.randint(FIRST_DIGIT, VOCABULARY, (count, 6), generator=generator)
    end = torch.full((count, 1), END)
    return torch.cat([forwards, end], dim=1), torch.cat([forwards.flip(1), end], dim=1)


def exact_match(model: Transformer) -> float:
    """The share of 256 unseen sequences that greedy decoding reverses without a mistake."""
    source, target = digits(256, torch.Generator().manual_seed(1234))
    visible = torch.ones_like(source, dtype=torch.bool)
    model.eval()
    with torch.no_grad():
        cache = model.start(model.encode(source, visible), visible, beam=1, max_length=7)
        tokens, outputs = torch.full((256, 1), BEGIN), []
        for _ in range(7):
            tokens = model.logits(model.step(tokens, cache)).argmax(-1)
            outputs.append(tokens)
    model.train()
    return (torch.cat(outputs, dim=1) == target).all(dim=1).float().mean().item()


def learn(
    attention: AttentionTypesConfig, *, most_updates: int, layers: int = 1, seed: int = 1
) -> tuple[Transformer, float, int]:
    """The model, its exact match and its updates, after 98 % are reached or time is up."""
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
    model = Transformer(config, source_vocabulary_size=13, target_vocabulary_size=13)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    visible = torch.ones(128, 7, dtype=torch.bool)
    match = 0.0
    for update in range(1, most_updates + 1):
        source, target = digits(128, generator)
        shifted = torch.cat([torch.full((128, 1), BEGIN), target[:, :-1]], dim=1)
        logits = model.logits(model(source, visible, shifted))
        loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if update % 50 == 0 and update >= 100:
            match = exact_match(model)
            if match >= 0.98:
                break
    return model, match, update


@pytest.mark.parametrize("attention", LEARNERS.values(), ids=LEARNERS)
def test_every_kind_learns_to_reverse_digits(attention: AttentionTypesConfig) -> None:
    model, match, _ = learn(attention, most_updates=500)
    assert match >= 0.98
    for parameters in learned_parameters(model).values():
        if "alpha" in parameters:
            assert ((parameters["alpha"] > 1.0) & (parameters["alpha"] <= 2.0)).all()
        assert all(values.isfinite().all() for values in parameters.values())


def test_relu_alone_learns_in_one_layer_but_late() -> None:
    """The paper's ReLU without a norm fails on WMT14; here, in one layer a side, it gets there.

    Measured over four starts: 98 % after 400 updates twice, 88 % and 93 % after 500; ReLA-g took
    200 to 300 updates to 98 %.
    """
    _, match, updates = learn(everywhere(CASES["ReLU alone"]), most_updates=500, seed=2)
    assert match >= 0.8
    assert updates >= 300


@pytest.mark.slow
def test_relu_alone_does_not_learn_in_three_layers() -> None:
    """Measured over three starts, after 200 updates: nothing right, ReLA-g 75 % to 99.6 %."""
    _, alone, _ = learn(everywhere(CASES["ReLU alone"]), most_updates=200, layers=3)
    _, gated, _ = learn(everywhere(CASES["rela-g"]), most_updates=200, layers=3)
    assert alone < 0.05
    assert gated > 0.7
