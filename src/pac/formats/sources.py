"""Sources by name: a path, a Minari id or a Hugging Face id. Also the place of imported copies.

A Minari id such as "mujoco/pendulum/expert-v0" is a folder under $MINARI_DATASETS_PATH, by default
~/.minari/datasets. A Hugging Face id such as "lerobot/aloha_sim" or "hf://lerobot/aloha_sim@main" is taken from
the cache of `huggingface_hub`, and downloaded if it is not there.
"""

import dataclasses
import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pac.files import problem
from pac.formats.checks import CHECK_PATH, check, need

HUB = "hf://"
MINARI_ID = re.compile(r"([\w.-]+/)*[\w.-]+-v\d+")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def locate(source: str | Path) -> Path:
    """Return the path of a source: an existing path, a Minari id or a Hugging Face dataset id.

    A path that exists always wins. "data/mine" is no id if the folder "data" exists: write "hf://data/mine".
    """
    name = str(source)
    if isinstance(source, str) and source.startswith(HUB):
        name = source.removeprefix(HUB).strip("/")
        fix = "Write for example hf://lerobot/aloha_sim."
        check(HUB_ID.fullmatch(name), source, "hf://OWNER/NAME or hf://OWNER/NAME@REVISION", repr(name), fix)
        return _from_hub(name)
    path = Path(source).expanduser()
    if path.exists() or isinstance(source, Path):
        return path
    if MINARI_ID.fullmatch(name) and (found := minari_root() / name).is_dir():
        return found
    is_path = path.is_absolute() or name.startswith(".") or Path(path.parts[0]).is_dir()
    if HUB_ID.fullmatch(name) and not is_path:
        try:
            importlib.import_module("huggingface_hub")
        except ImportError as error:
            expected = "an existing path, a Minari id or a Hugging Face id"
            fix = f"{CHECK_PATH} The package huggingface_hub looks ids up: pip install 'perceiver-actor-critic[hub]'."
            raise problem(name, expected=expected, found="no such path", fix=fix) from error
        return _from_hub(name)
    elsewhere = f" and no dataset of this id in {minari_root()}" if MINARI_ID.fullmatch(name) else ""
    ids = " A dataset on Hugging Face: hf://OWNER/NAME."
    raise problem(name, expected="a file or folder", found=f"nothing there{elsewhere}", fix=CHECK_PATH + ids)


def minari_root() -> Path:
    """Return the folder of Minari's datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").expanduser()


def cache_place(source: Path, options: object = None) -> Path:
    """Return the folder for an imported copy of a source: ~/.cache/pac/datasets/NAME-DIGITS, or under $PAC_CACHE.

    The 12 digits are a hash of the absolute path, of the options, and of path, size and time of each file. So a source
    that changes has another place.
    """
    root = Path(os.environ.get("PAC_CACHE") or "~/.cache/pac").expanduser()
    source = source.absolute()
    stated: Any = dataclasses.asdict(options) if dataclasses.is_dataclass(options) else options  # type: ignore[arg-type]
    content = [str(source), stated, sorted(_files(source))]
    digits = hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()[:12]
    name = re.sub(r"[^\w.-]", "_", source.name.removesuffix(source.suffix if source.is_file() else ""))
    return root / "datasets" / f"{name}-{digits}"


def _files(source: Path) -> Iterator[tuple[str, int, int]]:
    """Yield relative path, size and time of each file of a source. Links are followed."""
    paths = [source]
    if source.is_dir():
        paths = [Path(folder, name) for folder, _, names in os.walk(source, followlinks=True) for name in names]
    for path in paths:
        if path.exists():  # a link of a partial download may lead nowhere
            found = path.stat()
            yield str(path.relative_to(source.parent)), found.st_size, found.st_mtime_ns


def _from_hub(name: str) -> Path:
    """Return the folder of a Hugging Face dataset: from the cache, else downloaded."""
    hub = need("huggingface_hub", "hub")
    repository, _, revision = name.partition("@")
    request = {"repo_id": repository, "repo_type": "dataset", "revision": revision or None}
    try:
        try:
            return Path(hub.snapshot_download(**request, local_files_only=True))
        except need("huggingface_hub.errors", "hub").LocalEntryNotFoundError:  # not in the cache
            return Path(hub.snapshot_download(**request))
    except Exception as error:  # the hub raises many kinds: offline, no such dataset, gated
        found = f"{type(error).__name__}: {str(error).strip().splitlines()[0].rstrip('.')}"
        fix = "Check the name and the network, or give the path of a folder."
        raise problem(f"{HUB}{name}", expected="a dataset on Hugging Face", found=found, fix=fix) from error
