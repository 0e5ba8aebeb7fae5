"""The border to C: what does not fit is refused before anything is read or written."""

import ctypes
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.kernels import every_build, load
from support.transformers import OUR_MODELS, TARGET_SIZE, make_model

from nmt.config.search_options import SearchOptions
from nmt.decoding.engine import Engine, EngineBatch
from nmt.decoding.engine_search import EngineSearch, Rules
from nmt.decoding.engine_step import EngineStep
from nmt.decoding.pack_transformer import pack_transformer
from nmt.decoding.search_record import Symbols
from nmt.ops.beam import choose_beam, choose_beam_torch
from nmt.ops.dropout import DropoutMask
from nmt.ops.native import interface, library, search
from nmt.ops.native import training as kernels
from nmt.ops.native.interface import RowMap
from nmt.ops.native.tensors import address

needs_kernels = pytest.mark.skipif(
    library.load() is None, reason="no kernels were built for this processor"
)


def run(program: str, *arguments: str) -> str:
    """The output of a program in a process of its own, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],  # for `support`
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


# ---------------------------------------------------------------------------------- the stack

SMALL_STACK = """
import threading, torch
from nmt.decoding.engine import Engine
from nmt.decoding.engine_step import EngineStep
from nmt.decoding.pack_transformer import pack_transformer
from nmt.ops.native import library
from nmt.ops.native.interface import RowMap
from support.transformers import OUR_MODELS, make_model

@torch.inference_mode()
def translate():
    model = make_model(OUR_MODELS["softmax"], dim=8)
    engine = Engine(library.load(), pack_transformer(model, int8=False))
    step = EngineStep(engine, [[5] * 6_000], beam=1, max_length=2)
    assert step(torch.ones(1, 1, dtype=torch.int64)).isfinite().all()
    kernels, scores = library.load(), torch.randn(100_000)
    scratch = torch.empty(kernels.scores_scratch(len(scores)))
    for row_map, parameter in ((RowMap.ENTMAX, 0.3), (RowMap.TOP_K, 7.0)):
        row = torch.cat([scores, torch.zeros(16)])
        kernels.weigh_scores(row_map, parameter, row.data_ptr(), len(scores), scratch.data_ptr())
        assert 0.99 < row.sum() < 1.01
    print("done")

torch.set_num_threads(1)
threading.stack_size(256 << 10)
thread = threading.Thread(target=translate)
thread.start()
thread.join()
"""


@needs_kernels
def test_long_sentences_do_not_take_the_stack() -> None:
    """The scores of twelve queries alone would be 288 kB here."""
    assert run(SMALL_STACK) == "done\n"


@needs_kernels
def test_wide_beams_are_left_to_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 3, 40_000, generator=generator)
    normalizer, scores = torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.float64)
    found = choose_beam(logits, normalizer, scores, beam=20_000, end=1)
    expected = choose_beam_torch(logits, normalizer, scores, beam=20_000, end=1)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.scores, other.scores)


@every_build
@pytest.mark.parametrize("beam", [0, -1, 1025, 200_000, 1 << 62])
def test_beams_beyond_the_kernel_are_refused(build: str, beam: int) -> None:
    logits = torch.zeros(1, 1, 4)
    with pytest.raises(ValueError, match="beam from 1 to 1024"):
        search.choose_beam(
            load(build), logits, torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.float64), beam, 1
        )


# --------------------------------------------------------------------------------- the memory

REFUSED_MEMORY = """
import os, resource, torch
from nmt.decoding.engine import Engine
from nmt.decoding.engine_step import EngineStep
from nmt.decoding.pack_transformer import pack_transformer
from nmt.errors import is_out_of_memory
from nmt.ops.attention_call import AttentionCall
from nmt.ops.native import library, training
from nmt.ops.score_mappings import Softmax
from support.transformers import OUR_MODELS, make_model

def limit(megabytes):
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (megabytes << 20), resource.RLIM_INFINITY))

def inputs(keys):
    return training.AttentionInput(
        AttentionCall(Softmax(), heads=1, scale=1.0, dropout=0.0, training=True),
        projections=[torch.zeros(1, 1, 64), torch.zeros(1, keys, 128)],
        visible=None, parameters=torch.zeros(1), states=torch.zeros(1, 1, 1, 2),
    )

def attend(keys):
    given = inputs(keys)
    limit(2)
    training.attend(given, slice(0, 1), None, output=torch.zeros(1, 1, 64), observed=None)

def attend_backward(keys):
    given, gradients = inputs(keys), [torch.zeros(1, 1, 64), torch.zeros(1, keys, 128)]
    limit(2)
    training.attend_backward(given, slice(0, 1), None, grad_output=torch.zeros(1, 1, 64),
                             gradients=gradients, parameters=None)

def multiply(size):
    left, right, out = torch.zeros(1, size), torch.zeros(size, size), torch.zeros(1, size)
    limit(2)
    training.multiply(left, right, out=out)

