"""Measure how the heads of a sublayer share the vector that is normed or projected.

python recipes/multi30k_en_de/head_energy.py RUN [RUN ...] > head_energy.tsv

reads finished runs of this recipe and their validation text, whose translations the models are
given. z are the concatenated heads of a query: before the norm of ReLA, before the output
projection of other kinds. The energy of a head is the sum of its squares in z. Columns, as means
over the queries of a sublayer:

largest          the share of the energy that the head with most energy has
effective_heads  (sum of energies)^2 / sum of squared energies: H if all are equal, 1 if one has all
channels         how many channels of z have 90 % of the energy
norm_by_head     correlation of log rms(z) with the log of the sum of the weights of the head that
                 has most energy over all queries: 1 if that sum alone decides what ReLA's norm
                 divides by; empty for kinds whose weights always sum to 1

Shapes: B sentences, H heads, Q queries, K keys, D width, N queries that are no padding.
"""

import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.checkpoint.model_directory import LoadedModel, load_model
from nmt.checkpoint.selection import find_model
from nmt.config.config import resolved_prepared_dir
from nmt.data.batching import Batch, validation_batches
from nmt.data.prepare import open_prepared
from nmt.model.attention import Site
from nmt.training.loss import TranslationLoss
from nmt.training.update import loss_inputs

COLUMNS = ("run", "attention", "layer", "largest", "effective_heads", "channels", "norm_by_head")
CPU = torch.device("cpu")


class Recorder:
    """The sums of the weights [N, H] and the concatenated heads [N, D] of every sublayer."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.sums: dict[Site, list[Tensor]] = defaultdict(list)
        self.joined: dict[Site, list[Tensor]] = defaultdict(list)
        self.loss = TranslationLoss(loaded.model, smoothing=0.0).eval()
        self.batch: Batch
        for site, sublayer in loaded.model.attentions().items():
            core = sublayer.core
            core.observer = partial(self.keep_sums, site)
            last = sublayer.output if core.norm is None else core.norm
            last.register_forward_pre_hook(partial(self.keep_joined, site))

    def keep_sums(self, site: Site, weights: Tensor, _visible: Tensor) -> None:
        """Keep the sums of the weights [B, H, Q, K]."""
        self.sums[site].append(weights.sum(dim=-1).transpose(1, 2)[self.real(site)])

    def keep_joined(self, site: Site, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Keep the concatenated heads [B, Q, D]."""
        self.joined[site].append(inputs[0][self.real(site)])

    def real(self, site: Site) -> Tensor:
        """[B, Q]: the queries of a sublayer that are no padding."""
        encoder = site.type == "encoder_self"
        return self.batch.source_visible if encoder else self.batch.target_visible

    @torch.no_grad()
    def read(self, batch: Batch) -> None:
        """Record a batch."""
        self.batch = batch
        self.loss(*loss_inputs(batch, CPU))


def measures(sums: Tensor, joined: Tensor) -> tuple[float | None, ...]:
    """The numbers of the columns for the queries of a sublayer; None where all heads are null."""
    count, heads = sums.shape
    energy = joined.view(count, heads, -1).square().sum(-1)
    some = energy.sum(-1) > 0  # a query whose heads are all null has none
    if some.sum() < 2:
        return (None,) * 4
    energy, joined, sums = energy[some], joined[some], sums[some]
    total = energy.sum(-1)
    shares = energy / total[:, None]
    channels = joined.square().sort(dim=-1, descending=True).values.cumsum(-1)
    needed = 1 + (channels < 0.9 * total[:, None]).sum(-1)
    of_head = sums[:, shares.mean(0).argmax()]
    attends = of_head > 0
    by_head = None
    if float(of_head.std()) > 1e-3:
        logs = torch.stack([total[attends].log(), of_head[attends].log()])
        by_head = float(torch.corrcoef(logs)[0, 1])
    effective = (1 / shares.square().sum(-1)).mean()
    return float(shares.amax(-1).mean()), float(effective), float(needed.float().mean()), by_head


def main(runs: list[Path]) -> None:
    """Print the table."""
    print("\t".join(COLUMNS))
    for run in runs:
        loaded = load_model(find_model(run))
        prepared = open_prepared(resolved_prepared_dir(loaded.config))
        recorder = Recorder(loaded)
        for batch in validation_batches(prepared.validation, batch_tokens=2048):
            recorder.read(batch)
        for site, sums in recorder.sums.items():
            found = measures(torch.cat(sums), torch.cat(recorder.joined[site]))
            shown = ["" if value is None else f"{value:.3f}" for value in found]
            print("\t".join([run.name, site.type, str(site.layer), *shown]))


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
