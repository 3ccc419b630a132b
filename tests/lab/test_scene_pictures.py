"""Pictures of scenes against what they should show, and that a linear layer reads scenes from features."""

import numpy as np
import pytest

from softq.errors import DataError
from softq.lab.worlds import Scene, SceneWorld, Thing
from softq.lab.worlds import scene_pictures as pictures
from softq.lab.worlds import scenes as grammar
from softq.lab.worlds.scene_pictures import FEATURES, render, scene_features

SCENES = SceneWorld().sample(600, seed=1, captions=1).scenes
IMAGES = np.stack([render(scene) for scene in SCENES])
DATA = scene_features(IMAGES)


def covered(image, colour):
    """Where an image has about this colour, or a darker one for its border."""
    paint = np.array(pictures._PAINTS[colour], float)
    return np.minimum(*(abs(image - shade * paint).max(2) for shade in (1, pictures._SHADE))) < 12


def test_pictures_show_what_scenes_are():
    for scene, image in zip(SCENES[:100], IMAGES, strict=False):
        assert image.shape == (96, 96, 3)
        assert image.dtype == np.uint8
        centres = []
        for thing in (scene.first, scene.second):
            where = np.argwhere(covered(image, thing.colour)) / 96
            centres.append(where.mean(0))
            high, wide = np.ptp(where, 0)
            assert (
                (0.3 < max(high, wide) < 0.5)
                if thing.size == "big"
                else (0.17 < max(high, wide) < 0.3)
            )
        down, right = centres[1] - centres[0]
        assert (
            (0.35 < down < 0.6 and 0 < right < 0.35)
            if scene.relation == "above"
            else (0.35 < right < 0.6 and 0 < down < 0.35)
        )


def test_the_areas_of_shapes():
    # By pencil and paper, for radius 1: the star is ten triangles of sides 1.12 and 0.5 around 36°,
    # the heart a square and two half discs.
    areas = {
        "circle": np.pi,
        "square": 1.72**2,
        "triangle": 3 * np.sqrt(3) * 0.6**2,
        "star": 10 * 1.12 * 0.5 * np.sin(np.pi / 5) / 2,
        "heart": 2 * 0.85**2 + np.pi * 0.85**2 / 2,
    }
    size, radius = 400, pictures._RADII["big"]
    assert areas.keys() == set(grammar.SHAPES)
    for shape, area in areas.items():
        picture = np.zeros((size, size, 3))
        pictures._paint(picture, shape, (1, 1, 1), np.array([0.5, 0.5]), radius, 0.3)
        filled = picture[..., 0] > pictures._SHADE / 2
        assert filled.sum() / (radius * size) ** 2 == pytest.approx(area, rel=0.02)


def test_edges_are_smooth_and_pictures_scale():
    for scene in SCENES[:10]:
        large, small = render(scene, 384).astype(float), render(scene, 96).astype(float)
        assert abs(large.reshape(96, 4, 96, 4, 3).mean((1, 3)) - small).mean() < 1.0
        assert (
            len(np.unique(small.reshape(-1, 3), axis=0)) > 20
        )  # more than ground, two paints and their borders


def test_jitter_changes_the_picture_and_nothing_else_does():
    scene = SCENES[0]
    other = Scene(scene.first, scene.second, scene.relation, (scene.jitter + 1) % grammar.JITTERS)
    assert (render(scene) == render(Scene.from_name(scene.name))).all()
    assert (render(scene) != render(other)).any()


def test_a_linear_layer_reads_scenes_from_features():
    # Ridge regression on indicators, by 300 scenes, of the other 300.
    inputs = np.c_[DATA, np.ones(len(DATA))].astype(float)
    gram = inputs[:300].T @ inputs[:300] + 10 * np.eye(inputs.shape[1])
    told = {
        f"{kind} {number}": [getattr((scene.first, scene.second)[number], kind) for scene in SCENES]
        for kind in ("shape", "colour", "size")
        for number in (0, 1)
    }
    for name, values in {**told, "relation": [scene.relation for scene in SCENES]}.items():
        classes = sorted(set(values))
        truth = np.array([classes.index(value) for value in values])
        weights = np.linalg.solve(gram, inputs[:300].T @ np.eye(len(classes))[truth[:300]])
        assert ((inputs[300:] @ weights).argmax(1) == truth[300:]).mean() > 0.97, name


def test_features_are_standard():
    assert DATA.shape == (600, FEATURES)
    assert DATA.dtype == np.float32
    assert np.isfinite(DATA).all()
    assert abs(DATA.mean(0)).max() < 0.4
    deviations = DATA.std(0)
    assert deviations.max() < 1.6
    assert 0.6 < np.median(deviations) < 1.1


def test_features_of_an_image_are_its_own():
    assert np.allclose(scene_features(IMAGES[130:133]), DATA[130:133], atol=1e-4)
    assert scene_features(IMAGES[:0]).shape == (0, FEATURES)
    large = np.stack([render(scene, 192) for scene in SCENES[:20]])
    assert np.corrcoef(scene_features(large).ravel(), DATA[:20].ravel())[0, 1] > 0.97


def test_what_cannot_be_seen():
    with pytest.raises(DataError, match="expected pictures of 8 pixels a side or more, got 7"):
        render(SCENES[0], 7)
    for images in (IMAGES[0], IMAGES[:2, :40], IMAGES[:2, ..., :2], IMAGES[:2].astype(float)):
        with pytest.raises(
            DataError,
            match=(
                r"expected uint8 images \[N, H, W, 3\] of 48 pixels a side or more, got .* of shape"
            ),
        ):
            scene_features(images)


def test_every_thing_has_a_paint_and_a_shape():
    for shape in grammar.SHAPES:
        for colour in grammar.COLOURS:
            other = "red" if colour != "red" else "blue"
            image = render(
                Scene(Thing(shape, colour, "big"), Thing("circle", other, "small"), "above")
            )
            assert covered(image, colour).sum() > 300
