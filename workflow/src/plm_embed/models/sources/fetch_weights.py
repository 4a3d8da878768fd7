"""Downloads of published weights: one file, or the files of a folder."""

import shlex
import shutil
from pathlib import Path

from plm_embed.errors import PlmEmbedError, WeightsError
from plm_embed.io.download import download
from plm_embed.io.files import sha256_file
from plm_embed.models import published
from plm_embed.models.registry import Model
from plm_embed.models.sources.source_files import holds_tensors


def fetch(model: Model, output: Path) -> tuple[Path, str]:
    """Download the model's file or folder into `output`, unless a whole download is already there.

    Returns where it lies and the URL used. Raises WeightsError with what to copy where.
    """
    if model.hub:
        return _folder(model, output / "download"), model.hub
    path = output / f"{model.name}.pt"
    return path, _file(model, path)


def discard(path: Path) -> None:
    """Delete a download."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _folder(model: Model, folder: Path) -> Path:
    """Download the files of a folder, of which those that hold tensors are compared with what is
    known of them.
    """
    known = published.known_files(model.name)
    wrong = ""
    for name in model.files:
        path, url = folder / name, f"{model.hub}/{name}"
        try:
            if not path.exists():
                download(url, path)
        except PlmEmbedError as error:
            wrong = str(error)
            break
        if known and holds_tensors(path) and (found := sha256_file(path)) not in known:
            path.unlink()
            wrong = f"{url} has SHA-256 {found}, not that of the published file: it was not used."
            break
    if not wrong:
        return folder
    staged = shlex.quote(str((folder.parent.parent / f"{model.name}-published").absolute()))
    files = " ".join(f"{model.hub}/{name}" for name in model.files)
    raise WeightsError(
        f"weights: {wrong}\nRun again; or fetch it where there is a network: curl -L "
        f"--remote-name-all {files}\n"
        f"then copy {' and '.join(model.files)} into {staged} and set in the config: "
        f"`weights: {staged}`"
    )


def _file(model: Model, path: Path) -> str:
    """Download the model's .pt to `path`, unless a whole download is already there; return the URL
    used.
    """
    if not model.urls:
        raise WeightsError(
            f"weights: {model.name} cannot be downloaded. Set `weights:` to its file or folder."
        )
    known = published.pt_file(model.name).get("sha256")
    failures = []
    for url in model.urls:
        try:
            if not path.exists():
                download(url, path)
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
    staged = shlex.quote(str((path.parent.parent / path.name).absolute()))
    raise WeightsError(
        f"weights: {' '.join(failures)}\nRun again; or fetch it where there is a network: curl "
        f"-LO {model.urls[0]}\n"
        f"then copy it to {staged} and set in the config: `weights: {staged}`"
    )
