"""Made-up sentences for a task of the catalogue: real lengths and learnable labels, without any download.

What a training step computes on follows from shapes alone. So where the texts cannot be had, sentences of the task's own
length distribution (:mod:`wattune.workloads.lengths`) cost what the real ones cost. Their words are common ones, a token each in most
vocabularies; a class shows in which words of a list appear, so that a model can learn it.
"""

from __future__ import annotations

import random
from bisect import bisect_left

from wattune.workloads.catalogue import TaskSpec
from wattune.workloads.lengths import distribution

_PLAIN = [
    "the",
    "a",
    "of",
    "and",
    "in",
    "to",
    "it",
    "is",
    "was",
    "for",
    "on",
    "with",
    "as",
    "at",
    "by",
    "this",
    "that",
    "from",
    "but",
    "not",
    "are",
    "or",
    "an",
    "be",
    "his",
    "her",
    "their",
    "one",
    "all",
    "two",
    "time",
    "man",
    "day",
    "year",
    "way",
    "life",
    "part",
    "place",
    "week",
    "case",
    "point",
    "hand",
    "home",
    "water",
    "room",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "house",
    "side",
    "kind",
    "head",
    "hour",
    "game",
    "line",
    "end",
    "name",
    "car",
    "city",
    "team",
    "power",
    "back",
    "road",
    "door",
    "art",
    "war",
    "party",
    "result",
    "change",
    "morning",
    "reason",
    "girl",
    "guy",
    "moment",
    "air",
    "force",
    "level",
    "office",
    "health",
    "person",
    "history",
    "paper",
    "group",
    "music",
    "food",
    "body",
    "light",
    "night",
]  # readable, and no hundred quotes

_TELLING = (
    ("good", "great", "happy", "best", "love", "fine", "nice", "strong"),
    ("bad", "poor", "sad", "worst", "hate", "wrong", "weak", "cold"),
    ("red", "blue", "green", "white", "black", "brown", "old", "new"),
)
"""Words of which a sentence of each class holds some."""


def sentences(
    task: TaskSpec, tokenizer: str, rows: int, seed: int, specials: int
) -> tuple[list[str], list[str] | None, list[int] | list[float]]:
    """Sentences for a task.

    Args:
        task: a task of the catalogue; its lengths, its labels and whether it has pairs are taken.
        tokenizer: which of the published lengths, ``bert`` or ``pythia``.
        rows: how many.
        seed: the same seed makes the same sentences.
        specials: tokens that the tokenizer adds to an example.

    Returns:
        First sentences, second ones where the task has pairs, and labels: classes, or values from 0 to 5.
    """
    draw = random.Random(f"{task.id} {seed}")
    cdf = distribution(task, tokenizer).cdf
    least = 2 if task.pair else 1
    first: list[str] = []
    second: list[str] = []
    labels: list[float] = []
    for _ in range(rows):
        words = max(least, bisect_left(cdf, draw.random()) - specials)
        label = draw.random() * 5.0 if task.labels == 1 else draw.randrange(task.labels)
        text = draw.choices(_PLAIN, k=words)
        for i in range(max(1, words // 4)):
            which = (1 if draw.random() * 5.0 < label else 0) if task.labels == 1 else int(label)
            text[(i * 4 + draw.randrange(4)) % words] = draw.choice(_TELLING[which])
        cut = words // 2 if task.pair else words
        first.append(" ".join(text[:cut]))
        second.append(" ".join(text[cut:]))
        labels.append(label)
    kept: list[int] | list[float] = labels if task.labels == 1 else [int(label) for label in labels]
    return first, (second if task.pair else None), kept
