"""Weights adopted or downloaded once: checked, converted, compared with the published SHA-256.

Campaigns share a weights folder. What is right in it is never written again, and it never becomes
other weights. To see that it is right takes no torch, which loads for a second: what needs torch is
imported where weights are made.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from plm_embed.errors import PlmEmbedError, WeightsError
from plm_embed.io.files import (
    atomic_path,
    exclusive,
    remove_abandoned,
    sha256_file,
    temporary_prefix,
)
from plm_embed.models import published
from plm_embed.models.family import Layout
from plm_embed.models.manifest import (
    MANIFEST,
    SELF_TEST,
    TENSORS,
    Manifest,
    Source,
    read_manifest,
    write_manifest,
)
from plm_embed.models.model import Model
from plm_embed.models.sources import source_files
from plm_embed.models.sources.fetch_weights import Naming, discard, fetch, in_config

log = logging.getLogger(__name__)


def prepare(
    model: Model,
    source: Path | str | None,
    output: Path,
    *,
    naming: Naming = in_config,
) -> Manifest:
    """Make `output` a weights folder of `model` from `source`; without one, from the file that is
    shipped, or from a download.

    `source` is the authors' file or a Hugging Face folder (config.json, files of tensors). Does
    nothing when `output` is intact and made from the same source. Returns its manifest, with the
    source that was named here, for equal tensors may have come from others. Raises WeightsError
    when the source cannot be read, is not `model`, or is not what `output` holds. Of several
    processes with one `output`, one works and the others wait for it. `naming`: what to do with
    weights that could not be downloaded.
    """
    source = source or model.shipped
    with exclusive(output):
        remove_abandoned(output)
        made = _made(output)
        if source is not None:
            return _adopt(model, Path(source).absolute(), output, made)
        if (
            made
            and made.model == model.name
            and (made.source.url in (*model.urls, model.hub) or made.published == "sha256")
        ):
            if not (wrong := _damage(output, made)):
                log.info("%s: %s is already there and intact", output, model.name)
                return made
            log.info("%s", wrong)
        path, url = fetch(model, output, naming)
        try:
            made = _adopt(model, path, output, made, url)
        except PlmEmbedError:
            discard(path)  # or every later call would stumble over it again
            raise
        discard(path)  # all of it that is used is in model.safetensors now
        return made


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Complete a weights folder, which has its tensors: measure what rounding does to them, write
    the self-test's golden vectors, and last the manifest.
    """
    manifest = _measured(folder, manifest)
    write_manifest(folder / MANIFEST, manifest)
    return manifest


def _measured(folder: Path, manifest: Manifest) -> Manifest:
    from plm_embed.inference import self_test
    from plm_embed.models.weights import Tensors

    tensors = Tensors(folder / TENSORS)
    return replace(
        manifest,
        self_test_sha256=self_test.write_golden(folder, manifest, tensors),
        roundings=self_test.measure_roundings(manifest, tensors),
    )


def _made(output: Path) -> Manifest | None:
    try:
        return read_manifest(output)
    except PlmEmbedError:
        return None


def _damage(output: Path, made: Manifest) -> str:
    """What of a weights folder differs from its manifest, in words; empty when nothing does."""
    files = {TENSORS: made.weights_sha256, SELF_TEST: made.self_test_sha256}
    wrong = [name for name, digest in files.items() if _sha256(output / name) != digest]
    if wrong:
        return f"{output}: {' and '.join(wrong)} missing or damaged: made again"
    return "" if made.roundings else f"{output}: prepared by an earlier version: completed"


def _sha256(path: Path) -> str:
    return sha256_file(path) if path.is_file() else ""


def _adopt(
    model: Model, path: Path, output: Path, made: Manifest | None, url: str | None = None
) -> Manifest:
    layout, digests = _digests(path, model)
    source = Source(layout, _combined(digests), path=None if url else str(path), url=url)
    if (
        made
        and made.model == model.name
        and (made.source.layout, made.source.sha256) == (layout, source.sha256)
    ):
        if not (wrong := _damage(output, made)):
            log.info("%s: already made from %s and intact", output, path)
            return replace(made, source=source)
        log.info("%s", wrong)
    from plm_embed.models import weights
    from plm_embed.models.sources import checkpoints

    checkpoint = checkpoints.read(path, layout, model)
    tensors = output / TENSORS
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output, prefix=temporary_prefix()) as folder:
        converted = Path(folder) / tensors.name
        weights.write(converted, checkpoint.tensors)
        sha256 = sha256_file(converted)
        asked = (model.name, sha256, checkpoint.said.token_dropout)
        if made and (made.model, made.weights_sha256, made.token_dropout) != asked:
            raise WeightsError(
                f"{output} holds other weights ({made.model}, SHA-256 "
                f"{made.weights_sha256[:12]}) than "
                f"{url or path} ({model.name}, {sha256[:12]}). "
                "Campaigns may share them, so they are not replaced.\n"
                f"Choose another folder, or delete {output} if nothing needs it.",
                path=output,
            )
        if _sha256(tensors) != sha256:
            with atomic_path(tensors) as temporary:
                converted.rename(temporary)
    holding = [digest for file, digest in digests.items() if source_files.holds_tensors(file)]
    manifest = Manifest(
        model=model.name,
        architecture=model.architecture,
        layers=model.layers,
        dim=model.dim,
        heads=model.heads,
        max_residues=model.max_residues,
        token_dropout=checkpoint.said.token_dropout,
        license=model.license,
        weights_sha256=sha256,
        bytes=tensors.stat().st_size,
        source=source,
        attention_dim=model.attention_dim or None,
        tokenizer_sha256=next(
            (digests[file] for file in digests if file.name == model.tokenizer_file), None
        ),
        tokens_sha256=model.family.tokens_of(checkpoint.tensors).sha256 or None,
        published="sha256" if published.is_published(model.name, holding) else "no",
    )
    manifest = _measured(output, manifest)
    if made and (made.published == "sha256" or manifest.published == "no"):
        # the tensors are the same: what is known of them stays known
        manifest = replace(
            made, self_test_sha256=manifest.self_test_sha256, roundings=manifest.roundings
        )
    write_manifest(output / MANIFEST, manifest)
    size = manifest.bytes / 1e9
    origin = url or path
    log.info("%s: %s from %s, %.3f GB, SHA-256 %s", output, model.name, origin, size, sha256)
    if caveat := published.caveat(model.name, manifest):
        log.warning("weights of %s: %s", model.name, caveat)
    return replace(manifest, source=source)  # as it was named here


def _digests(path: Path, model: Model) -> tuple[Layout, dict[Path, str]]:
    """The layout of a source, and the SHA-256 of every file that decides what it holds."""
    layout = source_files.layout_of(path, model)
    return layout, {file: _sha256_once(file) for file in source_files.files_of(path, layout, model)}


def _sha256_once(path: Path) -> str:
    """Hash a file once, though it is asked for its name in the cache and for what it holds."""
    found = path.stat()
    return _sha256_since(path, found.st_size, found.st_mtime_ns)


@lru_cache(64)
def _sha256_since(path: Path, *_: int) -> str:
    return sha256_file(path)


def _combined(digests: Mapping[Path, str]) -> str:
    if len(digests) == 1:
        return next(iter(digests.values()))
    return hashlib.sha256(
        "".join(f"{digest}  {file.name}\n" for file, digest in digests.items()).encode()
    ).hexdigest()


def content_of(model: Model, source: Path | str) -> str:
    """Return a SHA-256 of the files of a source: files that were moved are the same weights, files
    that were changed are others.
    """
    return _combined(_digests(Path(source).absolute(), model)[1])
