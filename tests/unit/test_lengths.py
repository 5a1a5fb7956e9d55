"""Token lengths against the published statistics, and what must hold for every batch size."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.core.errors import InputError
from wattune.workloads.catalogue import TASKS
from wattune.workloads.lengths import MAX_BINS, distribution, padded_bins

# mean, median, p95, longest, mean longest of batches of 16, 32, 128, 256, 512; BERT's tokens, training split.
PUBLISHED = {
    "cola": (11.33, 10, 20, 47, (21, 23, 28, 30, 32)),
    "sst2": (13.32, 10, 33, 66, (35, 40, 49, 52, 54)),
    "stsb": (27.81, 23, 60, 125, (62, 71, 81, 86, 92)),
    "wnli": (37.07, 32, 72, 108, (75, 81, 95, 101, 106)),
    "mrpc": (53.25, 53, 74, 103, (76, 80, 87, 92, 95)),
    "rte": (70.20, 56, 157, 289, (163, 187, 212, 228, 243)),
}
QNLI_SPLITS = ((96, 106, 130, 143, 159), (94, 105, 142, 160, 192))
PYTHIA_MEANS = {"cola": 9.50, "sst2": 12.62, "stsb": 25.80, "wnli": 34.15, "mrpc": 51.02, "rte": 68.77}
BATCHES = (16, 32, 128, 256, 512)

tasks = st.sampled_from(sorted(TASKS))
tokenizers = st.sampled_from(["bert", "pythia"])


@pytest.mark.parametrize("task", sorted(PUBLISHED))
def test_published_statistics_come_out(task):
    mean, median, p95, longest, in_batch = PUBLISHED[task]
    lengths = distribution(TASKS[task])
    assert lengths.mean() == pytest.approx(mean, rel=0.01)
    assert lengths.quantile(0.5) == pytest.approx(median, abs=1)
    assert lengths.quantile(0.95) == pytest.approx(p95, abs=1)
    assert lengths.quantile(1.0) == longest
    for batch, published in zip(BATCHES, in_batch, strict=True):
        assert abs(lengths.longest_of(batch) - published) <= max(2.0, 0.04 * published), (batch, published)


def test_qnli_lies_between_its_published_splits():
    lengths = distribution(TASKS["qnli"])
    assert lengths.mean() == pytest.approx(51.14, rel=0.01)
    for batch, *published in zip(BATCHES, *QNLI_SPLITS, strict=True):
        low, high = min(published), max(published)
        assert low - max(2.0, 0.04 * low) <= lengths.longest_of(batch) <= high + max(2.0, 0.04 * high)


@pytest.mark.parametrize(("task", "mean", "median"), [("mnli", 40, 38), ("qqp", 29, 28)])
def test_inferred_tasks_have_their_estimated_mean_and_published_median(task, mean, median):
    lengths = distribution(TASKS[task])
    assert lengths.mean() == pytest.approx(mean, rel=0.01)
    assert lengths.quantile(0.5) == pytest.approx(median, abs=1)


@pytest.mark.parametrize("task", sorted(PYTHIA_MEANS))
def test_pythia_lengths_have_their_published_mean(task):
    assert distribution(TASKS[task], "pythia").mean() == pytest.approx(PYTHIA_MEANS[task], rel=0.01)


@given(tasks, tokenizers)
def test_cdf_is_a_distribution(task, tokenizer):
    cdf = distribution(TASKS[task], tokenizer).cdf
    assert cdf[0] == 0.0
    assert cdf[-1] == 1.0
    assert list(cdf) == sorted(cdf)


@given(tasks, tokenizers, st.integers(1, 600), st.integers(1, 600), st.integers(1, 300))
def test_bigger_batches_are_never_shorter(task, tokenizer, one, more, max_length):
    lengths = distribution(TASKS[task], tokenizer)
    small, large = lengths.longest_of(one, max_length), lengths.longest_of(one + more, max_length)
    assert lengths.mean(max_length) - 1e-9 <= small <= large + 1e-9
    assert large <= max_length + 1e-9


@settings(deadline=None)
@given(tasks, tokenizers, st.integers(1, 600), st.integers(1, 512))
def test_bins_keep_the_distribution(task, tokenizer, batch, max_length):
    bins = padded_bins(TASKS[task], tokenizer, batch, max_length)
    assert 1 <= len(bins) <= MAX_BINS
    assert math.fsum(b.share for b in bins) == pytest.approx(1.0, abs=1e-12)
    assert all(b.share > 0 and 1 <= b.tokens <= max_length for b in bins)
    assert [b.tokens for b in bins] == sorted({b.tokens for b in bins})
    chances = distribution(TASKS[task], tokenizer).padded(batch, max_length)
    assert math.fsum(chances) == pytest.approx(1.0)
    first = math.fsum(n * p for n, p in enumerate(chances))
    second = math.fsum(n * n * p for n, p in enumerate(chances))
    assert math.fsum(b.tokens * b.share for b in bins) == pytest.approx(first, rel=0.005)
    # Within a bin lengths spread; for single examples (batch 1) they spread most.
    assert math.fsum(b.tokens**2 * b.share for b in bins) == pytest.approx(
        second, rel=0.01 if batch >= 8 else 0.05
    )


def test_truncation_piles_up_at_max_length():
    bins = padded_bins(TASKS["rte"], "bert", 128, 100)
    assert bins[-1].tokens == 100
    assert bins[-1].share > 0.999


@pytest.mark.parametrize(("batch", "max_length"), [(0, 128), (16, 0)])
def test_sizes_below_one_are_refused(batch, max_length):
    with pytest.raises(InputError, match="at least 1"):
        padded_bins(TASKS["rte"], "bert", batch, max_length)
