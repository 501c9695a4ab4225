"""The picture in the guide is what the losses are."""

import pytest

pytestmark = pytest.mark.train
pytest.importorskip("torch")

from docs.loss_curves import PANELS, PICTURE, picture, weights  # noqa: E402


def test_the_committed_picture_is_what_the_script_draws() -> None:
    """A loss that changes changes it: python docs/loss_curves.py."""
    assert PICTURE.read_text() == picture()


def test_every_curve_passes_through_one() -> None:
    """Exactly on-policy every loss takes the plain step, for both signs."""
    for _, settings in PANELS:
        for advantage in (1.0, -1.0):
            assert weights(settings, advantage, [1.0]) == pytest.approx([1.0])
