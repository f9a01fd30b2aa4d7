"""PIE-3D: faces rendered from an open 3D model, by the design of Multi-PIE: identities, takes, views and lights.

Everybody is recorded in six takes, each with an expression of `EXPRESSIONS`. These are dealt at random, so that in the
whole set they are as frequent as in the recordings of Multi-PIE, where each of four sessions has a neutral one. A take
is seen by three cameras, each with 19 flashes, one at a time, and once without any.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base import interrupts
from ...base.hints import install
from . import facekit, sets
from .alignment import EYES, NOSE, similarity
from .facekit import FaceModel
from .people import EYES as EYEBALLS
from .people import SEEN, Person, express, make_person
from .sets import EXPRESSIONS, SIZE

TAKES = 6
VIEWS = (-15.0, 0.0, 15.0)  # degrees, by which a camera is to the left of the face (+) or to the right of it
# Azimuth and elevation of the flashes, in degrees: half a circle at the height of the face, and a row above.
FLASHES = (*((15.0 * step, 5.0) for step in range(-6, 7)), *((24.0 * step - 12, 40.0) for step in range(-2, 4)))
LIGHTS = (*(f"{azimuth:+.0f}°, {elevation:.0f}° up" for azimuth, elevation in FLASHES), "no flash")
# How often each expression was recorded in Multi-PIE: by the subjects of its four sessions, 249, 203, 230 and 239.
FREQUENCIES = {
    "neutral": 249 + 203 + 230 + 239 + 239,
    "smile": 249 + 230,
    "surprise": 203,
    "squint": 203,
    "disgust": 230,
    "scream": 239,
}
SAMPLES = 2  # rays for each pixel, in both directions
TIP = 4841  # the vertex at the tip of the nose
VERSION = 1  # of the pictures: one more whenever they change


@dataclass(frozen=True)
class Set:
    """A set of rendered faces: its size, and the seed of all that is random in it."""

    identities: int = 337
    """People to render; 20 of them are for the test."""
    seed: int = 0
    """The seed of the people, their expressions, poses and skins, and of the camera's noise."""

    def __post_init__(self) -> None:
        if self.identities < 3:
            raise ValueError(f"identities must be at least 3, one for each part; got {self.identities}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        people = "" if self.identities == Set.identities else f"-{self.identities}"
        return sets.folder_of(f"rendered{people}" + (f"-seed-{self.seed}" if self.seed else ""))

    def recipe(self) -> dict[str, int | str]:
        """What makes the pictures what they are."""
        return {
            "identities": self.identities,
            "seed": self.seed,
            "version": VERSION,
            "model": facekit.load().checksum(),
        }


QUICK = Set(identities=20)


class Scene(NamedTuple):
    """A head that makes an expression, ready to be looked at."""

    vertices: NDArray[np.float64]  # (V, 3)
    normals: NDArray[np.float64]  # (V, 3)
    albedo: NDArray[np.float64]  # (V,)
    triangles: NDArray[np.int64]  # (T, 3)
    landmarks: NDArray[np.float64]  # (3, 3): the eyes, that on the right in the image last, and the tip of the nose
    rays: Any  # trimesh's RayMeshIntersector


def render(which: Set, workers: int, report: Callable[[int, int], None] = lambda done, of: None) -> Path:
    """Render a set, if it is not there yet, or go on with it; where it is.

    Args:
        workers: processes.
        report: how many of how many identities are rendered.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    missing = [name for name in ("trimesh", "embreex") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"to render faces, {' and '.join(missing)} must be installed: {install(*missing)}")
    recipe = which.recipe()
    if (which.folder / "set.json").exists() and sets.load_facts(which.folder).get("recipe") == recipe:
        return which.folder
    begun = which.folder.with_name(f".{which.folder.name}-{_digest(recipe)}")  # rendered so far, an identity in a file
    begun.mkdir(parents=True, exist_ok=True)
    left = [identity for identity in range(which.identities) if not _part(begun, identity).exists()]
    report(which.identities - len(left), which.identities)
    with interrupts.deferred():
        _render_parts(which, workers, left, begun, report)
    images = np.concatenate([np.load(_part(begun, identity)) for identity in range(which.identities)])
    facts = {"name": "rendered", "classes": EXPRESSIONS, "views": [f"{view:+g}°" for view in VIEWS], "lights": LIGHTS}
    sets.save(which.folder, images.reshape(-1, SIZE, SIZE), index_of(which), {**facts, "recipe": recipe})
    shutil.rmtree(begun)
    return which.folder


def _render_parts(which: Set, workers: int, left: list[int], begun: Path, report: Callable[[int, int], None]) -> None:
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=interrupts.install_in_child) as pool:
        try:
            with interrupts.blocked():
                jobs = {pool.submit(_render_part, which, identity, begun) for identity in left}
            while jobs:
                done, jobs = wait(jobs, 0.2, FIRST_COMPLETED)
                for job in done:
                    job.result()
                if done:
                    report(which.identities - len(jobs), which.identities)
                interrupts.check()
        except BrokenProcessPool as error:
            raise OSError("a process that rendered was killed; the same command goes on from here") from error
        except interrupts.Interrupted:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def index_of(which: Set) -> NDArray[np.int64]:
    """What the images show, in the order in which they are rendered: the index that `sets.save` wants."""
    shape = which.identities, TAKES, len(VIEWS), len(LIGHTS)
    identity, _, view, light = np.indices(shape)
    label = np.broadcast_to(deal(which)[:, :, None, None], shape)
    part = sets.part_identities(which.identities)[identity]
    return np.stack((part, label, identity, view, light), -1).reshape(-1, 5)


def _render_part(which: Set, identity: int, begun: Path) -> None:
    path = _part(begun, identity)
    unfinished = path.with_suffix(f".{os.getpid()}")
    with unfinished.open("wb") as file:
        np.save(file, render_identity(facekit.load(), which, identity))
    unfinished.replace(path)


def _part(begun: Path, identity: int) -> Path:
    return begun / f"{identity}.npy"


def _digest(recipe: dict[str, int | str]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:8]


def deal(which: Set) -> NDArray[np.int64]:
    """The expressions (identities, takes) of everybody's takes.

    >>> np.bincount(deal(Set()).flatten())
    array([933, 385, 164, 163, 185, 192])
    """
    total, shares = which.identities * TAKES, np.array([FREQUENCIES[name] for name in EXPRESSIONS])
    until = np.round(np.cumsum(shares) * total / shares.sum()).astype(np.int64)
    labels = np.searchsorted(until, np.arange(total), side="right")
    return np.random.default_rng((which.seed, 0)).permutation(labels).reshape(which.identities, TAKES)


def render_identity(model: FaceModel, which: Set, identity: int) -> NDArray[np.uint8]:
    """All images of one person, (takes, views, lights, 48, 48)."""
    random = np.random.default_rng((which.seed, 1, identity))
    person = make_person(model, random)
    triangles = triangles_of(model)
    takes = []
    for label in deal(which)[identity]:
        scene = make_scene(model, person, EXPRESSIONS[label], triangles, random)
        turn, exposure = random.normal(0, (2.0, 2.5, 2.5)), np.exp(random.normal(0, 0.12))
        background = random.uniform(0.05, 0.25)
        views = []
        for view in VIEWS:
            jitter = turn + random.normal(0, 0.7, 3)
            views.append(photograph(scene, view, jitter, exposure, background, random))
        takes.append(np.stack(views))
    return np.stack(takes)


def triangles_of(model: FaceModel) -> NDArray[np.int64]:
    """The triangles of all that is seen."""
    quads = model.quads[np.isin(model.material_names[model.material], SEEN)].astype(np.int64)
    second = quads[quads[:, 2] != quads[:, 3]]
    return np.concatenate((quads[:, [0, 1, 2]], second[:, [0, 2, 3]]))


def make_scene(
    model: FaceModel, person: Person, expression: str, triangles: NDArray[np.int64], random: np.random.Generator
) -> Scene:
    """A person who makes an expression."""
    import trimesh
    from trimesh.ray.ray_pyembree import RayMeshIntersector

    vertices = express(model, person, expression, random).astype(np.float64)
    a, b, c = (vertices[triangles[:, corner]] for corner in range(3))
    flat = np.cross(b - a, c - a)
    normals = np.zeros_like(vertices)
    for axis in range(3):
        for corner in range(3):
            normals[:, axis] += np.bincount(triangles[:, corner], flat[:, axis], len(vertices))
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    eyes = [vertices[model.vertices_of(name)].mean(0) for name in EYEBALLS]
    landmarks = np.stack([*sorted(eyes, key=lambda eye: float(eye[0])), vertices[TIP]])
    mesh = trimesh.Trimesh(vertices, triangles, process=False, validate=False)
    return Scene(vertices, normals, person.albedo.astype(np.float64), triangles, landmarks, RayMeshIntersector(mesh))


def photograph(
    scene: Scene,
    view: float,
    jitter: NDArray[np.float64],
    exposure: float,
    background: float,
    random: np.random.Generator,
) -> NDArray[np.uint8]:
    """What a camera far away sees, aligned by eyes and nose, in all lights: (lights, 48, 48).

    Args:
        view: degrees, as in `VIEWS`.
        jitter: degrees that the head is turned, nodded and tilted by.
        exposure: of the camera.
        background: its brightness.
        random: of the annotation of eyes and nose, and of the camera's noise.
    """
    turn = rotation(*(np.array((-view, 0.0, 0.0)) + jitter))
    seen = scene.landmarks @ turn.T  # as the camera has it: to the right, up, towards it
    places = np.array([*EYES, NOSE]) + random.normal(0, 0.35, (3, 2))
    to_world = similarity(places, np.stack((-seen[:, 1], seen[:, 0]), 1))  # (row, column) → (down, right)
    steps = (np.arange(SIZE * SAMPLES) + 0.5) / SAMPLES - 0.5
    grid = np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2)
    down, right = (grid @ to_world[:, :2].T + to_world[:, 2]).T
    origins = np.stack((right, -down, np.full_like(down, 100.0)), 1) @ turn
    forward = np.array((0.0, 0.0, -1.0)) @ turn
    hits = scene.rays.intersects_first(origins, np.broadcast_to(forward, origins.shape))
    hit = hits >= 0
    light = np.full((len(LIGHTS), len(hits)), background)
    light[:, hit] = shade(scene, hits[hit], origins[hit], forward)
    pixels = light.reshape(len(LIGHTS), SIZE, SAMPLES, SIZE, SAMPLES).mean((2, 4))
    grey = 255 * np.clip(exposure * pixels, 0, 1) ** (1 / 2.2) + random.normal(0, 2.5, pixels.shape)
    return np.asarray(grey.round().clip(0, 255), dtype=np.uint8)


def shade(
    scene: Scene, hits: NDArray[np.int64], origins: NDArray[np.float64], forward: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The light (lights, R) that comes back along rays that hit triangles."""
    corners = scene.triangles[hits]  # (R, 3)
    weights = barycentric(scene.vertices[corners], origins, forward)
    point = np.einsum("rc,rcx->rx", weights, scene.vertices[corners])
    normal = np.einsum("rc,rcx->rx", weights, scene.normals[corners])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    normal *= -np.sign(normal @ forward)[:, None]
    albedo = (weights * scene.albedo[corners]).sum(1)
    start = point + 0.03 * normal - 0.02 * forward
    directions = flash_directions()
    falling = np.maximum(normal @ directions.T, 0).T  # (flashes, R)
    free = np.zeros_like(falling, dtype=bool)
    for number, direction in enumerate(directions):
        lit = np.flatnonzero(falling[number] > 0)
        if len(lit):
            towards = np.broadcast_to(direction, (len(lit), 3))
            free[number, lit] = ~scene.rays.intersects_any(start[lit], towards)
    flashed = falling * free
    half = directions - forward
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    shine = 0.12 * np.maximum(normal @ half.T, 0).T ** 18 * free
    # The room is lit from all over, more from above, and less gets where fewer of the flashes do.
    room = 0.25 * (0.15 + 0.35 * (0.6 + 0.4 * normal[:, 1]) + 1.2 * flashed.mean(0)) * albedo
    return np.concatenate((room + 0.9 * albedo * flashed + shine, 1.6 * room[None]))


def barycentric(
    corners: NDArray[np.float64], origins: NDArray[np.float64], forward: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Where rays (R, 3) of one direction meet the planes of triangles (R, 3, 3), as weights of their corners (R, 3)."""
    one, two = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    away = np.cross(forward, two)
    scale = np.einsum("rx,rx->r", one, away)
    scale = np.where(np.abs(scale) < 1e-12, 1e-12, scale)
    start = origins - corners[:, 0]
    second = np.einsum("rx,rx->r", start, away) / scale
    third = np.cross(start, one) @ forward / scale
    weights = np.stack((1 - second - third, second, third), 1).clip(0, 1)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def flash_directions() -> NDArray[np.float64]:
    """Where the flashes are, as unit vectors (flashes, 3)."""
    azimuth, elevation = np.radians(np.array(FLASHES)).T
    across = np.cos(elevation)
    return np.stack((across * np.sin(azimuth), np.sin(elevation), across * np.cos(azimuth)), 1)


def rotation(yaw: float, pitch: float, roll: float) -> NDArray[np.float64]:
    """A turn about the vertical axis, then a nod, then a tilt, in degrees: as a matrix for columns.

    >>> rotation(90, 0, 0) @ (0, 0, 1)
    array([1., 0., 0.])
    """
    (a, b, c), (s, t, u) = np.cos(np.radians((yaw, pitch, roll))), np.sin(np.radians((yaw, pitch, roll)))
    turn = np.array(((a, 0, s), (0, 1, 0), (-s, 0, a)))
    nod = np.array(((1, 0, 0), (0, b, t), (0, -t, b)))
    tilt = np.array(((c, -u, 0), (u, c, 0), (0, 0, 1)))
    return np.asarray((tilt @ nod @ turn).round(15))
