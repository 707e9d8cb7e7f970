"""Rendering without a screen: find a GL that works, and render a MuJoCo scene to small images.

Nothing here runs unless a caller needs images. Earlier imports do not change the GL: contexts come from MuJoCo's module
for that GL, not from the choice that MuJoCo makes at its import.
"""

import atexit
import contextlib
import functools
import importlib
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import mujoco

FRAME = (240, 320)  # height and width of `render()`
_OFF = ("disable", "disabled", "off", "false", "0")
_NAMES = ("egl", "osmesa", "glfw", "cgl")
_CANDIDATES = {"Linux": ("egl", "osmesa"), "Darwin": ("cgl",)}
_FOUND = "PAC_GL"  # environment variable with the GL that worked, for child processes
_PROBE = """
import importlib, sys, mujoco
model = mujoco.MjModel.from_xml_string("<mujoco/>")
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(80, 80)
context.make_current()
mujoco.MjrContext(model, 100).free()
"""


@contextlib.contextmanager
def no_gl() -> Iterator[None]:
    """Import a simulator without GL, unless the user chose one that works.

    A broken driver must not stop a user who needs no images.
    """
    before = os.environ.get("MUJOCO_GL")
    works = before in _OFF or (before in _NAMES and (os.environ.get(_FOUND) == before or _probe(before) is None))
    if before is None or not works:
        os.environ["MUJOCO_GL"] = "disabled"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = before


@functools.cache
def find_gl() -> str:
    """Return the GL to render with: the user's MUJOCO_GL, or the first that works.

    Each is tried in a process of its own, because a broken driver may crash or hang instead of raising.
    """
    chosen = os.environ.get("MUJOCO_GL", "").lower().strip()
    if chosen in _OFF:
        raise ValueError(
            f"Images: expected a GL to render with, found MUJOCO_GL={chosen}. Unset it, or use no cameras."
        )
    names = (chosen,) if chosen in _NAMES else _CANDIDATES.get(platform.system(), ("glfw",))
    if os.environ.get(_FOUND) in names:
        return os.environ[_FOUND]
    causes = {}
    for name in names:
        causes[name] = _probe(name)
        if causes[name] is None:
            os.environ[_FOUND] = name
            return name
    found = " ".join(f"{name}: {cause}." for name, cause in causes.items())
    setting = f" (MUJOCO_GL={chosen})" if chosen else ""
    raise ValueError(
        f"Images: expected a GL that works{setting}, found none. {found} Do one of: apt-get install libegl1 libopengl0 "
        "libgl1-mesa-dri (EGL); apt-get install libosmesa6 (OSMesa); use no cameras."
    )


@functools.cache
def _probe(name: str, seconds: float = 30) -> str | None:
    """Render with one GL in a child process. Return why it failed, or None."""
    command, environment = [sys.executable, "-c", _PROBE, name], {**os.environ, "MUJOCO_GL": "disabled"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"did not answer in {seconds:g} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if "'NoneType' object has no attribute" in lines[-1]:  # from PyOpenGL
        return "its library is not installed"
    return lines[-1].rstrip(".")


class Renderer:
    """A renderer of one model, without multisampling, shadows and reflections, with a buffer of the images' size.

    It is ten times faster than the defaults on a CPU. At 80 pixels the difference is hardly visible.
    """

    def __init__(self, model: "mujoco.MjModel", height: int, width: int) -> None:
        import mujoco

        self._mujoco, self._model = mujoco, model
        model.vis.quality.offsamples = 0
        model.vis.quality.shadowsize = 0
        model.vis.global_.offheight, model.vis.global_.offwidth = height, width
        self._gl: Any = importlib.import_module(f"mujoco.{find_gl()}").GLContext(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene, self._options = mujoco.MjvScene(model, maxgeom=5000), mujoco.MjvOption()
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        _close_at_exit(self)

    def draw(self, data: "mujoco.MjData", camera: str, height: int, width: int) -> np.ndarray:
        """Return the image of one camera, (height, width, 3) uint8."""
        mujoco = self._mujoco
        self._gl.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._options, None, self._camera, everything, self._scene)
        image, rectangle = np.empty((height, width, 3), np.uint8), mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(image, None, rectangle, self._context)
        return np.ascontiguousarray(image[::-1])

    def upload_terrain(self) -> None:
        """Upload changed height fields to the GL."""
        if self._model.nhfield:
            self._gl.make_current()
            for i in range(self._model.nhfield):
                self._mujoco.mjr_uploadHField(self._model, self._context, i)

    def close(self) -> None:
        if self._gl is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._gl = None

    def __del__(self) -> None:
        if getattr(self, "_context", None) is not None:
            self.close()


_open: "weakref.WeakSet[Renderer]" = weakref.WeakSet()


def _close_at_exit(renderer: Renderer) -> None:
    """Free contexts at exit before MuJoCo shuts the display down. Freeing them later fails.

    Exit hooks run last in, first out. So this one is registered after MuJoCo's.
    """
    if not _open:
        atexit.register(_close_all)
    _open.add(renderer)


def _close_all() -> None:
    for renderer in list(_open):
        renderer.close()


class MujocoCameras:
    """The rendering part of a MuJoCo environment."""

    upside_down: tuple[str, ...] = ()  # cameras whose images are turned by 180 degrees
    _model: "mujoco.MjModel"
    _data: "mujoco.MjData"
    _image_size: tuple[int, int]
    _renderer: Renderer | None = None

    def _open_cameras(self, with_frames: bool) -> None:
        height, width = self._image_size
        size = (max(height, FRAME[0]), max(width, FRAME[1])) if with_frames else (height, width)
        self._renderer = Renderer(self._model, *size)

    def _scene_changed(self) -> None:
        if self._renderer is not None:
            self._renderer.upload_terrain()

    def _image(self, camera: str, size: tuple[int, int] | None = None) -> np.ndarray:
        assert self._renderer is not None
        image = self._renderer.draw(self._data, camera, *(size or self._image_size))
        return np.ascontiguousarray(image[::-1, ::-1]) if camera in self.upside_down else image

    def _close_cameras(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
