"""The counters of the server, in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from nmt.serving.waiting import Item

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """Counters since the start of the server."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.seconds: defaultdict[str, float] = defaultdict(float)  # by path
        self.buckets: Counter[tuple[str, int]] = Counter()  # by path and index of the bound
        self.lines: Counter[str] = Counter()  # by model
        self.characters: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()
        self.reloads: Counter[str] = Counter()  # by result
        self.worker_endings = 0

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests[path, status] += 1
        self.seconds[path] += seconds
        self.buckets[path, bisect_left(BOUNDS, seconds)] += 1

    def count_batch(self, model: str, items: Sequence[Item]) -> None:
        """Count a batch that was answered."""
        self.batches[model] += 1
        self.lines[model] += len(items)
        self.characters[model] += sum(item.size for item in items)

    def text(self, *, waiting: int, workers: int) -> str:
        """All numbers; `waiting` are lines."""
        return "".join(f"{line}\n" for line in self._lines(waiting, workers))

    def _lines(self, waiting: int, workers: int) -> Iterator[str]:
        yield from family(
            "nmt_requests_total", "counter", "Requests that were answered.",
            {labels(path=path, status=str(code)): n for (path, code), n in self.requests.items()},
        )  # fmt: skip
        yield from self._histogram()
        for name, what, counts in (
            ("lines", "Lines that were translated.", self.lines),
            ("characters", "Characters of these lines.", self.characters),
            ("batches", "Batches that workers answered.", self.batches),
        ):
            found = {labels(model=model): count for model, count in counts.items()}
            yield from family(f"nmt_{name}_total", "counter", what, found)
        for name, kind, what, value in (
            ("waiting_lines", "gauge", "Lines that wait for a worker.", waiting),
            ("workers", "gauge", "Worker processes that have loaded the models.", workers),
            ("worker_endings_total", "counter", "Workers that ended unexpectedly.",
             self.worker_endings),
        ):  # fmt: skip
            yield from family(f"nmt_{name}", kind, what, {"": value})
        reloads = {labels(result=result): self.reloads[result] for result in ("done", "failed")}
        yield from family("nmt_reloads_total", "counter", "Reloads of the models.", reloads)

    def _histogram(self) -> Iterator[str]:
        """The times of requests by path, as counts of those that took at most so long."""
        name = "nmt_request_seconds"
        yield f"# HELP {name} Time from the head of a request to the end of its answer."
        yield f"# TYPE {name} histogram"
        for path, total in self.seconds.items():
            count = 0
            for place, bound in enumerate((*BOUNDS, "+Inf")):
                count += self.buckets[path, place]
                yield f"{name}_bucket{labels(path=path, le=str(bound))} {count}"
            yield f"{name}_sum{labels(path=path)} {total:.6f}"
            yield f"{name}_count{labels(path=path)} {count}"


def family(name: str, kind: str, what: str, values: Mapping[str, int]) -> Iterator[str]:
    """The lines of one metric; `values` are by labels."""
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
    for given, value in values.items():
        yield f"{name}{given} {value}"


def labels(**values: str) -> str:
    """Labels of a metric. Our values have no character that would have to be escaped."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in values.items()) + "}"
