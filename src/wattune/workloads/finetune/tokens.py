"""Examples as token ids: tokenised once, padded batch by batch, in an order that follows from the seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from wattune.core.errors import InputError
from wattune.workloads.finetune.sources import Examples

_CHUNK = 2000
IGNORED = -100
"""Label of tokens that no loss is taken from (torch's cross-entropy)."""


@dataclass
class TokenTable:
    """All examples of a split, one after the other in flat arrays.

    Attributes:
        ids: token ids.
        starts: where each example begins in `ids`, with the end of the last one.
        types: token types, where the model has them.
        labels: classes or values; None for text.
        answers: for text, how many tokens of each example are a prompt that is not learnt from; None for all 0.
        pad_id: what fills a batch up.
        pad_left: on which side.
    """

    ids: Any
    starts: Any
    types: Any | None
    labels: Any | None
    answers: Any | None
    pad_id: int
    pad_left: bool

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Any:
        """Tokens of each example."""
        return self.starts[1:] - self.starts[:-1]

    def batch(self, which: Sequence[int]) -> dict[str, Any]:
        """Examples as tensors, padded to the longest of them."""
        import numpy as np
        import torch

        lengths = self.lengths[list(which)]
        longest, rows = int(lengths.max()), len(which)
        ids = np.full((rows, longest), self.pad_id, dtype=np.int64)
        mask = np.zeros((rows, longest), dtype=np.int64)
        types = None if self.types is None else np.zeros((rows, longest), dtype=np.int64)
        targets = np.full((rows, longest), IGNORED, dtype=np.int64) if self.labels is None else None
        for row, (example, length) in enumerate(zip(which, lengths, strict=True)):
            begin = self.starts[example]
            at = slice(longest - length, longest) if self.pad_left else slice(0, length)
            ids[row, at] = self.ids[begin : begin + length]
            mask[row, at] = 1
            if types is not None and self.types is not None:
                types[row, at] = self.types[begin : begin + length]
            if targets is not None:
                skip = 0 if self.answers is None else int(self.answers[example])
                targets[row, at.start + skip : at.stop] = self.ids[begin + skip : begin + length]
        made = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        if types is not None:
            made["token_type_ids"] = torch.from_numpy(types)
        labels = targets if self.labels is None else self.labels[list(which)]
        made["labels"] = torch.from_numpy(labels)
        return made


def specials_of(tokenizer: Any, pairs: bool) -> int:
    """Tokens that a tokenizer adds to an example."""
    return int(tokenizer.num_special_tokens_to_add(pair=pairs))


def tokenise(
    examples: Examples, tokenizer: Any, *, longest: int, rows_of_vocabulary: int, causal: bool, typed: bool
) -> TokenTable:
    """Examples as token ids.

    Args:
        examples: the texts.
        tokenizer: of transformers; it has a padding token.
        longest: longer examples are cut here, tokens.
        rows_of_vocabulary: rows of the model's embedding; an id beyond has no meaning to it.
        causal: whether the next token is learnt.
        typed: whether the model takes token types.

    Raises:
        InputError: tokens that the model does not know, or nothing left to learn from.
    """
    import numpy as np

    answers: list[int] | None = None
    types: list[list[int]] | None = None
    if not causal:
        ids, types = _classified(examples, tokenizer, longest, typed)
    elif examples.second is None and examples.chats is None:
        ids = _packed(examples.first, tokenizer, longest)
    else:
        ids, answers = _answered(examples, tokenizer, longest)
    flat = np.fromiter((t for row in ids for t in row), dtype=np.int32)
    if not len(ids) or not len(flat):
        raise InputError(
            f"{examples.source} yields no tokens.",
            "Text that the tokenizer knows was expected.",
            "Check the data.",
        )
    if int(flat.max()) >= rows_of_vocabulary:
        raise InputError(
            f"The tokenizer makes token {int(flat.max())}, and the model knows {rows_of_vocabulary}.",
            "A tokenizer and a model that belong together were expected.",
            "Take both from one checkpoint.",
        )
    starts = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in ids], out=starts[1:])
    labels = None
    if not causal:
        dtype = np.float32 if examples.n_labels == 1 else np.int64
        labels = np.asarray(examples.labels, dtype=dtype)
    return TokenTable(
        ids=flat,
        starts=starts,
        types=None if types is None else np.fromiter((t for row in types for t in row), dtype=np.int8),
        labels=labels,
        answers=None if answers is None else np.asarray(answers, dtype=np.int64),
        pad_id=int(tokenizer.pad_token_id),
        pad_left=tokenizer.padding_side == "left",
    )


