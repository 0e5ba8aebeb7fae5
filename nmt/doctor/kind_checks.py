"""Checks of one attention kind, for authors of kinds: what every kind promises.

B batch, H heads, Q queries, K keys, D width. Each check returns a short note, or raises
KindCheckError.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nmt.config.config import (
    AttentionConfig,
    AttentionTypesConfig,
    ModelConfig,
    SublayerAttentionConfig,
)
from nmt.decoding.decoder import make_decoder
from nmt.decoding.engine_step import EngineStep
from nmt.doctor.resumption import differing_tensors
from nmt.doctor.reversal import ENOUGH, learn_reversal
from nmt.model.attention import AttentionCore
from nmt.model.transformer import Transformer
from nmt.ops.attention import attention as attention_operation
from nmt.ops.backend import Implementation, force_backend

HEADS, WIDTH = 4, 32
CHECKED_BACKENDS = ("reference", "auto")
CONTENTS = (3.0, -1e30, torch.inf, torch.nan)  # of hidden keys, which must not matter
SIZES = (1e-30, 1e4, 1e15, 1e30)  # of scores
REVERSAL_UPDATES = 500


class KindCheckError(Exception):
    """A kind does not do what every kind promises."""


@dataclass(frozen=True)
class KindCheck:
    """How one check went; the note is the problem where there is one."""

    name: str
    passed: bool
    note: str
    seconds: float


def check_kind(attention: AttentionConfig) -> Iterator[KindCheck]:
    """The outcome of each check, in order."""
    checks: dict[str, Callable[[AttentionConfig], str]] = {
        "masks": check_masks,
        "empty rows": check_empty_rows,
        "weights": check_weights,
        "gradients": check_gradients,
        "implementations": check_implementations,
        "large and small scores": check_sizes,
        "half precision": check_half_precision,
        "cache": check_cache,
        "resume": check_resume,
        "learning": check_learning,
    }
    for name, check in checks.items():
        start = time.monotonic()
        try:
            passed, note = True, check(attention)
        except KindCheckError as error:
            passed, note = False, str(error)
        except Exception as error:  # the code is not ours, and may fail in any way
            passed, note = False, f"{type(error).__name__}: {error}".split("\n")[0]
        yield KindCheck(name, passed, note, time.monotonic() - start)


def require(condition: bool, problem: str) -> None:
    """Raise for what a kind promises and does not do."""
    if not condition:
        raise KindCheckError(problem)


def make_core(attention: AttentionConfig, dtype: torch.dtype = torch.float32) -> AttentionCore:
    """The attention between its projections, all parameters away from their initial values."""
    torch.manual_seed(0)
    core = AttentionCore(WIDTH, HEADS, attention=attention, dropout=0.1).to(dtype).eval()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape).to(dtype))
    return core


def make_projections(
    batch: int, queries: int, keys: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """query [B, Q, D] and key_value [B, K, 2 D] that give scores of about unit size."""
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(batch, queries, WIDTH, generator=generator, dtype=torch.float64)
    key_value = torch.randn(batch, keys, 2 * WIDTH, generator=generator, dtype=torch.float64)
    return query.to(dtype), key_value.to(dtype)


def visible_keys(keys: int, *lengths: int) -> Tensor:
    """The mask [B, 1, 1, K] of sentences of these lengths."""
    return (torch.arange(keys) < torch.tensor(lengths)[:, None])[:, None, None, :]


@contextmanager
def observed(core: AttentionCore) -> Iterator[list[Tensor]]:
    """The weights [B, H, Q, K] of each call while the context lasts."""
    seen: list[Tensor] = []
    core.observer = lambda weights, _visible: seen.append(weights.detach().clone())
    try:
        yield seen
    finally:
        core.observer = None


def check_masks(attention: AttentionConfig) -> str:
    """Hidden keys have weight 0 and change no bit of the output, whatever they contain."""
    core = make_core(attention)
    query, key_value = make_projections(3, 4, 16)
    visible = visible_keys(16, 16, 7, 1)
    hidden = ~visible[:, 0, 0]
    for backend in CHECKED_BACKENDS:
        with force_backend(backend):
            before = core((query, key_value), visible)
            for content in CONTENTS:
                changed = key_value.clone()
                changed[..., :WIDTH][hidden] = content
                after = core((query, changed), visible)
                with observed(core) as seen:
                    core((query, changed), visible)
                zero = bool((seen[0].masked_select(~visible) == 0.0).all())
                require(zero, f"a hidden key with content {content:g} has a weight that is not 0")
                same = torch.equal(before, after)
                require(same, f"a hidden key with content {content:g} changes the output")
    return "hidden keys have weight 0 and change no bit"


def check_empty_rows(attention: AttentionConfig) -> str:
    """A query without a visible key gets 0 and has gradient 0."""
    core = make_core(attention)
    visible = visible_keys(5, 5, 0, 2).repeat(1, 1, 4, 1)
    for backend in CHECKED_BACKENDS:
        query, key_value = (x.requires_grad_() for x in make_projections(3, 4, 5))
        with force_backend(backend):
            output = core((query, key_value), visible)
            inputs = [query, key_value, *core.parameters()]
            gradients = torch.autograd.grad(output.square().sum(), inputs, materialize_grads=True)
        require(bool((output[1] == 0.0).all()), "a query without a visible key does not get 0")
        zero = bool((gradients[0][1] == 0.0).all() and (gradients[1][1] == 0.0).all())
        require(zero, "a query without a visible key has a gradient")
        finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        require(finite, "a query without a visible key makes gradients that are not finite")
    return "queries without a visible key get 0, and gradient 0"


def check_weights(attention: AttentionConfig) -> str:
    """Sums and rows of zeros are as the row of the table says."""
    core = make_core(attention)
    visible = visible_keys(33, 33, 20, 1)
    with observed(core) as seen, torch.no_grad():
        core(make_projections(3, 17, 33), visible)
    weights, row = seen[0], attention.row
    shown = weights.masked_select(visible.expand_as(weights))
    sums = weights.sum(-1)
    if row.sums_to_one:
        require(bool((weights >= 0.0).all()), "sums_to_one is set, but weights are below 0")
        furthest = float((sums - 1.0).abs().max())
        require(furthest <= 5e-6, f"sums_to_one is set, but sums differ from 1 by {furthest:.2g}")
    if not row.can_attend_to_nothing:
        nothing = bool((weights == 0.0).all(-1).any())
        require(not nothing, "a query attends to nothing, but can_attend_to_nothing is not set")
    zeros = float((shown == 0.0).double().mean())
    return f"{100 * zeros:.0f} % of the weights of visible keys are exactly 0"


def check_gradients(attention: AttentionConfig) -> str:
    """Gradients in float64 are those of finite differences."""
    core = make_core(attention, torch.float64)
    visible = visible_keys(5, 5, 3)
    inputs = [*make_projections(2, 3, 5, torch.float64), *core.parameters()]
    for tensor in inputs:
        tensor.requires_grad_()

    def attend(query: Tensor, key_value: Tensor, *_parameters: Tensor) -> Tensor:
        result: Tensor = core((query, key_value), visible)
        return result

    for backend in CHECKED_BACKENDS:
        with force_backend(backend):
            right = torch.autograd.gradcheck(
                attend, inputs, atol=1e-5, fast_mode=True, raise_exception=False
            )
        require(right, "gradients differ from finite differences")
    return "of inputs and learned parameters, as by finite differences"


def check_implementations(attention: AttentionConfig) -> str:
    """Whatever computes the kind in float32 gives the outputs and gradients of its definition."""
    core = make_core(attention)
    inputs = [x.requires_grad_() for x in make_projections(3, 17, 33)]
    learned = [*core.weights.parameters()]

    def attend(one: Implementation) -> list[Tensor] | None:
        arguments = (core.call(None), tuple(inputs), visible_keys(33, 33, 20, 1))
        if one.refusal(*arguments, core.weights.values()) is not None:
            return None
        output = one.run(*arguments, core.weights.values())
        gradients = torch.autograd.grad(
            output.square().sum(), [*inputs, *learned], materialize_grads=True
        )
        return [output.detach(), *gradients]

    *others, definition = attention_operation.implementations
    expected = attend(definition)
    assert expected is not None
    names = []
    for one in others:
        if (found := attend(one)) is not None:
            names.append(one.name)
            for result, right in zip(found, expected, strict=True):
                furthest = float((result - right).abs().max()) / max(1.0, float(right.abs().max()))
                require(furthest <= 1e-4, f"{one.name}: results differ by {furthest:.2g}")
    return f"as the definition: {', '.join(names)}" if names else "there is only the definition"


def check_sizes(attention: AttentionConfig) -> str:
    """Scores of any size give finite outputs and gradients."""
    core = make_core(attention)
    for size in SIZES:
        query, key_value = make_projections(2, 3, 6)
        key_value[..., :WIDTH] *= size
        inputs = [query.requires_grad_(), key_value.requires_grad_()]
        output = core((query, key_value), visible_keys(6, 6, 4))
        require(bool(output.isfinite().all()), f"scores of size {size:g} give a value not finite")
        gradients = torch.autograd.grad(output.sum(), inputs)
        number = not any(bool(gradient.isnan().any()) for gradient in gradients)
        require(number, f"scores of size {size:g} give a gradient that is not a number")
    return "outputs are finite"


def check_half_precision(attention: AttentionConfig) -> str:
    """Under autocast weights are computed in float32, and stay close."""
    core = make_core(attention)
    projections, visible = make_projections(2, 4, 8), visible_keys(8, 8, 5)
    with observed(core) as exact:
        core(projections, visible)
    for dtype, tolerance in ((torch.float16, 0.02), (torch.bfloat16, 0.15)):
        halves = tuple(x.to(dtype).requires_grad_() for x in projections)
        with torch.autocast("cpu", dtype=dtype), observed(core) as seen:
            output = core(halves, visible)
        require(seen[0].dtype == torch.float32, f"in {dtype} weights have type {seen[0].dtype}")
        require(output.dtype == dtype, f"in {dtype} the output has type {output.dtype}")
        close = torch.allclose(seen[0], exact[0], atol=tolerance, rtol=tolerance)
        require(close, f"weights in {dtype} differ from those in float32")
        gradients = torch.autograd.grad(output.sum(), halves)
        finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        require(finite, f"gradients in {dtype} are not finite")
    return "weights are float32 in float16 and bfloat16"


def everywhere(attention: AttentionConfig) -> AttentionTypesConfig:
    """One kind in all three types of sublayer."""
    sublayer = SublayerAttentionConfig(attention.kind, **attention.given)
    return AttentionTypesConfig(sublayer, sublayer, sublayer)


def check_cache(attention: AttentionConfig) -> str:
    """Decoding step by step, by the engine in C, too, gives what the whole forward pass gives."""
    torch.manual_seed(1)
    config = ModelConfig(
        dim=WIDTH,
        heads=HEADS,
        encoder_layers=2,
        decoder_layers=2,
        feed_forward_dim=64,
        attention=everywhere(attention),
    )
    model = Transformer(config, source_vocabulary_size=29, target_vocabulary_size=31).eval()
    source, target = torch.randint(4, 29, (3, 9)), torch.randint(4, 31, (3, 21))
    visible = visible_keys(9, 9, 4, 7)[:, 0, 0]
    with torch.no_grad():
        full = model(source, visible, target)
        cache = model.start(model.encode(source, visible), visible, beam=1, max_length=21)
        steps = [model.step(target[:, place, None], cache) for place in range(21)]
        furthest = float((torch.cat(steps, dim=1) - full).abs().max())
        require(furthest <= 2e-5, f"decoding with the cache differs by {furthest:.2g}")
        engine = make_decoder(model, int8=False, keep_model=True).engine
        if engine is not None:
            sources = [row[seen].tolist() for row, seen in zip(source, visible, strict=True)]
            step = EngineStep(engine, sources, beam=1, max_length=21)
            logits = [step(target[:, place, None]).clone() for place in range(21)]
            furthest = float((torch.cat(logits, dim=1) - model.logits(full)).abs().max())
            require(furthest <= 1e-4, f"decoding by the engine in C differs by {furthest:.2g}")
    return "decoding step by step gives what the whole forward pass gives"


def check_resume(attention: AttentionConfig) -> str:
    """A run that was stopped and resumed ends with the same bits."""
    with tempfile.TemporaryDirectory(prefix="nmt-check-kind-") as directory:
        differing = differing_tensors(everywhere(attention), Path(directory))
    require(not differing, f"a resumed run ends with other numbers in {', '.join(differing)}")
    return "a resumed run ends with the same bits"


def check_learning(attention: AttentionConfig) -> str:
    """A small model learns to reverse six digits."""
    learned = learn_reversal(everywhere(attention), most_updates=REVERSAL_UPDATES)
    result = f"{100 * learned.match:.0f} % of six digits reversed after {learned.updates} updates"
    require(learned.match >= ENOUGH, result)
    return result
