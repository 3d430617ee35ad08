"""Which command prepares what a run reads: it must give what the run was configured with, to the last setting."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace

import pytest
from data_cases import make_documents

from asyncpp.data.availability import PREPARE, availability, prepare_command, require_available
from asyncpp.data.config import DataConfig, MixtureConfig, SourceConfig, TokenizerConfig
from asyncpp.data.prepare import prepare
from asyncpp.errors import ConfigError
from asyncpp.hydra_command import compose_overrides, typed


def config_of(*overrides: str) -> SourceConfig:
    config = typed(compose_overrides(overrides, "prepare"), "data")
    assert isinstance(config, SourceConfig)
    return config


def read_back(command: str) -> SourceConfig:
    """The config that a shell and Hydra make of ``command``."""
    words = shlex.split(command)
    assert words[:3] == PREPARE.split()
    return config_of(*words[3:])


@pytest.mark.parametrize(
    "overrides",
    [
        ("data=fineweb_edu",),
        ("data=fineweb_edu_350bt", "data.root=/my tokens"),
        ("data=fineweb", "data.sample=100BT", "data.path=/copy", "data.name=copied"),
        ("data=local", "data.path='it\\'s, (a) $folder'", "data.vocab_size=500", "data.validation_fraction=0.2"),
        ("data=local", "data.path=raw", "data.tokenizer.kind=hub", "data.tokenizer.name=some/tokenizer"),
        ("data=local", "data.path=raw", "data.name=sotu"),
    ],
)
def test_the_command_read_back_is_the_configuration(overrides: tuple[str, ...]) -> None:
    config = config_of(*overrides)
    again = read_back(prepare_command(config, 1_000_000))
    assert again.recipe() == config.recipe() and again.folder == config.folder
    assert replace(again, budget_tokens=None) == config


@pytest.mark.parametrize(
    ("num_tokens", "budget"),
    [(20_548_326_400, 2.1e10), (20_999_999_999, 2.1e10), (21_000_000_000, 2.2e10), (99_999, 1e5)],
)
def test_the_budget_holds_what_the_run_reads_and_a_tenth_more_at_most(num_tokens: int, budget: float) -> None:
    config = config_of("data=fineweb_edu_100bt")
    assert read_back(prepare_command(config, num_tokens)).budget_tokens == budget > num_tokens
    own = replace(config, budget_tokens=3e9)
    assert read_back(prepare_command(own, num_tokens)).budget_tokens == 3e9


def refusal_of(config: DataConfig) -> str:
    with pytest.raises(ConfigError) as error:
        require_available(config, 5_000_000_000)
    assert error.value.key == "data.root"
    return error.value.accepted


def test_what_needs_a_download_is_refused_until_it_is_prepared(tmp_path) -> None:
    hub = replace(config_of("data=fineweb"), root=str(tmp_path))
    expected = f"{tmp_path}/fineweb is not prepared; run first: {PREPARE} data=fineweb data.root={tmp_path} "
    assert refusal_of(hub) == availability(hub, 5_000_000_000) == expected + "data.budget_tokens=5.1e9"
    assert list(tmp_path.iterdir()) == []
    hub.folder.mkdir()
    require_available(hub, 5_000_000_000)


def test_a_run_may_prepare_what_needs_no_download(raw) -> None:
    config = raw.config()
    require_available(config, 100)
    assert availability(config, 100).endswith("is not prepared; the run prepares it, without a download")
    tokenizer = TokenizerConfig("hub", "some/tokenizer", "<|endoftext|>")
    assert "data.tokenizer.kind=hub" in refusal_of(raw.config(tokenizer=tokenizer))


def test_prepared_tokens_are_counted_and_other_settings_refused(raw) -> None:
    config = raw.config()
    prepare(config)
    found = int(availability(config, 100).split(": ")[1].split(" training")[0].replace(",", ""))
    assert availability(config, 2 * found).endswith(f"of which the run reads {2 * found:,} (2 epochs)")
    with pytest.raises(ConfigError, match=r"data\.validation_fraction=0\.5"):
        availability(raw.config(validation_fraction=0.5), 100)


def test_every_missing_part_of_a_mixture_has_its_command(workshop) -> None:
    workshop.write(make_documents(30))
    there = workshop.config(name="there")
    prepare(there)
    weights = {"there": 1.0, "fineweb": 1.0, "mine": 2.0}
    shared = {key: asdict(there)[key] for key in ("root", "sequence_length", "vocab_size", "document_mask")}
    mixture = MixtureConfig(name="mixture", num_validation_sequences=4, weights=weights, **shared)
    fineweb, mine = availability(mixture, 4_000_000_000).split("; run first: ")[1:]
    assert f"data=fineweb data.root={there.root} data.budget_tokens=1.1e9" in fineweb
    assert mine == f"{PREPARE} data=local data.name=mine data.root={there.root} data.path=<file or folder>"
    assert "fineweb is not prepared" in refusal_of(mixture)
