"""The people of the rendered faces: shape, skin and hair of an identity, and how it makes each expression."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .facekit import FaceModel

SKIN = ("M_Face", "M_BackHead")
EYES = ("M_ScleraLeft", "M_ScleraRight")
# What is seen of a head. The others are transparent, and the irises are painted on the eyes.
SEEN = (*SKIN, *EYES, "M_GumsTongue", "M_Teeth")
# What each expression does with the face, for a strength of 1; names without a side are done with both.
RECIPES: dict[str, dict[str, float]] = {
    "neutral": {},
    "smile": {"mouthSmile": 0.8, "cheekSquint": 0.4, "mouthUpperUp": 0.25, "mouthDimple": 0.3, "eyeSquint": 0.25},
    "surprise": {"jawOpen": 0.45, "eyeWide": 0.8, "browInnerUp": 0.8, "browOuterUp": 0.8},
    # These two have much in common: narrow eyes below low brows, and some of the nose in both.
    "squint": {"eyeSquint": 1.0, "eyeBlink": 0.3, "browDown": 0.5, "cheekSquint": 0.6, "noseSneer": 0.25},
    "disgust": {
        "noseSneer": 0.7,
        "browDown": 0.5,
        "eyeSquint": 0.6,
        "mouthUpperUp": 0.5,
        "cheekSquint": 0.4,
        "mouthFrown": 0.3,
    },
    "scream": {
        "jawOpen": 0.9,
        "eyeSquint": 0.7,
        "eyeBlink": 0.3,
        "mouthStretch": 0.5,
        "mouthLowerDown": 0.4,
        "noseSneer": 0.3,
        "browDown": 0.3,
    },
}
_IRIS = 0.75  # its radius


class Person(NamedTuple):
    """An identity: its neutral face, what its surface reflects, and its way with expressions."""

    vertices: NDArray[np.float32]  # (V, 3)
    albedo: NDArray[np.float32]  # (V,): the share of the light that is reflected
    strength: dict[str, float]  # of each expression
    asymmetry: float  # how much stronger on the left than on the right


def make_person(model: FaceModel, random: np.random.Generator) -> Person:
    """One drawn at random."""
    weights = random.standard_normal(len(model.identity)).astype(np.float32)
    vertices = model.neutral + np.tensordot(weights, model.identity.astype(np.float32), 1)
    strength = {name: random.uniform(0.45, 1.1) for name in RECIPES}
    return Person(vertices, paint(model, random), strength, random.normal(0, 0.12))


def express(model: FaceModel, person: Person, expression: str, random: np.random.Generator) -> NDArray[np.float32]:
    """The vertices of a face that makes an expression, never twice quite the same."""
    names = model.expression_names.tolist()
    weights = np.zeros(len(names), dtype=np.float32)
    for move, amount in RECIPES[expression].items():
        amount *= person.strength[expression] * random.uniform(0.75, 1.25)
        if move in names:
            weights[names.index(move)] += amount
        else:
            weights[names.index(f"{move}_L")] += amount * (1 + person.asymmetry)
            weights[names.index(f"{move}_R")] += amount * (1 - person.asymmetry)
    # No face is quite still.
    restless = ("mouthSmile", "mouthFrown", "eyeBlink", "eyeSquint", "browDown", "browInnerUp", "mouthPress")
    for move in restless:
        both = abs(random.normal(0, 0.08))
        for side in "LR":
            weights[names.index(f"{move}_{side}")] += both
    weights[names.index("jawOpen")] += abs(random.normal(0, 0.03))
    used = np.flatnonzero(weights)
    moved = np.tensordot(weights[used].clip(0, 1.1), model.expression[used].astype(np.float32), 1)
    return np.asarray(person.vertices + moved, dtype=np.float32)


def paint(model: FaceModel, random: np.random.Generator) -> NDArray[np.float32]:
    """What each vertex reflects: skin with blotches, brows, lips, hair, perhaps a beard; eyes, teeth, the mouth."""
    x, y, z = model.neutral.T
    skin, hair = random.uniform(0.22, 0.75), random.uniform(0.03, 0.35)
    albedo = np.full(len(x), skin)
    waves = random.normal(0, 0.25, (6, 3))
    blotches = np.cos(model.neutral @ waves.T * 2 + random.uniform(0, 2 * np.pi, 6)).sum(1) / np.sqrt(6)
    albedo *= np.exp(0.1 * blotches)
    side = np.abs(x)
    if random.random() < 0.3:  # a beard
        below = _soft(-1.2 - 0.25 * side - y) * _soft(y + 10) * _soft(side + 7 - 1.2 * np.abs(y + 1))
        albedo = _mix(albedo, hair, random.uniform(0.2, 0.7) * below)
    lips = _soft(2.6 * (1 - (x / 2.7) ** 2 - ((y + 3.4) / 1.25) ** 2)) * _soft(4 * (z - 9))
    albedo = _mix(albedo, skin * random.uniform(0.5, 0.85), lips)
    height, thickness = random.normal(5.6, 0.15), random.uniform(0.3, 0.5)
    arch = height + 0.6 - 0.11 * (side - 3.9) ** 2
    brows = _soft(8 * (thickness - np.abs(y - arch))) * _soft(6 * (side - 1.2)) * _soft(6 * (5.9 - side)) * (z > 5)
    albedo = _mix(albedo, 0.5 * hair, random.uniform(0.7, 1.0) * brows)
    if random.random() < 0.85:  # hair
        back = np.zeros(len(x), dtype=bool)
        back[model.vertices_of("M_BackHead")] = True
        line = random.uniform(8.5, 11)
        top = _soft(3 * (y - line + 0.04 * x**2)) + back * _soft(2 * (y - random.uniform(-8, 0)))
        albedo = _mix(albedo, hair, top.clip(0, 1))
    albedo[model.vertices_of("M_Teeth")] = random.uniform(0.55, 0.8)
    albedo[model.vertices_of("M_GumsTongue")] = 0.2
    iris = random.uniform(0.02, 0.15)
    for name in EYES:
        eye = model.vertices_of(name)
        centre = (model.neutral[eye].min(0) + model.neutral[eye].max(0)) / 2
        away = np.hypot(*(model.neutral[eye] - centre)[:, :2].T)
        front = model.neutral[eye, 2] > centre[2]
        albedo[eye] = _mix(np.full(len(eye), 0.6), iris, front * _soft(12 * (_IRIS - away)))
    return albedo.astype(np.float32)


def _soft(value: NDArray[np.floating]) -> NDArray[np.floating]:
    """From 0 to 1 as the value goes from below 0 to above it."""
    return np.asarray(1 / (1 + np.exp(-np.clip(value, -30, 30))))


def _mix(under: NDArray[np.floating], over: float, share: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.asarray(under * (1 - share) + over * share)
