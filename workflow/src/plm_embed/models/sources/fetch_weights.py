"""Downloads of published weights: one file, or the files of a folder."""

import re
import shlex
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from plm_embed.errors import PlmEmbedError, WeightsError
from plm_embed.io.files import sha256_file
from plm_embed.models import published
from plm_embed.models.model import Model
from plm_embed.models.sources.source_files import INDEX, TENSORS, holds_tensors, shard_names

Naming = Callable[[Model, str], str]
"""What to do so that a model's weights are read from a path, which is quoted for a shell."""


def in_config(model: Model, path: str) -> str:
    """For a campaign, of however many models."""
    return f"set in the config: `weights: {{{model.name}: {path}}}`"


IN_CONFIG = re.compile(r"set in the config: `weights: {(\S+): (.+)}`")
"""`in_config`, to put other words in its place."""


def in_python(_: Model, path: str) -> str:
    """For `plm_embed.embed`, and the commands that compute as it does."""
    text = path if path.startswith("'") else repr(path)
    return f"pass weights={text} (in a shell: --weights {path})"


def fetch(model: Model, output: Path, naming: Naming = in_config) -> tuple[Path, str]:
    """Download the model's file or folder into `output`, unless a whole download is already there.

    Returns where it lies and the URL used. Raises WeightsError with what to copy where, and how to
    name it then.
    """
    if model.hub:
        return _folder(model, output / "download", naming), model.hub
    path = output / f"{model.name}.pt"
    return path, _file(model, path, naming)


def discard(path: Path) -> None:
    """Delete a download."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _refusal(  # noqa: PLR0917
    model: Model, wrong: str, command: str, files: str, staged: Path, naming: Naming
) -> WeightsError:
    """In two lines, for a log that is cut after them."""
    to = shlex.quote(str(staged.absolute()))
    return WeightsError(
        f"weights: {wrong}\nRun again; or fetch it where there is a network: `{command}`, "
        f"copy {files} to {to}, and {naming(model, to)}"
    )


def _folder(model: Model, folder: Path, naming: Naming) -> Path:
    """Download the files of a folder, of which those that hold tensors are compared with what is
    known of them.
    """
    known = published.known_files(model.name)
    names = [*model.files]
    try:
        for name in names:
            _one(model, folder, name, known)
        if model.sharded:
            names.append(_index(model, folder))
            names.extend(shard_names(folder / names[-1]))
            for name in names[len(model.files) + 1 :]:
                _one(model, folder, name, known)
    except PlmEmbedError as error:
        more = (
            ", and in the same way its index of tensors and the files that it names,"
            if model.sharded and len(names) == len(model.files)
            else ""
        )
        raise _refusal(
            model,
            str(error),
            f"curl -L --remote-name-all {' '.join(f'{model.hub}/{name}' for name in names)}",
            f"{' and '.join(names)}{more}",
            folder.parent.parent / f"{model.name}-published",
            naming,
        ) from None
    return folder


def _one(model: Model, folder: Path, name: str, known: Collection[str]) -> None:
    """Download a file, unless it is whole already. Raises PlmEmbedError for another one than the
    published.
    """
    path, url = folder / name, f"{model.hub}/{name}"
    if not path.exists():
        _download(url, path)
    if known and holds_tensors(path) and (found := sha256_file(path)) not in known:
        path.unlink()
        raise WeightsError(
            f"{url} has SHA-256 {found}, not that of the published file: it was not used."
        )


def _index(model: Model, folder: Path) -> str:
    """Download the index of a model's tensors, of either kind; returns its name."""
    first, second = (f"{name}{INDEX}" for name in TENSORS)
    if not (folder / second).exists():
        try:
            _one(model, folder, first, ())
            return first
        except PlmEmbedError:
            pass  # the other kind is older, and there more often
    _one(model, folder, second, ())
    return second


def _file(model: Model, path: Path, naming: Naming) -> str:
    """Download the model's .pt to `path`, unless a whole download is already there; return the URL
    used.
    """
    if not model.urls:
        raise WeightsError(
            f"weights: {model.name} cannot be downloaded: {naming(model, 'FILE_OR_FOLDER')}"
        )
    known = published.pt_file(model.name).get("sha256")
    failures = []
    for url in model.urls:
        try:
            if not path.exists():
                _download(url, path)
        except PlmEmbedError as error:
            failures.append(str(error))
            continue
        if known and (found := sha256_file(path)) != known:
            path.unlink()
            failures.append(
                f"{url} has SHA-256 {found}; the published file has {known}: it was not used."
            )
            continue
        return url
    staged = path.parent.parent / path.name
    wrong, command = " ".join(failures), f"curl -LO {model.urls[0]}"
    raise _refusal(model, wrong, command, "it", staged, naming)


def _download(url: str, path: Path) -> None:
    # loads for a tenth of a second, which most calls here do without
    from plm_embed.io.download import download

    download(url, path)
