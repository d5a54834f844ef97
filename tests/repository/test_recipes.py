"""Recipes with other tools: run by .ci/long, which installs these (the extra ``recipes``), and checked without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from osfmodel.entities.files.profiles import load_plan
from tests.commands import invoke
from tests.conftest import ROOT
from tests.repository.test_docs import FILE, blocks

HOW_TO = ROOT / "docs/how-to"
OPTUNA, LOGGING, LAUNCHING = (
    HOW_TO / f"{name}.md" for name in ("tune-with-optuna", "log-to-wandb-and-mlflow", "run-on-kubernetes-and-slurm")
)
FILES = dict(FILE.findall(LAUNCHING.read_text(encoding="utf-8")))
WORKERS = 16


def run(code, folder):
    """Standard output of a script in a process of its own, offline."""
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def tuned(tmp_path):
    """The settings of the launching page, for a bundled model."""
    words = ["tune", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", str(WORKERS), "--for", "ddp"]
    assert invoke([*words, "--format", "json", "-o", str(tmp_path / "tuned.json")]).exit_code == 0
    return json.loads((tmp_path / "tuned.json").read_text())


@pytest.mark.parametrize("page", [OPTUNA, LOGGING, LAUNCHING], ids=lambda page: page.stem)
def test_the_python_of_the_recipes_compiles(page):
    assert blocks(page, "py")
    for block in blocks(page, "py"):
        compile(block, str(page), "exec")


@pytest.mark.long
def test_the_study_ends_as_the_page_says(tmp_path):
    """After one trial with the tuned plan; without it after as many as the table says, seed by seed."""
    pytest.importorskip("optuna")
    (code,) = blocks(OPTUNA, "py")
    run(code, tmp_path)
    rows = [line.split("|")[1:4] for line in OPTUNA.read_text().splitlines() if line[:3] in ("| 0", "| 1", "| 2")]
    assert len(rows) == 3
    for seed, without, _ in rows:
        alone = code.replace("study.enqueue_trial(tuned)\n", "").replace("seed=0", f"seed={int(seed)}")
        alone = alone.replace(
            "assert len(study.trials) == 1", "print(len(study.trials), study.best_value <= 1.02 * bound)"
        )
        trials, near = run(alone, tmp_path).split()
        assert without.strip() == (trials if near == "True" else f"not within {trials}")


@pytest.mark.long
def test_both_trackers_hold_the_prediction_and_the_steps(tmp_path):
    """Read back from W&B's run before it ends, and from MLflow's database."""
    for package in ("torch", "wandb", "mlflow", "sqlalchemy"):
        pytest.importorskip(package)
    read_back = """
import mlflow
(found,) = mlflow.search_runs(output_format="list")
print(found.data.params["osf/predicted_step_s"] == str(facts["osf/predicted_step_s"]), "osf/time" in found.data.metrics)
print(seen.get("osf/time", 0) > 0, run.config["osf/lower_bound_s"] == facts["osf/lower_bound_s"])
"""
    code = "\n".join(blocks(LOGGING, "py")).replace("run.finish()", "seen = dict(run.summary)\nrun.finish()")
    assert run(f"{code}\n{read_back}", tmp_path).split()[-4:] == ["True"] * 4
    assert list((tmp_path / "wandb").glob("offline-run-*"))


def test_the_train_job_asks_for_the_gpus_that_its_processes_need():
    job = yaml.safe_load(FILES["trainjob.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    trainer = job["spec"]["trainer"]
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == trainer["numProcPerNode"]
    assert trainer["numNodes"] * trainer["numProcPerNode"] == WORKERS
    assert trainer["command"][1].endswith("train.py")
    (variable,) = trainer["env"]
    assert variable["name"] in FILES["train.py"]


def test_the_batch_script_is_one_and_starts_as_many_processes(tmp_path):
    (tmp_path / "job.sh").write_text(FILES["job.sh"])
    subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], check=True, capture_output=True)
    assert "--nnodes 4 --nproc-per-node 4" in FILES["job.sh"]
    assert "train.py" in FILES["job.sh"]


def test_the_scripts_read_the_settings_of_osf_tune(tuned, tmp_path):
    """From a file and from the environment; the same file is a plan."""
    pytest.importorskip("torch")
    ask = f"{FILES['train.py']}\nprint(json.dumps(ddp_arguments()))"
    expected = {"bucket_cap_mb_list": tuned["config"]["bucket_cap_mb_list"]}
    assert json.loads(run(ask, tmp_path)) == expected
    content = (tmp_path / "tuned.json").read_text()
    assert len(content) < 128 * 1024
    given = f"import os\nos.environ['OSF_SETTINGS'] = {content!r}\nos.chdir('/')\n{ask}"
    assert json.loads(run(given, tmp_path)) == expected
    assert len(load_plan(tmp_path / "tuned.json").buckets) == len(expected["bucket_cap_mb_list"])
    assert tuned["workers"] == WORKERS  # which the Ray script asks for
