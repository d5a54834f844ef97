"""The wheel, built from the source distribution, carries everything: installed elsewhere, it lists its profiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import pytest

from osfmodel.entities.files import profiles
from tests.commands import invoke
from tests.conftest import ROOT


@pytest.mark.long
def test_a_wheel_installed_elsewhere_lists_and_predicts(tmp_path):
    pack = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(pack, cwd=ROOT, check=True, capture_output=True)
    (source,) = tmp_path.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*pip, "-w", str(tmp_path), str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = zipfile.ZipFile(wheel)
    names = packed.namelist()
    (commands,) = (name for name in names if name.endswith("/entry_points.txt"))
    assert packed.read(commands).decode().count("osfmodel.cli:run") == 2  # osf, and osfmodel where another is installed
    pages = {f"osfmodel/show/assets/{name}" for name in ("report.css", "report.js", "sweep.js")}
    assert {"osfmodel/py.typed", *pages} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.endswith("make.py") for name in names)
    site = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-compile",
        "--quiet",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    elsewhere = {**os.environ, "PYTHONPATH": str(site)}

    def osf(*arguments):
        command = [sys.executable, "-m", "osfmodel", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=elsewhere, check=True, capture_output=True, text=True).stdout

    where = [sys.executable, "-c", "import osfmodel; print(osfmodel.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=elsewhere, check=True, capture_output=True, text=True).stdout
    assert found.startswith(str(site))
    listed = json.loads(osf("list", "--json"))
    assert {row["name"] for row in listed["workloads"]} == set(profiles.names("workload"))
    assert {row["name"] for row in listed["clusters"]} == set(profiles.names("cluster"))
    # With the same usual effects and bands as the tree: every figure is the same.
    question = ["predict", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "64", "--json"]
    assert json.loads(osf(*question)) == json.loads(invoke(question).stdout)
    osf("report", "alexnet-pipedream", "--cluster", "ring:50us,10Gbps", "--workers", "2", "-o", "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
