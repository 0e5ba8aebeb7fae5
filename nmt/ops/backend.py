"""The table of operations, and the one place that chooses an implementation for a call.

An operation has a reference, which defines it, and further implementations. `NMT_BACKEND` (or
`force_backend`) can force one backend for all operations; otherwise the first implementation that
can compute the call and is the fastest for it is taken. The choice is logged once.

Custom operators of `torch.library` were measured in place of this table (one thread, a norm of 4 x
64 numbers): 26 instead of 16 microseconds for a call without gradients, 287 instead of 136 with
the backward pass. An implementation for GPUs can still be such an operator: `run` calls it.
"""

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch

import nmt.ops
from nmt.errors import UserError
from nmt.ops.environment import AUTO, force_backend, requested_backend

__all__ = ["Costly", "Implementation", "Operation", "Verdict", "force_backend", "verdicts"]

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Call = tuple[tuple[Any, ...], dict[str, Any]]

TABLE: "dict[str, Operation[..., Any]]" = {}
_logged: set[tuple[str, str]] = set()


class Costly(str):
    """A reason against an implementation without which the program is slower by a factor."""


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation; all three functions take the operation's arguments."""

    backend: str
    name: str
    run: Callable[..., Any]
    accepts: Callable[..., str | None] | None = None  # why it cannot compute a call; absent: it can
    prefers: Callable[..., str | None] | None = None  # why another one is better for a call it can

    def refusal(self, *args: Any, **kwargs: Any) -> str | None:
        """Why it cannot compute a call, or None."""
        return None if self.accepts is None else self.accepts(*args, **kwargs)

    def reservation(self, *args: Any, **kwargs: Any) -> str | None:
        """Why another one should compute a call, or None."""
        return None if self.prefers is None else self.prefers(*args, **kwargs)


@dataclass(frozen=True)
class Verdict:
    """An implementation in the table, and why it does not compute a call; None: it does."""

    operation: str
    backend: str
    implementation: str
    reason: str | None


class Operation(Generic[Arguments, Result]):
    """A function that calls the best of its implementations."""

    def __init__(
        self,
        name: str,
        reference: Callable[Arguments, Result],
        implementations: Sequence[Implementation],
        *,
        example: Callable[[torch.device], Call],
        gradients: bool = True,
    ) -> None:
        """The reference takes every call; other implementations come before it, best first.

        `example` makes arguments by which the choice can be explained; `gradients` says whether an
        ordinary call has gradients.
        """
        self.name = name
        self.implementations = [
            *implementations,
            Implementation("reference", "reference", reference),
        ]
        self.example = example
        self.gradients = gradients
        TABLE[name] = self

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        result: Result = self.choose(*args, **kwargs).run(*args, **kwargs)
        return result

    def choose(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Implementation:
        """The implementation that computes this call."""
        chosen = None
        if requested_backend() == AUTO:
            for one in self.implementations:  # `prefers` is the cheaper check
                if (one.prefers is None or one.prefers(*args, **kwargs) is None) and (
                    one.accepts is None or one.accepts(*args, **kwargs) is None
                ):
                    chosen = one
                    break
        else:
            chosen = self.pick(*args, **kwargs)
        if chosen is None:
            raise UserError(self.explain_failure(*args, **kwargs))
        # Asked first, so that no graph depends on what has been logged.
        if not torch.compiler.is_compiling() and (self.name, chosen.name) not in _logged:
            self.log(chosen, *args, **kwargs)
        return chosen

    def pick(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Implementation | None:
        """The implementation to take, or None where the requested backend cannot compute this."""
        candidates = self.candidates(requested_backend())
        able = [one for one in candidates if one.refusal(*args, **kwargs) is None]
        best = (one for one in able if one.reservation(*args, **kwargs) is None)
        return next(best, able[0] if able else None)

    def candidates(self, backend: str) -> Sequence[Implementation]:
        """The implementations that a request allows.

        `torch` allows the reference, too. An operation that has no implementation of the requested
        backend at all is computed as with `auto`.
        """
        if backend == AUTO:
            return self.implementations
        allowed = ("torch", "reference") if backend == "torch" else (backend,)
        own = [one for one in self.implementations if one.backend in allowed]
        return own or self.implementations

    def verdicts(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Verdict]:
        """Each implementation, with the reason why it does not compute this call."""
        backend = requested_backend()
        candidates = self.candidates(backend)
        chosen = self.pick(*args, **kwargs)
        for one in self.implementations:
            reason = None
            if one is not chosen:
                reason = one.refusal(*args, **kwargs)
                if reason is None and one not in candidates:
                    reason = f"NMT_BACKEND is {backend}"
                reason = reason or one.reservation(*args, **kwargs)
                if reason is None:
                    assert chosen is not None, "only a better one is taken in its place"
                    reason = f"comes after {chosen.name}"
            yield Verdict(self.name, one.backend, one.name, reason)

    def explain_failure(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> str:
        """Why no implementation of the requested backend can compute this call."""
        backend = requested_backend()
        reasons = [
            f"{one.name}: {one.refusal(*args, **kwargs)}" for one in self.candidates(backend)
        ]
        return (
            f"NMT_BACKEND={backend} cannot compute {self.name} here ({'; '.join(reasons)}); "
            "use NMT_BACKEND=auto"
        )

    def log(
        self, chosen: Implementation, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> None:
        """Say once what computes this operation, and warn where that costs a factor."""
        _logged.add((self.name, chosen.name))
        logger.info("%s: %s", self.name, chosen.name)
        for one in self.candidates(requested_backend()):
            if one is chosen:
                return
            reason = one.refusal(*args, **kwargs)
            if isinstance(reason, Costly) and ("", reason) not in _logged:
                _logged.add(("", reason))
                logger.warning("%s", reason)


def verdicts(device: torch.device) -> list[Verdict]:
    """The whole table for an ordinary call on a device: what runs, and why the others do not.

    Operations outside this package, such as decoding, are in it once they have been imported.
    """
    for module in pkgutil.iter_modules(nmt.ops.__path__, "nmt.ops."):
        importlib.import_module(module.name)
    found: list[Verdict] = []
    for operation in TABLE.values():
        args, kwargs = operation.example(device)
        with torch.set_grad_enabled(operation.gradients):
            found.extend(operation.verdicts(*args, **kwargs))
    return found
