"""How fast data comes in, each number beside a baseline measured in the same run.

    python benchmarks/data_speed.py [--quick] [--json FILE]

Needs about 2 GB in the temporary folder and 3 minutes (--quick: 400 MB and half a minute). On a machine with a GPU the
copy that is resident there is measured too.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pac.data.mixture import Mixture, parse_mixture
from pac.data.sampler import Sampler
from pac.data.store import ACTION, IMAGES, INDEX, REWARD, STATE, TERMINATED, Dataset, DatasetSpec, npy_header, seal
from pac.data.writer import DatasetWriter
from pac.formats.transfer import import_dataset
from pac.types import Batch, Episode

Result = dict[str, Any]


def seconds(function: Callable[[int], object], repeats: int) -> float:
    """Median time of one call, after two that do not count."""
    times = []
    for i in range(repeats + 2):
        start = time.perf_counter()
        function(i)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def finished(batch: Batch) -> Batch:
    torch.cuda.synchronize()
    return batch


def write_dataset(path: Path, episodes: int, length: int, cameras: tuple[str, ...] = ()) -> float:
    """A dataset of noise; returns MB/s of writing."""
    random = np.random.default_rng(0)
    pictures = {IMAGES + c: random.integers(0, 256, (length + 1, 80, 80, 3), dtype=np.uint8) for c in cameras}
    episode = Episode(
        observation={STATE: random.normal(size=(length + 1, 24)).astype(np.float32), **pictures},
        action=random.uniform(-1, 1, (length, 6)).astype(np.float32),
        reward=random.uniform(size=length).astype(np.float32),
        terminated=False,
        truncated=True,
        instruction="walker.walk",
    )
    start = time.perf_counter()
    with DatasetWriter(path, DatasetSpec.of(episode, action_low=[-1.0] * 6, action_high=[1.0] * 6)) as writer:
        for _ in range(episodes):
            writer.append(episode)
    size = sum(file.stat().st_size for file in path.iterdir())
    return size / 1e6 / (time.perf_counter() - start)


def mixture(*paths: Path) -> Mixture:
    datasets = [{"name": path.name, "path": str(path)} for path in paths]
    return parse_mixture({"groups": [{"name": "all", "weight": 1, "datasets": datasets}]})


def measure_proprioception(folder: Path, repeats: int) -> list[Result]:
    write_dataset(folder / "proprio", 500, 1000)
    sampler = Sampler(mixture(folder / "proprio"), seed=0)
    arrays = [np.asarray(sampler.sources[0].dataset.arrays[name]) for name in (STATE, ACTION, REWARD, TERMINATED)]
    random = np.random.default_rng(0)

    def plain(_: int) -> list[np.ndarray]:
        rows = random.integers(0, len(arrays[0]) - 5, 512)[:, None] + np.arange(5)
        return [array[rows] for array in arrays]

    ours, baseline = seconds(sampler.batch, repeats), seconds(plain, repeats)
    results = [
        result(
            "512 x 5 proprioceptive windows", ours * 1e3, baseline * 1e3, "ms", "numpy fancy indexing", baseline / ours
        )
    ]
    if torch.cuda.is_available():
        resident = Sampler(mixture(folder / "proprio"), seed=0, device="cuda")
        on_gpu = seconds(lambda step: finished(resident.batch(step)), repeats)
        results.append(result("the same, resident on the GPU", on_gpu * 1e3, ours * 1e3, "ms", "CPU", ours / on_gpu))
    return results


def measure_images(folder: Path, repeats: int, episodes: int) -> list[Result]:
    write_speed = write_dataset(folder / "images", episodes, 200, ("front", "wrist"))
    sampler = Sampler(mixture(folder / "images"), seed=0)
    size = 512 * 5 * 2 * 80 * 80 * 3
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    copy = size / 1e9 / seconds(lambda _: np.copyto(target, source), repeats)
    ours = size / 1e9 / seconds(sampler.batch, repeats)
    raw = write_raw(folder / "raw", source, max(1, episodes // 5))
    results = [
        result("512 x 5 windows, two 80x80 cameras", ours, copy, "GB/s", "memcpy", ours / copy),
        result("writing episodes with pictures", write_speed, raw, "MB/s", "plain write and fsync", write_speed / raw),
    ]
    if torch.cuda.is_available():
        resident = Sampler(mixture(folder / "images"), seed=0, device="cuda")
        on_gpu = size / 1e9 / seconds(lambda step: finished(resident.batch(step)), repeats)
        results.append(result("the same windows, resident on the GPU", on_gpu, copy, "GB/s", "memcpy", on_gpu / copy))
    for threads, kind in ((False, "processes"), (True, "threads")):
        workers = min(4, os.cpu_count() or 1)
        stream = sampler.batches(0, num_workers=workers, threads=threads)
        parallel = size / 1e9 / seconds(lambda _, stream=stream: next(stream), repeats)  # type: ignore[misc]
        results.append(result(f"the same windows, {workers} {kind}", parallel, copy, "GB/s", "memcpy", parallel / copy))
    return results


def write_raw(path: Path, block: np.ndarray, count: int) -> float:
    start = time.perf_counter()
    with path.open("wb") as stream:
        for _ in range(count):
            stream.write(block.data)
        stream.flush()
        os.fsync(stream.fileno())
    speed = path.stat().st_size / 1e6 / (time.perf_counter() - start)
    path.unlink()
    return speed


def measure_memory(folder: Path, batches: int) -> list[Result]:
    """Resident memory after a tenth of the batches and after all of them. Mapped pages of the files do not count."""
    sampler = Sampler(mixture(folder / "proprio"), seed=0)
    early = 0.0
    for step in range(batches):
        batch: Batch = sampler.batch(step)
        if step == batches // 10:
            early = own_memory()
    del batch
    late = own_memory()
    return [result(f"memory after {batches:,} batches", late, early, "MB", f"after {batches // 10:,}", late / early)]


def own_memory() -> float:
    """Anonymous resident memory in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure_size(folder: Path, repeats: int) -> list[Result]:
    """A hundred million steps in a sparse file, against the 500,000 of the dataset before."""
    path = folder / "huge"
    make_sparse(path, episodes=100_000, length=1000)
    before = own_memory()
    start = time.perf_counter()
    dataset = Dataset(path)
    opened, grown = time.perf_counter() - start, own_memory() - before
    sampler = Sampler(mixture(path), seed=0)
    ours = seconds(sampler.batch, repeats)
    small = seconds(Sampler(mixture(folder / "proprio"), seed=0).batch, repeats)
    steps = f"{dataset.num_steps / 1e6:.0f}M steps"
    return [
        result(f"opening {steps}", opened, 1.0, "s", "limit", opened),
        result(f"memory to open {steps}", grown, 20.0, "MB", "limit", grown / 20),
        result(f"sampling from {steps}", ours * 1e3, small * 1e3, "ms", "from 0.5M steps", small / ours),
    ]


