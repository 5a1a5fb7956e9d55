"""Token tables, the order of examples, and batches: against transformers' own collator and by invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed (make setup EXTRAS=train)")
pytest.importorskip("accelerate", reason="accelerate is not installed (make setup EXTRAS=train)")

from tiny import BERT, LLAMA, folder, rows
from wattune.core.errors import InputError
from wattune.workloads.finetune import models
from wattune.workloads.finetune.sources import Examples
from wattune.workloads.finetune.tokens import IGNORED, StepOrder, epoch_tokens, tokenise


@given(
    examples=st.integers(1, 200),
    per_step=st.integers(1, 40),
    pieces=st.integers(1, 8),
    epoch=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_an_epoch_shows_every_example_once_in_an_order_that_its_seed_and_number_fix(
    examples: int, per_step: int, pieces: int, epoch: int, seed: int
) -> None:
    pieces = min(pieces, per_step)
    order = StepOrder(examples, per_step, pieces, seed)
    steps = order.steps(epoch)
    assert sorted(i for step in steps for i in step) == list(range(examples))
    assert steps == StepOrder(examples, per_step, 1, seed).steps(epoch)
    assert all(len(step) == per_step for step in steps[:-1])
    assert all([i for piece in order.split(step) for i in piece] == step for step in steps)
    passes = list(order)
    assert len(passes) == len(order)
    assert all(passes)
    if examples > 20:
        assert order.steps(epoch) != order.steps(epoch + 1)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory):
    from transformers import AutoTokenizer

    models.import_all()
    return AutoTokenizer.from_pretrained(folder(tmp_path_factory.mktemp("m") / "bert", BERT))


def table_of(tokenizer, first, second=None, labels=None, **settings):
    made = Examples(first, second, labels if labels is not None else [0] * len(first), 2, "here")
    return tokenise(
        made,
        tokenizer,
        **({"longest": 16, "rows_of_vocabulary": 64, "causal": False, "typed": True} | settings),
    )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pairs", [False, True])
def test_batches_are_those_of_the_collator_that_people_use(bert, side: str, pairs: bool) -> None:
    from transformers import DataCollatorWithPadding

    bert.padding_side = side
    first = [row["text"] for row in rows(30)]
    second = first[::-1] if pairs else None
    labels = [n % 2 for n in range(30)]
    table = table_of(bert, first, second, labels)
    made = bert(first, second, truncation=True, max_length=16, return_token_type_ids=True)
    collate = DataCollatorWithPadding(bert)
    for which in ([0, 5, 7], [29], list(range(30))):
        theirs = collate([{key: made[key][i] for key in made} | {"label": labels[i]} for i in which])
        ours = table.batch(which)
        assert set(ours) == set(theirs)
        for name in ours:
            assert ours[name].tolist() == theirs[name].tolist(), name
    bert.padding_side = "right"


def test_the_tokens_told_ahead_are_those_of_the_batches(bert) -> None:
    table = table_of(bert, [row["text"] for row in rows(50)])
    order = StepOrder(50, 8, 2, 3)
    passes = [table.batch(which)["input_ids"].numel() for which in order]
    told = epoch_tokens(table, order)
    assert len(told) == 7
    assert sum(told) == sum(passes)
    assert told[0] == passes[0] + passes[1]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory):
    from transformers import AutoTokenizer

    models.import_all()
    return AutoTokenizer.from_pretrained(folder(tmp_path_factory.mktemp("m") / "llama", LLAMA))


CAUSAL = {"causal": True, "typed": False}


def test_text_is_packed_into_pieces_of_one_length_with_an_end_after_each(llama) -> None:
    texts = ["water bank stream", "oil gear", "the old boat runs"]
    table = tokenise(
        Examples(texts, None, None, 0, "here"), llama, longest=4, rows_of_vocabulary=64, **CAUSAL
    )
    end = llama.eos_token_id
    stream = [t for text in texts for t in [*llama(text)["input_ids"], end]]
    assert table.ids.tolist() == stream
    assert table.lengths.tolist() == [4, 4, 4]
    batch = table.batch([0, 2])
    assert batch["labels"].tolist() == batch["input_ids"].tolist()


def test_only_the_answer_is_learnt_from_instructions(llama) -> None:
    made = Examples(
        ["water bank", "the old boat runs slow today again far"], ["oil gear", "fuel"], None, 0, "here"
    )
    table = tokenise(made, llama, longest=8, rows_of_vocabulary=64, **CAUSAL)
    assert len(table) == 1  # of the second nothing of the answer is left
    batch = table.batch([0])
    labels = batch["labels"][0].tolist()
    assert labels[:2] == [IGNORED, IGNORED]
    assert labels[2:] == [*llama("oil gear")["input_ids"], llama.eos_token_id]
    with pytest.raises(InputError, match="max_length"):
        tokenise(made.take([1]), llama, longest=8, rows_of_vocabulary=64, **CAUSAL)


def test_conversations_take_the_tokenizers_template_or_say_that_it_has_none(llama) -> None:
    chat = [{"role": "user", "content": "water"}, {"role": "assistant", "content": "oil"}]
    made = Examples([], None, None, 0, "here", [chat])
    with pytest.raises(InputError, match="template"):
        tokenise(made, llama, longest=8, rows_of_vocabulary=64, **CAUSAL)
    llama.chat_template = "{% for m in messages %}the {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}the {% endif %}"
    try:
        table = tokenise(made, llama, longest=8, rows_of_vocabulary=64, **CAUSAL)
        assert llama.decode(table.ids) == "the water the oil"
        assert table.batch([0])["labels"][0].tolist()[:3] == [IGNORED] * 3
    finally:
        llama.chat_template = None


def test_a_token_that_the_model_has_no_row_for_is_refused(bert) -> None:
    with pytest.raises(InputError, match="belong together"):
        table_of(bert, ["wheel"], rows_of_vocabulary=8)