def rms(size):
    x = torch.zeros(1, size)
    limit(2)
    training.gated_rms_norm_backward(x, x[0], None, torch.ones(1), x)

def add_norm(size):
    x = torch.zeros(1, size)
    left = training.NormedSum(x, torch.zeros(1), torch.ones(1))
    limit(2)
    training.add_norm_backward(left, x[0], x, mask=None)

def decode(size):
    engine = Engine(library.load(), pack_transformer(make_model(OUR_MODELS["softmax"]), int8=False))
    limit(2)
    EngineStep(engine, [[4] * size], beam=2, max_length=4)

def outcome(function, size):
    try:
        function(size)
        return "done"
    except (RuntimeError, MemoryError) as error:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return "refused" if is_out_of_memory(error) else repr(error)

torch.set_num_threads(1)
for function, size in ((attend, 200_000), (attend_backward, 200_000), (multiply, 4_000),
                       (rms, 500_000), (add_norm, 500_000), (decode, 300_000)):
    child = os.fork()
    if child == 0:
        print(function.__name__, outcome(function, size), flush=True)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        print(function.__name__, "ended with", status, flush=True)
"""


@needs_kernels
def test_memory_that_is_refused_is_an_error() -> None:
    assert run(REFUSED_MEMORY).split("\n")[:-1] == [
        f"{name} refused"
        for name in ("attend", "attend_backward", "multiply", "rms", "add_norm", "decode")
    ]


@every_build
def test_sizes_beyond_all_memory_are_an_error(build: str) -> None:
    kernels = load(build)
    huge = interface.AttentionArguments(keys=1 << 62, width=1 << 62, heads=1)
    for name, arguments in {
        "attention_space": (ctypes.byref(huge),),
        "attention_scratch": (1 << 62,),
        "scores_scratch": (-1,),
        "packed_size": (1 << 40, 1 << 40),
        "norm_sums": (1 << 62,),
    }.items():
        with pytest.raises(MemoryError, match=name):
            getattr(kernels, name)(*arguments)


# ------------------------------------------------------------------------------------ numbers


@every_build
@pytest.mark.parametrize("k", [0.0, -1.0, 2.0**24 + 2, 2.0**32, 2.0**64, math.inf, math.nan])
def test_top_k_out_of_range_is_refused(build: str, k: float) -> None:
    kernels, row = load(build), torch.zeros(64)
    scratch = torch.empty(kernels.scores_scratch(32))
    with pytest.raises(ValueError, match="refused"):
        kernels.weigh_scores(RowMap.TOP_K, k, address(row), 32, address(scratch))
    assert (row == 0.0).all()


@every_build
@pytest.mark.parametrize("number", [-1, 10, 1 << 40])
def test_maps_that_do_not_exist_are_refused(build: str, number: int) -> None:
    kernels, row = load(build), torch.zeros(64)
    scratch = torch.empty(kernels.scores_scratch(32))
    with pytest.raises(ValueError, match="refused"):
        kernels.weigh_scores(number, 0.0, address(row), 32, address(scratch))


@every_build
def test_a_step_checks_where_it_reads(build: str) -> None:
    """Sentences, descents, positions and workspaces out of range, each for itself."""
    engine = Engine(load(build), pack_transformer(make_model(OUR_MODELS["softmax"]), int8=False))
    tokens = torch.ones(2, 2, dtype=torch.int64)

    def stepped() -> EngineStep:
        step = EngineStep(engine, [[4, 5], [6]], beam=2, max_length=8)
        step(tokens)
        return step

    with torch.inference_mode():
        for attack in (
            lambda step: step.batch.rows.__setitem__(0, 2),
            lambda step: step.batch.rows.__setitem__(0, -1),
            lambda step: step.batch.descent.__setitem__((0, 0, 0), 2),
            lambda step: step.batch.descent.__setitem__((0, 0, 0), -1),
            lambda step: setattr(step.batch.state, "position", 9),
            lambda step: setattr(step.batch.state, "most_width", 1),
            lambda step: setattr(step.batch.state, "most_positions", 1),
            lambda step: setattr(step.batch.work.fields, "attention_size", 1),
            lambda step: step.batch.starts.__setitem__(1, 1 << 40),
            lambda step: setattr(step.batch, "descent", step.batch.descent[:, :, :-1]),
            lambda step: setattr(step.batch, "rows", step.batch.rows[:1]),
        ):
            step = stepped()
            attack(step)
            before = [chunk.copy() for chunk in step.batch.past]
            with pytest.raises(ValueError, match=r"refused|expected"):
                step(tokens)
            assert all(
                np.array_equal(one, other, equal_nan=True)
                for one, other in zip(step.batch.past, before, strict=True)
            )


@every_build
def test_a_search_checks_where_it_reads(build: str) -> None:
    """Rules, tokens and memory out of range, each for itself; nothing is decoded then."""
    engine = Engine(load(build), pack_transformer(make_model(OUR_MODELS["softmax"]), int8=False))
    options, symbols = SearchOptions(beam=2), Symbols(1, 2, never=(0, 3))

    def started() -> EngineSearch:
        rules = Rules(options, symbols, [8, 5], [[5], []])
        batch = EngineBatch(engine, [[4, 5], [6]], beam=2, max_length=8, threads=1)
        search = EngineSearch(batch, rules, symbols.start)
        search.open_chunk()
        return search

    whole = started()
    whole.run()
    assert all(whole.results())
    for attack in (
        lambda search: search.rules.never.__setitem__(0, TARGET_SIZE),
        lambda search: search.rules.never.__setitem__(1, -1),
        lambda search: search.rules.limits.__setitem__(1, 1 << 40),
        lambda search: search.rules.limits.__setitem__(0, 0),
        lambda search: search.rules.starts.__setitem__(1, 1 << 40),
        lambda search: search.rules.starts.__setitem__(0, 1),
        lambda search: search.rules.prefixes.__setitem__(0, TARGET_SIZE),
        lambda search: setattr(search.rules.fields, "beam", 3),
        lambda search: setattr(search.rules.fields, "kept", 3),
        lambda search: setattr(search.rules.fields, "end", TARGET_SIZE),
        lambda search: setattr(search.rules.fields, "min_length", 1 << 20),
        lambda search: setattr(search.rules.fields, "num_divisors", 9),
        lambda search: setattr(search.rules.fields, "early_stop", 5),
        lambda search: setattr(search.state, "logits", None),
        lambda search: setattr(search.state, "links", None),
        lambda search: search.chunks.__setitem__(0, None),
        lambda search: setattr(search.batch.state, "batch", 3),
        lambda search: setattr(search.batch.work.fields, "attention_size", 1),
        lambda search: setattr(search.batch.work.fields, "threads", 0),
        lambda search: search.memory.view("tokens", np.int64).__setitem__(0, TARGET_SIZE),
        lambda search: search.batch.rows.__setitem__(0, 2),
    ):
        search = started()
        attack(search)
        with pytest.raises(ValueError, match="search_steps refused"):
            search.run()
        assert search.batch.state.position == 0


@every_build
@pytest.mark.parametrize("activation", [-1, 3, 1 << 40])
def test_activations_that_do_not_exist_are_refused(build: str, activation: int) -> None:
    engine = Engine(load(build), pack_transformer(make_model(OUR_MODELS["softmax"]), int8=False))
    for stack, cross in ((engine.encoder, 0), (engine.decoder, 1)):
        engine.kernels.check_stack(ctypes.byref(stack), cross)
        stack.activation = activation
        with pytest.raises(ValueError, match="refused"):
            engine.kernels.check_stack(ctypes.byref(stack), cross)


@needs_kernels
def test_tensors_of_other_shapes_and_types_are_refused() -> None:
    x, row = torch.zeros(4, 8), torch.zeros(8)
    for call in (
        lambda: kernels.multiply(x, torch.zeros(7, 3)),
        lambda: kernels.multiply(x, torch.zeros(8, 3), bias=torch.zeros(2)),
        lambda: kernels.multiply(x, torch.zeros(8, 3), out=torch.zeros(4, 4)),
        lambda: kernels.multiply(x.double(), torch.zeros(8, 3).double()),
        lambda: kernels.multiply(x.t(), torch.zeros(4, 3)),
        lambda: kernels.gated_rms_norm(x, row[:7], None, 1e-6),
        lambda: kernels.gated_rms_norm(x, row, row[:7], 1e-6),
        lambda: kernels.gated_rms_norm_backward(x, row, None, torch.zeros(3), x),
        lambda: kernels.add_norm(x[:3], x, row, row, mask=None, epsilon=1e-6),
        lambda: kernels.add_norm(
            *(x, x, row, row),
            mask=DropoutMask(torch.zeros(32, dtype=torch.int16), 0, 1.0),
            epsilon=1e-6,
        ),
        lambda: kernels.softmax_(x.half()),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()


# ---------------------------------------------------------------------------------- the build


@every_build
def test_a_build_with_other_structures_is_not_used(
    build: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = (path for path in library.builds() if path.name.startswith(f"{build}."))
    assert library.open_build(path) is not None

    class Kind(ctypes.Structure):
        _fields_ = (("map", ctypes.c_int64),)

    with monkeypatch.context() as patch:
        patch.setattr(interface, "STRUCTURES", (*interface.STRUCTURES[:2], Kind))
        assert library.open_build(path) is None
    assert "expected 8 bytes for Kind, got 40" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(interface, "VERSION", 0)
        assert library.open_build(path) is None
    assert "expected interface version 0" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(interface, "NUMBERS", {"missing_function": ()})
        assert library.open_build(path) is None
    assert "lacks a function" in caplog.text
    assert "slower" in caplog.text


def test_what_is_no_library_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.so").write_bytes(b"\x7fELF nothing")
    assert library.open_build(tmp_path / "broken.so") is None
    assert "cannot be used" in caplog.text
