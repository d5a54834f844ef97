"""Nouns and files of defaults, as people read them."""

from __future__ import annotations

from pathlib import Path

import osfmodel as osf
from osfmodel.entities.files.configuration import Configuration


def test_the_repr_without_a_text_has_what_is_not_as_by_default():
    """Seconds with four digits."""
    assert repr(osf.Effects(hook_time=1 / 3)) == "<Effects hook_time=0.3333>"


def test_a_file_of_defaults_is_named_in_the_shorter_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Configuration(tmp_path / "osf.toml", "", {}).name == "osf.toml"
    assert Configuration(Path("/osf.toml"), "", {}).name == "/osf.toml"
