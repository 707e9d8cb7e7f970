"""Pictures without a screen."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def no_gl() -> Iterator[None]:
    """Import a simulator without its own choice of GL, unless the user made one: we draw with our own context."""
    before = os.environ.get("MUJOCO_GL")
    os.environ.setdefault("MUJOCO_GL", "disabled")
    try:
        yield
    finally:
        if before is None:
            del os.environ["MUJOCO_GL"]


class MujocoPictures:
    def _scene_changed(self) -> None:
        pass