def _classified(
    examples: Examples, tokenizer: Any, longest: int, typed: bool
) -> tuple[list[list[int]], list[list[int]] | None]:
    ids: list[list[int]] = []
    types: list[list[int]] | None = [] if typed else None
    for begin in range(0, len(examples.first), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        second = None if examples.second is None else examples.second[part]
        made = tokenizer(
            examples.first[part], second, truncation=True, max_length=longest, return_attention_mask=False,
            **({"return_token_type_ids": True} if typed else {}),
        )  # fmt: skip
        ids += made["input_ids"]
        if types is not None:
            types += made["token_type_ids"]
    empty = next((i for i, row in enumerate(ids) if not row), None)
    if empty is not None:
        raise InputError(
            f"The tokenizer makes no token of example {empty + 1} of {examples.source}.",
            "Text that it knows was expected.",
            "Take that row out.",
        )
    return ids, types


def _packed(texts: list[str], tokenizer: Any, longest: int) -> list[list[int]]:
    """All texts in a row, an end token after each, cut into pieces of equal length; what is left over makes a shorter piece."""
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    stream: list[int] = []
    for begin in range(0, len(texts), _CHUNK):
        made = tokenizer(texts[begin : begin + _CHUNK], add_special_tokens=False, return_attention_mask=False)
        for row in made["input_ids"]:
            stream += row
            stream += end
    pieces = [stream[i : i + longest] for i in range(0, len(stream), longest)]
    if len(pieces) > 1 and len(pieces[-1]) < 2:  # one token predicts nothing
        pieces.pop()
    return [piece for piece in pieces if len(piece) > 1]


def _prompts(examples: Examples, tokenizer: Any) -> Iterator[tuple[str, str]]:
    """Prompt and the whole of prompt and answer, as text, by the tokenizer's own template where it has one."""
    chats = examples.chats
    if chats is None and tokenizer.chat_template:
        assert examples.second is not None
        chats = [
            [{"role": "user", "content": a}, {"role": "assistant", "content": b}]
            for a, b in zip(examples.first, examples.second, strict=True)
        ]
    if chats is not None:
        if not tokenizer.chat_template:
            raise InputError(
                "The tokenizer has no template for conversations.",
                "Columns `prompt` and `completion`, or an instruction-tuned model, were expected.",
                "Name the columns with text_columns (`--text-columns prompt,completion`).",
            )
        for chat in chats:
            prompt = tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
            whole = tokenizer.apply_chat_template(chat, tokenize=False)
            yield (prompt, whole) if whole.startswith(prompt) else ("", whole)
        return
    end = tokenizer.eos_token or ""
    assert examples.second is not None
    for prompt, answer in zip(examples.first, examples.second, strict=True):
        yield prompt + "\n", prompt + "\n" + answer + end


def _answered(examples: Examples, tokenizer: Any, longest: int) -> tuple[list[list[int]], list[int]]:
    ids: list[list[int]] = []
    answers: list[int] = []
    cut = 0
    for prompt, whole in _prompts(examples, tokenizer):
        asked = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        row = asked + tokenizer(whole[len(prompt) :], add_special_tokens=False)["input_ids"]
        row = row[:longest]
        if len(asked) >= len(row) or len(row) < 2:  # nothing of the answer is left
            cut += 1
            continue
        ids.append(row)
        answers.append(len(asked))
    if not ids:
        raise InputError(
            f"All {cut} prompts of {examples.source} are longer than {longest} tokens.",
            "Room for an answer was expected.",
            "Raise max_length.",
        )
    return ids, answers


class StepOrder:
    """A batch sampler: each pass over it is one epoch, shuffled by seed and number of the epoch.

    The examples of one step are those of `batch_size x accumulation` at first; when the batch is halved because memory was short, the
    same examples make the same steps in smaller pieces.

    Args:
        examples: how many there are.
        per_step: examples per optimizer step.
        pieces: forward passes they are split into.
        seed: of the order.
    """

    def __init__(self, examples: int, per_step: int, pieces: int, seed: int) -> None:
        self.examples, self.per_step, self.pieces, self.seed = examples, per_step, pieces, seed
        self.epoch = 0

    def steps(self, epoch: int) -> list[list[int]]:
        """The examples of each step of an epoch."""
        import numpy as np

        order = np.random.default_rng((self.seed, epoch)).permutation(self.examples).tolist()
        return [order[i : i + self.per_step] for i in range(0, self.examples, self.per_step)]

    def split(self, step: list[int]) -> list[list[int]]:
        """The examples of a step, in as many pieces as it has forward passes (fewer where it has fewer examples)."""
        pieces = min(self.pieces, len(step))
        size, more = divmod(len(step), pieces)
        cuts = [i * size + min(i, more) for i in range(pieces + 1)]
        return [step[a:b] for a, b in pairwise(cuts)]

    def __len__(self) -> int:
        whole, rest = divmod(self.examples, self.per_step)
        return whole * min(self.pieces, self.per_step) + min(self.pieces, rest)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        for step in self.steps(epoch):
            yield from self.split(step)


def epoch_tokens(table: TokenTable, order: StepOrder, epoch: int = 0) -> list[int]:
    """Padded tokens of each step of an epoch, in order."""
    lengths = table.lengths
    return [
        sum(len(piece) * int(lengths[piece].max()) for piece in order.split(step))
        for step in order.steps(epoch)
    ]
