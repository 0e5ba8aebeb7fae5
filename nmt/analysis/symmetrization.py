"""Symmetrization: one word alignment from those of two translation directions.

The rules are those of Koehn, Och and Marcu (2003) in their usual order: loop over target words,
then over source words, then over the neighbours of a link.
"""

from collections.abc import Callable, Iterable

from nmt.decoding.alignment import Links, WordLink

LINK_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: Iterable[WordLink], reverse: Iterable[WordLink]) -> Links:
    """The links of both directions: few, and mostly right."""
    return tuple(sorted(set(forward) & set(reverse)))


def union(forward: Iterable[WordLink], reverse: Iterable[WordLink]) -> Links:
    """The links of either direction."""
    return tuple(sorted(set(forward) | set(reverse)))


def grow_diag(forward: Iterable[WordLink], reverse: Iterable[WordLink]) -> Links:
    """The intersection, extended by neighbouring links of the union, diagonal ones included.

    A link is added if one of its words has no link yet.
    """
    forward, reverse = set(forward), set(reverse)
    links = forward & reverse
    candidates = forward | reverse
    sources = {source for source, _ in links}
    targets = {target for _, target in links}
    grew = True
    while grew:
        grew = False
        for source, target in sorted(candidates, key=lambda link: (link[1], link[0])):
            if (source, target) not in links:
                continue
            for step_target, step_source in LINK_NEIGHBOURS:
                new = (source + step_source, target + step_target)
                if new not in candidates or new in links:
                    continue
                if new[0] in sources and new[1] in targets:
                    continue
                links.add(new)
                sources.add(new[0])
                targets.add(new[1])
                grew = True
    return tuple(sorted(links))


def grow_diag_final(forward: Iterable[WordLink], reverse: Iterable[WordLink]) -> Links:
    """`grow_diag`, then the links of either direction with a word that has no link yet."""
    forward, reverse = set(forward), set(reverse)
    links = set(grow_diag(forward, reverse))
    sources = {source for source, _ in links}
    targets = {target for _, target in links}
    for direction in (forward, reverse):
        for source, target in sorted(direction, key=lambda link: (link[1], link[0])):
            if source not in sources or target not in targets:
                links.add((source, target))
                sources.add(source)
                targets.add(target)
    return tuple(sorted(links))


SYMMETRIZATIONS: dict[str, Callable[[Iterable[WordLink], Iterable[WordLink]], Links]] = {
    "grow-diag-final": grow_diag_final,
    "grow-diag": grow_diag,
    "intersection": intersection,
    "union": union,
}
