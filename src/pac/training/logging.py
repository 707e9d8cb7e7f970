"""Logs of a run: a live line, metrics.jsonl, TensorBoard, and Weights & Biases if asked for."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from pac.training.run_dir import RunDirectory

SHOWN = {"loss/total": "loss", "loss/imitation": "bc", "loss/improvement": "rl", "loss/critic": "critic"}
QUIET_SECONDS = 10.0  # between lines if the output is no terminal
EVALUATION = "evaluation/"  # then the task or the name of pooled tasks, then return, success, and ends of intervals
ENDS = ("_low", "_high")  # of an interval
FEW_TASKS = 6  # with more, an evaluation is printed as the pooled result and the worst and best tasks
UNITS = {"success": (100, "%", " points"), "return": (1, "", "")}  # scale, unit of a value, unit of a change
EXTREMES = 3  # how many of the worst, and of the best


def make_console(quiet: bool = False) -> Console:
    """Return a console on stderr. Files and pipes get wide lines."""
    console = Console(stderr=True, quiet=quiet)
    return console if console.is_terminal else Console(stderr=True, width=400, quiet=quiet)


class RunLogger:
    """Logger of one run, used as a context manager.

    `waiting` times the wait for data, `tick` moves the live line, `write` records metrics.
    """

    def __init__(
        self,
        directory: RunDirectory,
        console: Console,
        *,
        steps: int,
        first_step: int,
        main: bool = True,
        wandb: str | None = None,
        last: dict[str, Any] | None = None,
    ) -> None:
        self.directory, self.console, self.main, self.wandb = directory, console, main, wandb
        self.steps, self.first_step, self.step = steps, first_step, first_step
        self.last = dict(last or {})  # the newest value of each metric, also from before a resume
        self._waited, self._paused, self._began, self._printed = 0.0, 0.0, time.perf_counter(), 0.0
        self._last_record = (first_step, 0.0, 0.0)  # step, seconds of training, seconds of waiting

    def __enter__(self) -> "RunLogger":
        columns = (  # on a narrow terminal only the note takes a second line
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(20, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", table_column=Column()),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
        )
        live = self.main and self.console.is_terminal
        self._progress = Progress(*columns, console=self.console, disable=not live)
        self._bar = self._progress.add_task("train", total=self.steps, completed=self.first_step, note="")
        self._progress.start()
        if self.main:
            from torch.utils.tensorboard import SummaryWriter

            folder = str(self.directory.path / "tensorboard")
            # A resume logs again what was logged after its checkpoint. Readers drop the first values.
            self._board = SummaryWriter(folder, purge_step=self.first_step + 1)
        self._remote = self._open_wandb() if self.main and self.wandb else None
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        if self.main:
            self._board.close()
        if self._remote is not None:
            self._remote.finish()

    def _open_wandb(self) -> Any:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        folder = self.directory.path
        options = {"project": self.wandb, "dir": str(folder), "name": folder.name, "id": self.directory.wandb_id()}
        try:
            return wandb.init(**options, resume="allow")
        except Exception as error:
            raise ValueError(
                f"machine.wandb: expected Weights & Biases to start a run, found {type(error).__name__}: {error}. Log "
                "in with `wandb login`, set WANDB_MODE=offline, or leave it out, and continue with --resume."
            ) from error

    @contextmanager
    def waiting(self, busy: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Time the wait for data. It does not count if the device is still `busy` with the last update."""
        start = time.perf_counter()
        yield
        if not busy():
            self._waited += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out time that is not training, such as evaluation, from the speed of updates."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - start

    def show_evaluation(self, done: int, total: int) -> None:
        """Show the number of finished evaluation episodes on the live line."""
        self._progress.update(self._bar, note=f"episode {done}/{total}")

    def tick(self, step: int) -> None:
        self.step = step
        self._progress.update(self._bar, completed=step)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Record metrics of a step. Only timings, with the prefix time/, differ between equal runs."""
        now, (last, then, waited) = self._training_seconds, self._last_record
        if step > last:
            seconds, self._last_record = max(now - then, 1e-9), (step, now, self._waited)
            times = {"updates_per_second": (step - last) / seconds, "data_wait": (self._waited - waited) / seconds}
            metrics = metrics | {f"time/{name}": value for name, value in times.items()}
        before, self.last = self.last, self.last | metrics
        if not self.main:
            return
        self.directory.append_metrics({"step": step} | metrics)
        plotted = {name: value for name, value in metrics.items() if not _is_end(name)}
        for name, value in plotted.items():
            self._board.add_scalar(name, value, step)
        if self._remote is not None:
            self._remote.log(plotted, step=step)
        self._print(step, metrics)
        if lines := evaluation_lines(metrics, before):
            self._say(f"step {step:,}/{self.steps:,} evaluated")
            for line in lines:
                self._say(f"  {line}")

    def _print(self, step: int, metrics: dict[str, float]) -> None:
        parts = [f"{short} {metrics[name]:.3f}" for name, short in SHOWN.items() if name in metrics]
        speed = metrics.get("time/updates_per_second", 0.0)
        if speed:
            parts.append(f"{speed:.1f}/s data {metrics['time/data_wait']:.0%}")
        if not parts:
            return  # an evaluation, which has lines of its own
        note, now = " ".join(parts), time.perf_counter()
        self._progress.update(self._bar, note=note)
        if not self.console.is_terminal and (now - self._printed > QUIET_SECONDS or step == self.steps):
            self._printed = now
            left = f" ETA {(self.steps - step) / speed:.0f}s" if speed else ""
            self._say(f"step {step:,}/{self.steps:,} {note}{left}")

    def _say(self, text: str) -> None:
        """Print a line that stays, above the live line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def _training_seconds(self) -> float:
        return max(self.seconds - self._paused, 1e-9)

    @property
    def updates_per_second(self) -> float:
        return (self.step - self.first_step) / self._training_seconds

    @property
    def data_wait(self) -> float:
        return self._waited / self._training_seconds