def make_sparse(path: Path, episodes: int, length: int) -> None:
    """A dataset that takes no room: zeros in holes, with a true index."""
    spec = DatasetSpec(state_dim=24, action_dim=6, action_low=(-1.0,) * 6, action_high=(1.0,) * 6)
    rows = episodes * (length + 1)
    path.mkdir()
    (path / "spec.json").write_text(json.dumps(spec.to_json()))
    for name, (dtype, shape) in spec.step_features.items():
        with (path / f"{name}.npy").open("wb") as stream:
            stream.write(npy_header(dtype, shape, rows))
            stream.truncate(stream.tell() + rows * dtype.itemsize * int(np.prod(shape)))
    index = np.zeros(episodes, INDEX)
    index["row"], index["length"], index["last_known"] = np.arange(episodes) * (length + 1), length, True
    index["goal"] = -1
    (path / "episodes.npy").write_bytes(npy_header(INDEX, (), episodes) + index.tobytes())
    for name in ("instructions.jsonl", "sources.jsonl"):
        (path / name).write_text('""\n')
    files = {
        name: {"offset": 0, "bytes": 3, "crc32": zlib.crc32(b'""\n')}
        for name in ("instructions.jsonl", "sources.jsonl")
    }
    statistics = {STATE: {"mean": [0.0] * 24, "variance": [0.0] * 24}}
    committed = {"episodes": episodes, "rows": rows, "goals": 0, "files": files, "statistics": statistics}
    (path / "committed.json").write_bytes(seal(committed))


def measure_import(folder: Path, episodes: int) -> list[Result]:
    """OGBench's format, which needs nothing but numpy, against reading the same file."""
    random = np.random.default_rng(0)
    rows = episodes * 1001
    terminals = np.zeros(rows, np.float32)
    terminals[1000::1001] = 1
    source = folder / "play.npz"
    observations = random.normal(size=(rows, 40)).astype(np.float32)
    actions = random.uniform(-1, 1, (rows, 8)).astype(np.float32)
    np.savez(source, observations=observations, actions=actions, terminals=terminals)
    size = source.stat().st_size / 1e6
    raw = size / seconds(lambda _: len(source.read_bytes()), 3)
    start = time.perf_counter()
    import_dataset([source], folder / "imported", format="ogbench")
    ours = size / (time.perf_counter() - start)
    return [result("importing OGBench", ours, raw, "MB/s", "reading the file raw", ours / raw)]


def result(name: str, value: float, baseline: float, unit: str, against: str, ratio: float) -> Result:
    print(f"{name:<44} {value:9.3f} {unit:<5} {against:>24} {baseline:10.3f}   ratio {ratio:.3f}", flush=True)
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "against": against, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    args = parser.parse_args()
    repeats, scale = (10, 1) if args.quick else (50, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = [
            *measure_proprioception(folder, 10 * repeats),
            *measure_images(folder, repeats, episodes=40 * scale),
            *measure_memory(folder, batches=2_000 * scale),
            *measure_size(folder, 10 * repeats),
            *measure_import(folder, episodes=200 * scale),
        ]
    if args.json:
        machine = {"cores": os.cpu_count(), "torch": torch.__version__, "numpy": np.__version__}
        machine |= {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
        table = {"command": " ".join(["python", *sys.argv]), "machine": machine, "results": results}
        args.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
