"""Pictures without a screen: finds a GL that works, and draws a MuJoCo scene with settings made for small pictures.

Nothing here runs unless pictures are asked for. Which GL is used does not depend on what was imported before: contexts
come from MuJoCo's own modules for each of them, not from the choice MuJoCo makes when it is imported.
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

FRAME = (240, 320)  # of `render()`
_OFF = ("disable", "disabled", "off", "false", "0")
_NAMES = ("egl", "osmesa", "glfw", "cgl")
_CANDIDATES = {"Linux": ("egl", "osmesa"), "Darwin": ("cgl",)}
_FOUND = "PAC_GL"  # tells child processes what worked, so that they need not try again
_TRIAL = """
import importlib, sys, mujoco
model = mujoco.MjModel.from_xml_string("<mujoco/>")
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(80, 80)
context.make_current()
mujoco.MjrContext(model, 100).free()
"""


@contextlib.contextmanager
def no_gl() -> Iterator[None]:
    """Import a simulator without GL unless the user chose one that works: a broken driver must not stop those who draw
    nothing.
    """
    before = os.environ.get("MUJOCO_GL")
    if before is None or not _usable(before):
        os.environ["MUJOCO_GL"] = "disabled"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = before


def _usable(chosen: str) -> bool:
    return chosen in _OFF or os.environ.get(_FOUND) == chosen or (chosen in _NAMES and _try(chosen) is None)


@functools.cache
def find_gl() -> str:
    """The GL to draw with: the user's MUJOCO_GL, or the first that works. Each is tried in a process of its own, since
    a broken driver may crash or hang instead of raising.
    """
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    if wanted in _OFF:
        raise ValueError(f"Cannot draw pictures: MUJOCO_GL={wanted} turns it off. Unset it, or make no cameras.")
    names = (wanted,) if wanted in _NAMES else _CANDIDATES.get(platform.system(), ("glfw",))
    if os.environ.get(_FOUND) in names:
        return os.environ[_FOUND]
    causes = {}
    for name in names:
        causes[name] = _try(name)
        if causes[name] is None:
            os.environ[_FOUND] = name
            return name
    found = " ".join(f"{name}: {cause}." for name, cause in causes.items())
    raise ValueError(
        f"Cannot draw pictures: no GL works here{' (MUJOCO_GL=' + wanted + ')' if wanted else ''}. {found} Do one of: "
        "apt-get install libegl1 libopengl0 libgl1-mesa-dri (EGL); apt-get install libosmesa6 (OSMesa); make the world "
        "without cameras."
    )


@functools.cache
def _try(name: str, seconds: float = 30) -> str | None:
    """Draw with one GL in a child process; why it failed, or None."""
    command, environment = [sys.executable, "-c", _TRIAL, name], {**os.environ, "MUJOCO_GL": "disabled"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"did not answer in {seconds:g} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if "'NoneType' object has no attribute" in lines[-1]:  # PyOpenGL's words for it
        return "its library is not installed"
    return lines[-1].rstrip(".")


class Renderer:
    """Draws one model. No multisampling, shadows or reflections, and a buffer no larger than the pictures: ten times
    faster than the defaults on a CPU, and hardly visible at 80 pixels.
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
        """What a camera of the model sees, (height, width, 3) uint8."""
        mujoco = self._mujoco
        self._gl.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._options, None, self._camera, everything, self._scene)
        picture, rectangle = np.empty((height, width, 3), np.uint8), mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(picture, None, rectangle, self._context)
        return np.ascontiguousarray(picture[::-1])

    def upload_terrain(self) -> None:
        """Tell the GL that height fields changed."""
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
    """Free contexts before MuJoCo shuts the display down, which it does at exit, and after which freeing fails. Hooks
    run last in, first out: so ours is registered once MuJoCo's is there.
    """
    if not _open:
        atexit.register(_close_all)
    _open.add(renderer)


def _close_all() -> None:
    for renderer in list(_open):
        renderer.close()


class MujocoCameras:
    """The part of a MuJoCo world that draws it."""

    upside_down: tuple[str, ...] = ()  # cameras that hang the wrong way up
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
        picture = self._renderer.draw(self._data, camera, *(size or self._image_size))
        return np.ascontiguousarray(picture[::-1, ::-1]) if camera in self.upside_down else picture

    def _close_cameras(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
