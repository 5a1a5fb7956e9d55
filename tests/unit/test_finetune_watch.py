"""What a run says while it trains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.workloads.finetune.faults import RunFailedError, is_out_of_memory
from wattune.workloads.finetune.watch import DIVERGED_STEPS, FIRST_LOSSES, LossWatch, StepWatch


def watch(said: list, block_steps: int = 3, obey=lambda: None, max_steps=None, clock=None) -> StepWatch:
    ticks = iter(range(10_000))
    return StepWatch(
        "a", block_steps, say=said.append, obey=obey, synchronize=lambda: None, keep=float, read=list, max_steps=max_steps,
        clock=clock or (lambda: float(next(ticks))),
    )  # fmt: skip


@given(steps=st.integers(0, 40), block=st.integers(1, 7), passes=st.integers(1, 4))
def test_blocks_hold_every_step_once_and_only_whole_ones_are_told(
    steps: int, block: int, passes: int
) -> None:
    said: list = []
    seen = watch(said, block)
    seen.begin()
    for step in range(steps):
        for piece in range(passes):
            seen.forward(0.5 / passes, 10 * step + piece)
        assert seen.step()
    seen.why = "asked"
    seen.end()
    blocks = said[1:-1]
    assert [b["said"] for b in blocks] == ["block"] * (steps // block)
    whole = steps - steps % block
    assert [t for b in blocks for t in b["tokens"]] == [
        sum(10 * step + piece for piece in range(passes)) for step in range(whole)
    ]
    assert [loss for b in blocks for loss in b["loss"]] == pytest.approx([0.5] * whole)
    assert [b["steps"] for b in blocks] == [block * (n + 1) for n in range(len(blocks))]
    assert said[-1]["steps"] == steps
    assert said[-1]["why"] == "asked"
    assert [a["t"] for a in said] == sorted({a["t"] for a in said})


def test_the_device_is_waited_for_before_the_time_is_taken() -> None:
    order: list[str] = []
    seen = StepWatch(
        "a", 2, say=lambda a: order.append(a["said"]), obey=lambda: None, synchronize=lambda: order.append("wait"),
        keep=float, read=lambda losses: order.append("read") or list(losses), clock=lambda: order.append("clock") or 0.0,
    )  # fmt: skip
    seen.begin()
    for _ in range(2):
        seen.forward(1.0, 1)
        seen.step()
    assert order == ["wait", "clock", "started", "wait", "clock", "read", "block"]


def test_a_run_ends_when_asked_or_at_its_last_step() -> None:
    answers = iter([None, "asked"])
    seen = watch([], obey=lambda: next(answers))
    seen.forward(1.0, 1)
    assert seen.step()
    seen.forward(1.0, 1)
    assert not seen.step()
    assert seen.why == "asked"
    limited = watch([], max_steps=1)
    limited.forward(1.0, 1)
    assert not limited.step()
    assert limited.why == "end"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_fails_the_run_even_in_an_unfinished_block(value: float) -> None:
    seen = watch([], block_steps=100)
    seen.forward(value, 1)
    seen.step()
    with pytest.raises(RunFailedError) as caught:
        seen.end()
    assert caught.value.kind == "nan"
    assert "step 1" in caught.value.what


def test_losses_far_above_the_first_for_long_are_a_divergence_and_a_spike_is_none() -> None:
    calm = LossWatch()
    assert calm.see([0.7] * 500 + [60.0] * 5 + [0.7] * 500) is None
    bad = LossWatch()
    assert bad.see([0.7] * FIRST_LOSSES + [50.0] * (DIVERGED_STEPS - 1)) is None
    kind, what = bad.see([50.0]) or ("", "")
    assert kind == "diverged"
    assert "0.7" in what


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:838"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
)
def test_short_memory_is_known_by_what_allocators_say(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory of the past"))
