"""The retrieval task is the paper's: four pairs, letters once, digits as often as they come."""

import math
from collections import Counter
from itertools import product

import pytest
import torch

from fastweights.tasks import retrieval


def strings(count, pairs=4, seed=0):
    tokens, answers = retrieval.sample(count, pairs, generator=torch.Generator().manual_seed(seed))
    return [retrieval.decode(row) for row in tokens], answers.tolist()


def is_the_papers_task(strings, answers):
    for string, answer in zip(strings, answers, strict=True):
        assert len(string) == 11
        letters, digits, query = string[0:8:2], string[1:8:2], string[10]
        assert string[8:10] == "??"
        assert len(set(letters)) == 4
        assert digits[letters.index(query)] == str(answer)
    distinct = sum(len(set(string[1:8:2])) == 4 for string in strings) / len(strings)
    assert distinct == pytest.approx(0.9 * 0.8 * 0.7, abs=0.03)


def test_the_law_holds():
    is_the_papers_task(*strings(5000))


@pytest.mark.parametrize("pairs", [3, 5])
def test_the_law_fails_on_another_number_of_pairs(pairs):
    with pytest.raises(AssertionError):
        is_the_papers_task(*strings(100, pairs))


def test_the_law_fails_on_distinct_digits():
    some, answers = strings(5000)
    easier = [pair for pair in zip(some, answers, strict=True) if len(set(pair[0][1:8:2])) == 4]
    with pytest.raises(AssertionError):
        is_the_papers_task(*zip(*easier, strict=True))


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
def test_the_baseline_is_exact(pairs):
    right = sum(max(Counter(values).values()) for values in product(range(10), repeat=pairs))
    assert 1 - retrieval.baseline_error(pairs) == pytest.approx(right / 10**pairs / pairs)


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_the_baseline_of_the_loss_is_exact(pairs):
    losses = [
        -sum(count / pairs * math.log(count / pairs) for count in Counter(values).values())
        for values in product(range(10), repeat=pairs)
    ]
    assert retrieval.baseline_loss(pairs) == pytest.approx(sum(losses) / len(losses))


def test_the_baseline_is_what_a_model_without_retrieval_reaches():
    some, answers = strings(20_000)
    commonest = [int(Counter(string[1:8:2]).most_common(1)[0][0]) for string in some]
    error = sum(a != b for a, b in zip(commonest, answers, strict=True)) / len(answers)
    assert error == pytest.approx(float(retrieval.baseline_error(4)), abs=0.01)
    assert float(retrieval.baseline_error(4)) == 0.6165


def test_strings_and_tokens_both_ways():
    assert retrieval.decode(retrieval.encode("c9k8j3f1??c")) == "c9k8j3f1??c"
    with pytest.raises(ValueError, match="string must be of a-z, 0-9 and"):
        retrieval.encode("C9!")
    with pytest.raises(TypeError, match="string must be a str, got list"):
        retrieval.encode(["c9"])
    with pytest.raises(ValueError, match="pairs must be from 1 to 26"):
        retrieval.sample(1, 27)


def test_every_place_is_asked_for():
    some, _ = strings(4000)
    places = Counter(string[0:8:2].index(string[10]) for string in some)
    assert all(count == pytest.approx(1000, rel=0.15) for count in places.values())


def test_the_sets_are_fixed_and_differ():
    sets = {name: retrieval.split(name) for name in retrieval.SIZES}
    assert {name: len(answers) for name, (_, answers) in sets.items()} == {
        "train": 100_000,
        "validation": 10_000,
        "test": 20_000,
    }
    for name, (tokens, answers) in sets.items():
        again, same = retrieval.split(name, 50)
        assert torch.equal(again, tokens[:50])
        assert torch.equal(same, answers[:50])
    seen = {name: {tuple(row) for row in tokens.tolist()} for name, (tokens, _) in sets.items()}
    assert len(seen["test"] & seen["train"]) < 5
    assert len(seen["validation"] & seen["train"]) < 5
    with pytest.raises(ValueError, match="name must be one of 'train', 'validation', 'test'; got 'dev'"):
        retrieval.split("dev")
    with pytest.raises(ValueError, match="count must be from 1 to 10000"):
        retrieval.split("validation", 10_001)


@pytest.mark.parametrize("separators", [0, 1, 5])
def test_separators(separators):
    tokens, _ = retrieval.sample(10, 3, separators=separators, generator=torch.Generator().manual_seed(0))
    for row in tokens:
        assert retrieval.decode(row)[6:-1] == "?" * separators
    with pytest.raises(ValueError, match="separators must be at least 0"):
        retrieval.sample(1, separators=-1)


@pytest.mark.parametrize("pairs", [1, 4, 7])
def test_parsing_agrees_with_sampling(pairs):
    tokens, answers = retrieval.sample(300, pairs, generator=torch.Generator().manual_seed(1))
    places = retrieval.places(tokens, pairs)
    for row, answer, place in zip(tokens, answers, places, strict=True):
        question = retrieval.parse(retrieval.decode(row))
        assert torch.equal(question.tokens, row)
        assert (question.answer, question.place) == (answer, place)


@pytest.mark.parametrize(
    ("string", "message"),
    [
        ("", "string must be pairs"),
        ("c9k8", "string must be pairs"),
        ("c9k8??", "string must be pairs"),
        ("9ck8??k", "string must be pairs"),
        ("c9k??c", "string must be pairs"),
        ("c9k8??ck", "string must be pairs"),
        ("c9??8", "string must be pairs"),
        ("??c", "string must be pairs"),
        ("c9c8??c", "each letter once before the question, got c twice"),
        ("c9k8??j", "string must ask for one of its letters, c, k; got j"),
        ("c9 k8??c", "string must be of a-z, 0-9 and"),
    ],
)
def test_strings_that_ask_nothing(string, message):
    with pytest.raises(ValueError, match=message):
        retrieval.parse(string)


def test_error_by_place():
    tokens = torch.stack([retrieval.encode(string) for string in ("a1b2??a", "a1b2??b", "c3d4??d", "c3d4??d")])
    wrong = torch.tensor([True, False, True, True])
    assert retrieval.error_by_place(tokens, 2, wrong) == pytest.approx([1, 2 / 3])