def evaluation_lines(metrics: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Return a line per task of an evaluation, with the change since `before`. Of many tasks only the extremes."""
    names = dict.fromkeys(name.removeprefix(EVALUATION).rpartition("/")[0] for name in metrics if _is_result(name))
    tasks, pooled = ([name for name in names if ("/" in name) == is_task] for is_task in (True, False))
    suites = {task.partition("/")[0] for task in tasks}
    metric = {name: "success" if f"{EVALUATION}{name}/success" in metrics else "return" for name in names}
    if len({metric[task] for task in tasks}) > 1 and len(pooled) > 1:
        pooled.remove("all")  # it would pool those tasks alone that have a success
    shown = {task: task.partition("/")[2] if len(suites) == 1 else task for task in tasks}
    if len(tasks) > FEW_TASKS:
        main = "success" if "success" in metric.values() else "return"
        ranked = [task for task in tasks if metric[task] == main]
        ranked = sorted(ranked, key=lambda task: metrics[f"{EVALUATION}{task}/{main}"])
        worst, best = ranked[:EXTREMES], ranked[EXTREMES:][-EXTREMES:][::-1]
        shown = {task: f"{word} {shown[task]}" for word, part in (("worst:", worst), ("best: ", best)) for task in part}
    if len(tasks) != 1:
        shown = {name: f"all {len(tasks)} tasks" if name == "all" else f"all of {name}" for name in pooled} | shown
    width = max(map(len, shown.values()), default=0)
    return [f"{text:<{width}}  {_result(name, metric[name], metrics, before)}" for name, text in shown.items()]


def _is_result(name: str) -> bool:
    return name.startswith(EVALUATION) and not _is_end(name)


def _is_end(name: str) -> bool:
    """Return whether a metric is an end of an evaluation's interval. Boards leave it out."""
    return name.startswith(EVALUATION) and name.endswith(ENDS)


def _result(name: str, metric: str, metrics: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Return a text such as `success 70% [39.7, 89.2], up 10 points`."""
    key, (scale, unit, points) = f"{EVALUATION}{name}/{metric}", UNITS[metric]
    text = f"{metric} {scale * metrics[key]:.3g}{unit}"
    if all(key + end in metrics for end in ENDS):
        low, high = (f"{scale * metrics[key + end]:.3g}" for end in ENDS)
        text += f" [{low}, {high}]"
    if key not in before:
        return text
    change = scale * (metrics[key] - before[key])
    if f"{scale * before[key]:.3g}" == f"{scale * metrics[key]:.3g}":
        return f"{text}, as before"
    return f"{text}, {'up' if change > 0 else 'down'} {abs(change):.3g}{points}"
