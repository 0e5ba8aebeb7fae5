"""A checkpoint written by an earlier version (of this package and of torch) still goes on.

After a deliberate change of the form, write it anew: `python tests/unit/checkpoint/test_golden.py`.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from nmt.checkpoint.model_directory import LoadedModel, load_model, model_files
from nmt.checkpoint.optimizer import flatten_optimizer, restore_optimizer
from nmt.checkpoint.store import verify
from nmt.data.vocabulary import BOS
from nmt.storage.directories import json_writer, write_directory
from nmt.storage.manifest import SealedDirectory
from nmt.storage.tensors import tensors_writer

GOLDEN = Path(__file__).parent / "golden"
SOURCE, TARGET = "the old man sees a dog", "der alte Mann sieht einen Hund"


def loss_of(loaded: LoadedModel) -> torch.Tensor:
    """The mean loss of the one sentence."""
    source = torch.tensor([loaded.codec.source.encode(SOURCE)])
    target = torch.tensor([loaded.codec.target.encode(TARGET)])
    before = torch.cat([torch.tensor([[BOS]]), target[:, :-1]], dim=1)
    hidden = loaded.model(source, torch.ones_like(source, dtype=torch.bool), before)
    return torch.nn.functional.cross_entropy(loaded.model.logits(hidden)[0], target[0])


def update(loaded: LoadedModel, optimizer: torch.optim.Optimizer) -> float:
    """One update; returns the loss before it."""
    optimizer.zero_grad()
    loss = loss_of(loaded)
    loss.backward()
    optimizer.step()
    return loss.item()


def adam(loaded: LoadedModel) -> torch.optim.Adam:
    return torch.optim.Adam(loaded.model.parameters(), lr=0.01, betas=(0.9, 0.98))


def test_golden_checkpoint_goes_on() -> None:
    """The recorded losses, of the weights as they are and after two more updates, to 1e-6."""
    verify(GOLDEN)
    directory = SealedDirectory(GOLDEN)
    loaded = load_model(GOLDEN)
    optimizer = adam(loaded)
    with directory.open("optimizer.safetensors") as reader:
        restore_optimizer(reader, optimizer, loaded.model.named_parameters())
    losses = [update(loaded, optimizer) for _ in range(3)]
    assert losses == pytest.approx(directory.read_json("state.json")["losses"], rel=1e-6)


def write_golden() -> None:
    """Train a little, save, go on, and record how that went."""
    from support.small_models import small_codec, small_config, small_transformer

    kinds = "{encoder_self: {kind: entmax, alpha: learned}, cross: rela-g}"
    config = small_config(Path("/golden"), model=f", attention: {kinds}")
    codec = small_codec(config)
    loaded = LoadedModel(config, codec, small_transformer(config, codec, seed=1), GOLDEN)
    optimizer = adam(loaded)
    for _ in range(3):
        update(loaded, optimizer)
    weights = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    moments = flatten_optimizer(optimizer, loaded.model.named_parameters())
    moments = {name: value.clone() for name, value in moments.items()}
    losses = [update(loaded, optimizer) for _ in range(3)]
    shutil.rmtree(GOLDEN, ignore_errors=True)
    files = {
        **model_files(config, codec, weights),
        "optimizer.safetensors": tensors_writer(moments),
        "state.json": json_writer({"losses": losses, "torch": torch.__version__}),
    }
    write_directory(GOLDEN, files)
    print(json.dumps(losses))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    write_golden()
