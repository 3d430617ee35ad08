import subprocess
import sys
from pathlib import Path

import pytest
from data_cases import END

from asyncpp.data.config import MixtureConfig, TokenizerConfig
from asyncpp.errors import ConfigError
from asyncpp.hydra_command import compose_overrides, typed

OPTIONS = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "data").glob("*.yaml"))


NEEDED = {"mixture": ["data.weights={sotu: 1}"]}  # what has no default


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_complete_and_sound(option):
    config = typed(compose_overrides([f"data={option}", *NEEDED.get(option, [])], "prepare"), "data")
    config.check("data")
    assert config.name == option


def test_a_sample_is_chosen_by_its_name():
    config = typed(compose_overrides(["data=fineweb_edu", "data.sample=100BT"], "prepare"), "data")
    assert config.files == "sample/100BT/*.parquet"
    assert config.expected_tokens() == 100e9


WRONG = {
    "data.root=x": ("root", "", "expected a folder"),
    "data.name": ("name", "a/b", "expected a folder's name"),
    "data.sequence_length": ("sequence_length", 0, "expected a positive whole number"),
    "data.num_validation_sequences": ("num_validation_sequences", 0, "expected a positive whole number"),
    "data.vocab_size": ("vocab_size", 1, "expected 2 or more"),
    "data.validation_fraction": ("validation_fraction", 1.0, "expected a number between 0 and 1"),
    "data.shard_tokens": ("shard_tokens", 0, "expected a positive whole number"),
    "data.budget_tokens": ("budget_tokens", 0.5, "expected a positive whole number, or null"),
    "data.budget_tokens of nothing": ("budget_tokens", 0.0, "expected a positive whole number, or null"),
    "data.budget_tokens without end": ("budget_tokens", float("inf"), "expected a positive whole number, or null"),
    "data.text_column": ("text_column", "", "expected the name of a column"),
    "data.tokenizer.kind": ("tokenizer", TokenizerConfig("other", None, END), "expected one of trained, file, hub"),
    "data.tokenizer.name": ("tokenizer", TokenizerConfig("file", None, END), "expected the path of a tokenizer.json"),
    "data.tokenizer.name of the hub": ("tokenizer", TokenizerConfig("hub", "", END), "expected a repository"),
    "data.tokenizer.end_of_document": ("tokenizer", TokenizerConfig("trained", None, ""), "expected a token"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named_with_what_is_accepted(workshop, case):
    setting, value, accepted = WRONG[case]
    workshop.config().check("data")
    with pytest.raises(ConfigError) as refusal:
        workshop.config(**{setting: value}).check("data")
    assert refusal.value.key == case.split(" ")[0].split("=")[0]
    assert refusal.value.accepted.startswith(accepted)


def test_a_trained_vocabulary_keeps_every_byte(workshop):
    trained = TokenizerConfig("trained", None, END)
    with pytest.raises(ConfigError, match=r"data\.vocab_size=256: expected 257 or more"):
        workshop.config(tokenizer=trained, vocab_size=256).check("data")
    workshop.config(tokenizer=trained, vocab_size=257).check("data")


def test_the_embedded_corpus_takes_no_path():
    config = typed(compose_overrides(["data.path=raw"], "prepare"), "data")
    with pytest.raises(ConfigError, match=r"data\.path=raw: expected null"):
        config.check("data")


@pytest.mark.parametrize(("weights", "key"), [({}, "data.weights"), ({"a": 1.0, "b": 0.0}, "data.weights.b")])
def test_a_mixture_needs_positive_weights(weights, key):
    config = MixtureConfig("mixture", "data", None, 16, 300, 4, False, weights)
    with pytest.raises(ConfigError) as refusal:
        config.check("data")
    assert refusal.value.key == key


def test_a_mixture_is_of_what_is_named_and_nothing_else():
    config = typed(compose_overrides(["data=mixture", "data.weights={mine: 3, sotu: 1}"], "prepare"), "data")
    assert config.weights == {"mine": 3.0, "sotu": 1.0}
    with pytest.raises(ConfigError, match=r"data\.weights=\?\?\?: expected a value"):
        typed(compose_overrides(["data=mixture"], "prepare"), "data")


def test_budgets_of_the_same_size_are_the_same_recipe(workshop):
    assert workshop.config().recipe() == workshop.config(budget_tokens=7.2e9, sequence_length=8, root="x").recipe()


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("asyncpp.data.config", {"torch", "tokenizers", "datasets", "pandas", "pyarrow", "huggingface_hub"}),
        ("asyncpp.data.prepare", {"torch", "tokenizers", "datasets", "pandas", "pyarrow", "huggingface_hub"}),
        ("asyncpp.data.tokenize", {"torch", "datasets", "pandas", "pyarrow"}),
        ("asyncpp.data.batches", {"torch", "tokenizers", "datasets", "pandas", "pyarrow"}),
    ],
)
def test_imports_are_light(module, heavy):
    program = f"import sys, {module}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not heavy & set(output.split())
