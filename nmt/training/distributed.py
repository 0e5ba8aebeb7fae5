"""Several processes as one: who we are, and the few things that processes tell each other."""

import json
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from nmt.config.config import TrainConfig
from nmt.errors import ConfigError, UserError
from nmt.ops.cuda_device import cuda_problem, set_cuda_defaults, warn_of_unused_card
from nmt.training.interfaces import check_interface
from nmt.training.lifeline import EXIT_CODE, Lifeline, end_stopped, is_alive, lost_message

# Processes that are alive wait for each other this long: until all have started, until the others
# have read data, validated or saved, and until the others have computed (perhaps compiled) a pass.
LONGEST_START = timedelta(minutes=30)
LONGEST_STAGE = timedelta(days=1)
LONGEST_PASS = timedelta(hours=1)


class ProcessLostError(UserError):
    """Another process of the run has ended or does not answer."""

    exit_code = EXIT_CODE


@dataclass(frozen=True)
class Processes:
    """This process among all; a run without torchrun is a world of one."""

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup | None  # gloo, for messages that live in host memory
    lifeline: Lifeline | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over all processes of a tensor in host memory."""
        if self.size > 1:
            dist.all_reduce(values, group=self.control)
        return values

    def maximum(self, value: int) -> int:
        """The largest `value` of all processes."""
        return self.maxima([value])[0]

    def maxima(self, values: list[int]) -> list[int]:
        """The largest of each of `values` of all processes."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return [int(value) for value in tensor]

    def wait_for_all(self, seconds: float) -> None:
        """Wait until every process has come here, for longer than a message may take."""
        if self.size > 1:
            with lost_processes():
                dist.monitored_barrier(self.control, timeout=timedelta(seconds=seconds))

    def gather(self, value: Any) -> list[Any]:
        """Everybody's `value` (JSON), in the order of ranks."""
        if self.size == 1:
            return [value]
        data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        length = self.maximum(len(data))
        own = torch.full((length,), ord(" "), dtype=torch.uint8)
        own[: len(data)] = data
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own, group=self.control)
        return [json.loads(bytes(part.tolist())) for part in parts]


def choose_device(name: str, local_rank: int) -> torch.device:
    """The device of a process; `auto` is a GPU where one can be used."""
    problem = None if name == "cpu" else cuda_problem()
    if name == "cuda" and problem is not None:
        raise ConfigError(
            f"train.device is cuda, but torch cannot use a CUDA device: {problem} (nmt-doctor "
            "shows more; train.device=cpu trains on the CPU)"
        )
    if name == "cpu" or problem is not None:
        if name == "auto" and problem is not None:
            warn_of_unused_card(problem)
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local_rank} of this machine has no GPU: torch finds "
            f"{torch.cuda.device_count()}; start as many processes as there are GPUs"
        )
    return torch.device("cuda", local_rank)


def data_parallel(
    module: nn.Module, device: torch.device, *, halved: bool = False
) -> DistributedDataParallel:
    """The module whose gradients are averaged over the processes, `halved`: in bfloat16.

    Its buffers are not sent: the one there is, a table of positions, is a function of its size.
    """
    devices = [device.index] if device.type == "cuda" else None
    with warnings.catch_warnings():
        # torch 2.13 deprecates `broadcast_buffers`; torch 2.10 has no other name for it.
        warnings.simplefilter("ignore", FutureWarning)
        parallel = DistributedDataParallel(
            module, device_ids=devices, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    if halved:
        parallel.register_comm_hook(None, average_in_bfloat16)
    return parallel


def average_in_bfloat16(_state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The average of a bucket of gradients over the processes, sent in bfloat16.

    DDP takes torch's own hook for this only with NCCL.
    """
    gradients = bucket.buffer()
    halves = gradients.to(torch.bfloat16).div_(dist.get_world_size())
    work = dist.all_reduce(halves, async_op=True)
    assert work is not None
    sent: torch.futures.Future[list[Tensor]] = work.get_future()
    return sent.then(lambda done: gradients.copy_(done.value()[0]))


@contextmanager
def lost_processes() -> Iterator[None]:
    """Turn the error of a collective whose other side is gone into one line."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        reason = re.sub(r"^\[[^]]*\] *", "", str(error).strip().split("\n", maxsplit=1)[0])
        raise ProcessLostError(lost_message(reason)) from error


@contextmanager
def processes(config: TrainConfig) -> Iterator[Processes]:
    """Join the other processes that torchrun started, if any, and leave them at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device = choose_device(config.device, int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        set_cuda_defaults()
    if size == 1:
        yield Processes(0, 1, device, None)
        return
    check_interface()
    backend = "nccl" if device.type == "cuda" else "gloo"
    with lost_processes():
        store, _, _ = next(rendezvous("env://", timeout=LONGEST_START))
        store = of_this_attempt(store)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=LONGEST_PASS
        )
        control = dist.new_group(backend="gloo", timeout=LONGEST_STAGE)
        own = store.clone()  # type: ignore[attr-defined]  # a connection for one thread alone
        lifeline = make_lifeline(own, rank, size, timeout=config.distributed_timeout)
        team = Processes(rank, size, device, control, lifeline)
        lifeline.neighbours = neighbours(team)
    lifeline.start()
    try:
        yield team
        lifeline.over.set()
    except ProcessLostError:
        end_stopped(lifeline.neighbours)
        raise
    finally:
        dist.destroy_process_group()


def make_lifeline(connection: Store, rank: int, size: int, *, timeout: float) -> Lifeline:
    """The lifeline of this process, which has given its first sign of life."""
    own = PrefixStore("lifeline", connection)
    own.set_timeout(timedelta(seconds=timeout))
    lifeline = Lifeline(own, rank, size, timeout)
    lifeline.beat()
    return lifeline


def of_this_attempt(store: Store) -> Store:
    """The part of torchrun's store that is new after each restart.

    `torchrun --max-restarts` keeps its store, and with it the addresses of processes that are
    dead: the new ones would try to reach them. Several machines do not count restarts alike.
    """
    if os.environ.get("GROUP_WORLD_SIZE") != "1":
        return store
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def neighbours(team: Processes) -> list[int]:
    """The process numbers of the others on this machine, as far as they can be seen."""
    own = [socket.gethostname(), os.getpid()]
    everyone = team.gather(own)
    return [pid for host, pid in everyone if host == own[0] and pid != own[1] and is_alive(pid)]
