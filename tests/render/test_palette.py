"""The colours of kernel families are seen on both pages and differ from one another, with red-green blindness, too."""

import math
from itertools import combinations, pairwise

import pytest

from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.render import icicle
from profiler_job.analysis.render.svg_files import read_colours

KINDS = sorted({colour for colour in icicle.COLOURS.values() if colour.startswith("family-")})
NEIGHBOURS = [(f"family-{first}", f"family-{second}") for first, second in pairwise(FAMILIES)]
"""Families that touch in a bar if all are in it."""

DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
"""Of linear RGB: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
Deficiency", 2009, severity 1."""
TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
"""Björn Ottosson, "A perceptual color space for image processing", 2020."""


def multiply(matrix, values) -> list[float]:
    return [sum(factor * value for factor, value in zip(row, values, strict=True)) for row in matrix]


def linearise(code: str) -> list[float]:
    """Return the linear RGB of a colour of CSS (WCAG 2.2)."""
    values = [number / 255 for number in bytes.fromhex(code.removeprefix("#"))]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]


def measure_contrast(first: str, second: str) -> float:
    luminances = [multiply([(0.2126, 0.7152, 0.0722)], linearise(code))[0] for code in (first, second)]
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def measure_distance(first: str, second: str, as_seen_by: tuple = ()) -> float:
    """Measure the distance in OKLab, of which black and white are 100 apart."""
    places = []
    for code in (first, second):
        seen = multiply(as_seen_by, linearise(code)) if as_seen_by else linearise(code)
        cones = [max(value, 0) ** (1 / 3) for value in multiply(TO_CONES, seen)]
        places.append(multiply(TO_OKLAB, cones))
    return 100 * math.dist(*places)


@pytest.mark.parametrize("colours", read_colours(), ids=["light", "dark"])
def test_each_family_is_seen_on_the_page_and_its_number_on_it(colours):
    """Most families had a contrast of 1.7 to 2.9 on the light page, and the swatch of waiting one of 1.2."""
    for name in (*(f"family-{family}" for family in FAMILIES), "ici-hatch", "below-peak"):
        assert measure_contrast(colours[name], colours["paper"]) >= 3, name
    for name in KINDS:
        assert measure_contrast(colours[name], colours[name.replace("family", "on")]) >= 4.5, name


@pytest.mark.parametrize("colours", read_colours(), ids=["light", "dark"])
def test_families_in_one_figure_differ_with_red_green_blindness_too(colours):
    """Elementwise kernels and copies were 8.9 apart on the light page, copies and the optimizer 5.4 on the dark one."""
    for pairs, least, least_seen in ((combinations(KINDS, 2), 14, 8), (NEIGHBOURS, 11, 7)):
        for first, second in pairs:
            known = (colours[first], colours[second])
            assert measure_distance(*known) >= least, (first, second)
            assert measure_distance(*known, DEUTERANOPIA) >= least_seen, (first, second)
