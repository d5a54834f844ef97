"""JSON Schemas: all files that come with osfmodel pass, broken ones do not, and what passes can be read."""

from __future__ import annotations

import json

import jsonschema
import pytest

import osfmodel as osf
from osfmodel.entities.errors import DataError
from osfmodel.entities.files import documents
from osfmodel.show.schemas import ENDING, SCHEMAS, schema_of
from tests.commands import invoke
from tests.conftest import ROOT

PROFILES = ROOT / "profiles"
FILES = {
    "workload": sorted((PROFILES / "workloads").glob("*.json")),
    "cluster": sorted((PROFILES / "clusters").glob("*.json")),
    "measurements": sorted((PROFILES / "measurements").glob("*.json")),
    "bands": [PROFILES / "bands.json"],
    "effects": [PROFILES / "effects.json"],
}


def faults(kind: str, document: object) -> list[str]:
    """The faults of a document, by its schema."""
    found = jsonschema.Draft202012Validator(schema_of(kind)).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


def test_every_kind_of_file_has_a_schema_that_is_one():
    assert set(SCHEMAS) == set(documents.KINDS)
    for kind in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(schema_of(kind))


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FILES)
def test_bundled_files_pass(kind, every):
    """One file of so many."""
    assert FILES[kind]
    wrong = {path.name: faults(kind, json.loads(path.read_text(encoding="utf-8"))) for path in FILES[kind][::every]}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_saved_plans_and_those_in_the_output_of_tune_pass(tmp_path):
    subject = ["alexnet-pipedream", "--cluster", "v100-10gbe", "--workers", "16"]
    done = invoke(["tune", *subject, "--format", "json"])
    assert faults("plan", json.loads(done.stdout)["plan"]) == []
    workload, cluster = osf.load_workload(subject[0]), osf.load_cluster(subject[2])
    for name in ("ddp", "sparse:1%,cap:25MiB,release,mirror", "fsdp2", "byte-scheduler"):
        osf.save(osf.predict(workload, cluster, name, 16).plan, tmp_path / "plan.json")
        assert faults("plan", json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))) == []


def broken(kind: str) -> dict[str, object]:
    """A file of the kind with one fault."""
    plan = {"schema_version": 1, "workload": "w", "buckets": [{"blocks": [{"layer": "a", "offset": 0, "bytes": "8"}]}]}
    if kind == "plan":
        return plan
    document = json.loads(FILES[kind][0].read_text(encoding="utf-8"))
    changes = {
        "workload": {"update_tme_s": 0.5},
        "cluster": {"gpus_per_node": "four"},
        "measurements": {"runs": [{"workload": "w", "cluster": "c", "plan": "ddp"}]},
        "bands": {"levels": "0.9"},
        "effects": {"values": [{"effect": "hook_time"}]},
    }
    return {**document, **changes[kind]}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_broken_file_of_each_kind_fails_as_it_does_when_it_is_read(kind):
    document = broken(kind)
    assert len(faults(kind, document)) >= 1
    with pytest.raises(DataError):
        documents.decode(json.dumps(document).encode(), kind, SCHEMAS[kind].struct())


@pytest.mark.parametrize("kind", SCHEMAS)
def test_files_of_another_kind_or_version_fail(kind):
    document = (
        json.loads(FILES[kind][0].read_text(encoding="utf-8")) if kind in FILES else {"workload": "w", "buckets": []}
    )
    assert faults(kind, {**document, "schema_version": 1}) == []
    assert faults(kind, {**document, "schema_version": 2}) == ["$.schema_version: 1 was expected"]
    assert faults(kind, {**document, "schema_version": 1, "kind": "other"}) == [f"$.kind: '{kind}' was expected"]


def test_fields_have_their_meaning():
    found = schema_of("workload")["$defs"]["Layer"]["properties"]
    assert found["forward_time_s"]["description"] == "seconds of forward computation"
    assert "Hockney" in schema_of("cluster")["$defs"]["AlphaBeta"]["description"]
    assert schema_of("plan")["$defs"]["Plan"]["properties"]["mirror"]["description"].startswith("whether sparse")


def run(*words):
    return invoke(["list", "schemas", *map(str, words)])


def test_the_command_lists_prints_and_writes_them(tmp_path):
    assert all(kind in run().stdout for kind in SCHEMAS)
    assert json.loads(run("workload").stdout) == schema_of("workload")
    done = run("cluster", "-o", tmp_path / "cluster.json")
    assert done.stderr == f"osf: wrote {tmp_path / 'cluster.json'} (schema of cluster)\n"
    assert json.loads((tmp_path / "cluster.json").read_text(encoding="utf-8")) == schema_of("cluster")
    assert run("-o", f"{tmp_path}/all/").exit_code == 0
    written = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "all").iterdir()}
    assert written == {f"{kind}{ENDING}": schema_of(kind) for kind in SCHEMAS}
    assert run("plan", "-o", tmp_path / "all").stderr == f"osf: wrote {tmp_path}/all/plan{ENDING} (schema of plan)\n"


def test_a_schema_is_json_alone():
    done = run("workload", "--format", "csv")
    assert (done.exit_code, done.stderr) == (2, "osf: --format csv: a schema is JSON: leave it out\n")
    assert "there is no 'workloads' in 'osf list schemas'" in run("workloads").stderr
