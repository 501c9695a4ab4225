"""A tiny model as files, and its weights as folders. No torch is needed to collect these."""

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model as files."""
    from tests.support.tiny_model import save_tiny

    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def weights(tmp_path):
    """Publishes the weights of a model that is made from a seed, as that version."""
    from tests.support.tiny_model import tiny_model
    from verifiers.train.weights import WeightFolders

    folders = WeightFolders(tmp_path / "weights", durable=False)
    return lambda version: folders.publish(version, tiny_model(seed=version))
