"""The hub of datasets and tokenizers: is it there, and what does it hold. Without a network the answer is quick."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from asyncpp.errors import ConfigError, require

ANSWER_WITHIN_S = 3.0


def require_hub(key: str, value: str, otherwise: str) -> None:
    """ConfigError at once if the hub does not answer, instead of after the client's many retries.

    otherwise: what a user can do without it.
    """
    require(not constants.HF_HUB_OFFLINE, key, value, f"the hub is switched off by HF_HUB_OFFLINE; {otherwise}")
    require(_answers(), key, value, f"the hub cannot be reached; {otherwise}")


def dataset_revision(repository: str, revision: str) -> str:
    """The commit that ``revision`` of a dataset repository names now."""
    with _errors_for("data.repository", repository, revision):
        return str(HfApi().dataset_info(repository, revision=revision).sha)


def tokenizer_file(repository: str) -> Path:
    """A local copy of the tokenizer.json of a model repository; one fetched before needs no network."""
    try:
        return Path(hf_hub_download(repository, "tokenizer.json", local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    otherwise = "set data.tokenizer.kind=file data.tokenizer.name=<tokenizer.json>, or data.tokenizer.kind=trained"
    require_hub("data.tokenizer.name", repository, otherwise)
    with _errors_for("data.tokenizer.name", repository, "main"):
        return Path(hf_hub_download(repository, "tokenizer.json"))


@contextmanager
def _errors_for(key: str, repository: str, revision: str) -> Iterator[None]:
    try:
        yield
    except RepositoryNotFoundError:
        raise ConfigError(key, repository, "no such repository on the hub, or no right to read it") from None
    except RevisionNotFoundError:
        raise ConfigError("data.revision", revision, f"no such revision of {repository}") from None
    except LocalEntryNotFoundError:
        raise ConfigError(key, repository, "the hub stopped answering; run it again") from None
    except EntryNotFoundError:
        raise ConfigError(key, repository, "the repository has no tokenizer.json") from None
    except HfHubHTTPError as error:
        raise ConfigError(key, repository, f"the hub refused ({str(error).splitlines()[0]})") from None


def _answers() -> bool:
    """Whether the hub sends any reply. A thread, because looking up a name has no time limit of its own."""
    replied = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S).close()
        except urllib.error.HTTPError:
            pass  # a reply all the same
        except OSError:
            return
        replied.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_WITHIN_S)
    return replied.is_set()
