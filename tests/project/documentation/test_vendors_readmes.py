"""READMEs of the simulated vendors: how to install and use them, every option, and that
they simulate.
"""

from __future__ import annotations

import pytest
from support.folders import PLUGINS
from support.sim_eps import PACKAGES

from epctx_core import Registry


@pytest.fixture(params=PACKAGES, ids=PACKAGES.values())
def ep(request):
    return request.param


@pytest.fixture
def readme(ep):
    return (PLUGINS / PACKAGES[ep] / "README.md").read_text()


def test_the_first_lines_say_that_the_ep_is_simulated(readme):
    title, _, warning = readme.splitlines()[:3]

    assert "a SIMULATED" in title
    assert warning.startswith("**Nothing here talks to")
    assert "refuses" in warning


def test_it_shows_how_to_install_and_use_the_ep(ep, readme):
    assert f"pip install 'epctx-core[cli]' {PACKAGES[ep]}" in readme
    assert "epctx compile model" in readme
    assert "epctx run model" in readme


def test_every_option_is_named(ep, readme):
    registry = Registry()
    cls = registry.load(registry.resolve(ep))

    missing = [
        o.name
        for o in (*cls.options, *cls.dynamic_options)
        if f"`{o.name}`" not in readme
    ]

    assert missing == []
