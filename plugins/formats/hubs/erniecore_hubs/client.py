"""The client of the Hugging Face hub, ``huggingface_hub``, with errors that say what to do. Imported when a name is fetched.

Its own settings apply: ``HF_ENDPOINT`` (another host with the same interface), ``HF_TOKEN``, ``HF_HUB_OFFLINE``, proxies. The
token goes to no host that a name brings along.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from erniecore_catalog import install_command

from erniecore.api import CheckpointError, EnvironmentFault, UsageError
from erniecore_hubs.names import HubName
from erniecore_hubs.parts import PartFile, check_content, fetch_parts
from erniecore_hubs.places import endpoint, own_endpoint

#: what the hub has as ETag of files that are kept by their content
_SHA256 = re.compile(r"[0-9a-f]{64}")


@contextmanager
def _unreported(constants: Any) -> Iterator[None]:
    """Within, the library says nothing of what else runs here, for which it would ask the public hub for a list, whatever host
    was named. A user who sets its variable decides; for others in this process it stays as it was."""
    before = constants.HF_HUB_DISABLE_TELEMETRY
    constants.HF_HUB_DISABLE_TELEMETRY = before or "HF_HUB_DISABLE_TELEMETRY" not in os.environ
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = before


class Client:
    """One repository of the hub.

    Args:
        name: of the repository. model: not a data set.
    """

    def __init__(self, name: HubName, model: bool) -> None:
        try:
            import huggingface_hub
            import huggingface_hub.errors
            from huggingface_hub.utils.tqdm import disable_progress_bars
        except ImportError as error:
            fix = install_command("huggingface_hub", of="erniecore-hubs")
            raise EnvironmentFault("names on hubs need huggingface_hub", where=str(name), next=fix) from error
        if not sys.stderr.isatty():
            disable_progress_bars()
        self._hub: Any = huggingface_hub
        self._endpoint = endpoint(name)
        # None: the user's own; False: none, for a host that settings name
        self._token = None if self._endpoint == own_endpoint("hf") else False
        self._api: Any = huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token)
        self._name, self._type = name, "model" if model else "dataset"

    def commit(self) -> str:
        """Of the revision, or the newest one."""
        with self._errors():
            info = self._api.repo_info(self._name.id, revision=self._name.revision or None, repo_type=self._type)
            found = str(info.sha)
            if not self._name.at(found).pinned:
                raise ValueError(f"a commit is not {found[:60]!r}")
            return found

    def sizes(self) -> dict[str, int]:
        """Files of the repository at the commit, with their bytes."""
        with self._errors():
            info = self._api.repo_info(
                self._name.id, revision=self._name.revision, repo_type=self._type, files_metadata=True
            )
            return {str(file.rfilename): int(file.size or 0) for file in info.siblings or ()}

    def fetch(self, files: Iterable[str], directory: Path) -> None:
        """Files into a directory. A file that is not whole is `.parts/FILE`, from whose end the next attempt goes on, also one of
        another process. Raises ``CheckpointError`` for content that is not what the hub announced."""
        with self._errors():
            fetch_parts(files, directory, self._fetch)

    def _fetch(self, file: str, part: Path) -> None:
        from huggingface_hub.file_download import http_get

        repository = {"repo_type": self._type, "revision": self._name.revision, "endpoint": self._endpoint}
        url = self._hub.hf_hub_url(self._name.id, file, **repository)
        found = self._hub.get_hf_file_metadata(url, endpoint=self._endpoint, token=self._token)
        headers = self._hub.utils.build_hf_headers(token=self._token)
        if urlsplit(found.location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the token is for the hub, not for where its files lie
        here = part.stat().st_size if part.is_file() else 0
        if found.size is None or here != found.size:
            with PartFile(part, found.size) as stream:
                http_get(found.location, stream, resume_size=here, headers=headers, expected_size=found.size)
        if _SHA256.fullmatch(found.etag or ""):
            check_content(part, found.etag, f"{self._name}/{file} at {self._endpoint}")

    def upload(self, directory: Path, private: bool) -> str:
        """The commit of all files of a directory; the repository is made where there is none."""
        with self._errors():
            self._api.create_repo(self._name.id, repo_type=self._type, private=private, exist_ok=True)
            done = self._api.upload_folder(
                repo_id=self._name.id,
                folder_path=directory,
                repo_type=self._type,
                revision=self._name.revision or None,
                commit_message="Exported by erniecore",
            )
            return str(done.oid)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the client as ours."""
        errors, where = self._hub.errors, f"{self._name} at {self._endpoint}"
        try:
            with _unreported(self._hub.constants):
                yield
        except (errors.GatedRepoError, errors.LocalTokenNotFoundError) as error:
            raise self._refused(where) from error
        except errors.RevisionNotFoundError as error:
            revision = self._name.revision or "the newest"
            raise UsageError("the repository has no such revision", where=where, found=revision) from error
        except errors.RepositoryNotFoundError as error:
            if error.response.status_code in (401, 403) and not self._hub.get_token():
                raise self._refused(where) from error
            fix = "check the name; of a private repository set HF_TOKEN, or use `hf auth login`"
            raise UsageError(f"there is no such {self._type}", where=where, fix=fix) from error
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise self._refused(where) from error
            raise self._unreachable(where, f"HTTP {status}") from error
        except errors.OfflineModeIsEnabled as error:
            fix = "unset HF_HUB_OFFLINE, or copy the directory here and name it"
            raise EnvironmentFault("HF_HUB_OFFLINE forbids to fetch it", where=where, fix=fix) from error
        except (self._network(), ConnectionError, TimeoutError) as error:
            raise self._unreachable(where, " ".join(str(error).split())[:200]) from error
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
        ) as error:  # the client relies on the form of answers
            raise self._unreachable(
                where, f"its answer cannot be read: {' '.join(str(error).split())[:200]}"
            ) from error
        except RuntimeError as error:  # an upload that failed, whatever the reason
            raise self._unreachable(where, f"{error} {error.__cause__ or ''}".strip()[:300]) from error
        except OSError as error:
            text = " ".join(str(error).split())[:200]
            if error.errno is None:  # the client says so when a file is not the one that was announced
                raise self._unreachable(where, text) from error
            raise CheckpointError("it cannot be kept", where=where, found=text, code="ERN-K003") from error

    def _network(self) -> Any:
        """What the library under the client raises when it is cut off: httpx, or its successor."""
        from importlib import import_module
        from importlib.util import find_spec

        return import_module("httpx2" if find_spec("httpx2") else "httpx").HTTPError

    def _refused(self, where: str) -> UsageError:
        fix = "set HF_TOKEN to a token that may read it (for --push: write it), or use `hf auth login`"
        return UsageError("the hub wants a token for this repository", where=where, fix=fix)

    def _unreachable(self, where: str, found: str) -> EnvironmentFault:
        fix = "repeat the command: what is here is kept; HF_ENDPOINT, or NAME?endpoint=https://host, is another host"
        if "xet" in found:  # hubs with the same interface may have no Xet storage, through which the library uploads
            fix = f"where the hub has no Xet storage, set HF_HUB_DISABLE_XET=1; else {fix}"
        return EnvironmentFault("the hub cannot be reached", where=where, found=found, fix=fix)
