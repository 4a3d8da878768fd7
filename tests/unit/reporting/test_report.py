"""The report: whole and in part, offline, and in a real browser without an error on a wide and on a
narrow screen.
"""

import html
import importlib.util
import json
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.inference.prepare_weights import prepare
from plm_embed.inference.settings import Settings
from plm_embed.jobs.attempts import noted
from plm_embed.jobs.embed_bucket import Embedder
from plm_embed.jobs.gpus import Meter
from plm_embed.keys import bucket_names
from plm_embed.master.gather import gather
from plm_embed.master.validate import validate
from plm_embed.models.manifest import write_manifest
from plm_embed.models.registry import MODELS
from plm_embed.planning.costs import Speed, Work
from plm_embed.planning.forecast import Forecast, Plan, write_plan
from plm_embed.reporting.citing import citation, methods
from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import write_report
from plm_embed.reporting.ro_crate import write_crate
from plm_embed.reporting.summary import summarize
from plm_embed.reporting.usage import comparison, failures
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.normalize import ResiduePolicy
from plm_embed.sequences.summary import read_summary
from plm_embed.sequences.tables import Table
from support import checkpoints
from support.campaigns import seal_sequences

DEMO = Path(__file__).parents[3] / "config" / "demo"
MODEL = "esm2_t3_untrained"
CHARTS = ("umap", "pca", "norms", "lengths", "timeline")
FIGURES = (*CHARTS, "outcomes", "speed")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished and validated campaign over the demo's proteins."""
    root = tmp_path_factory.mktemp("campaign")
    folder, weights = root / "results", root / "weights"
    model = folder / MODEL
    sequences = folder / "sequences"
    inputs = [DEMO / "proteins.fasta", DEMO / "proteins.csv"]
    table = Table("protein_id", "sequence", ("assembly_id", "protein_name"))
    deduplicate(
        inputs,
        sequences,
        buckets=3,
        table=table,
        policy=ResiduePolicy("skip", "remove"),
        memory_mb=1000,
    )
    write_manifest(model / "weights.json", prepare(MODELS[MODEL], checkpoints.DEMO, weights))
    embedder = Embedder(weights, model / "store", Settings(scratch=""))
    with suppress(PlmEmbedError), noted(model / "embedded", "0000", ["0000"], 1, Counter(0)):
        raise PlmEmbedError("no usable <device>\nask for one")
    for name in bucket_names(3):
        with noted(model / "embedded", name, [name], 1, Counter(0) if name == "0000" else None):
            embedder.embed(
                sequences / "buckets" / f"{name}.parquet", model / "embedded" / f"{name}.json"
            )
    killed = {
        "submission": "0001",
        "buckets": ["0001"],
        "host": "x1",
        "job": "17.pbs",
        "workers": 4,
    }
    killed["started"] = collect(folder).runs[1].started
    (model / "attempts" / "killed.json").write_text(json.dumps(killed))
    master = model / "master_esm2_embeddings.h5"
    outputs = master, master.with_suffix(".parquet"), model / "records.parquet"
    gather(
        sequences,
        model / "embedded",
        model / "store",
        *outputs,
        {"workflow_commit": "0123456789abcdef"},
    )
    problems = validate(
        sequences=sequences,
        embedded=model / "embedded",
        store=model / "store",
        weights=weights,
        master=outputs[0],
        index=outputs[1],
        records=outputs[2],
        spot_checks=2,
        report=model / "validation.json",
        checksums=model / "checksums.sha256",
    )
    assert not problems
    plan = Plan(
        made="2026-01-01T00:00:00+00:00",
        model=MODEL,
        weights="",
        verified=True,
        counted="",
        records=150,
        accepted=140,
        unique=129,
        residues=39_565,
        lengths={},
        stored=None,
        reused=None,
        todo=Work(sequences=129, tokens=39_823, flops=1e12),
        forecasts=tuple(
            Forecast(Speed(device, 1000.0, "measured here", ""), 0.01) for device in devices(model)
        ),
        device="",
        local_hours=None,
        bytes={"master": 35_000, "store": 60_000},
        free_bytes=0,
        site="",
        recognized="",
        missing="",
        proposals=(),
        command=(),
    )
    write_plan(model / "plan.json", plan)
    return folder


class Counter(Meter):
    """A GPU's counter that went on by 1.8 MJ, half a kilowatt-hour."""

    def joules(self) -> float:
        return 1.8e6


def devices(model: Path) -> list[str]:
    return sorted({run.device for run in collect(model.parent).runs})


def words(page: Path) -> str:
    """The text of a page without its scripts, styles and marks."""
    text = re.sub(
        r"<(script|style).*?</\1>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))


def test_a_finished_campaign_has_everything(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(collect(results), page)
    text = words(page)
    for expected in (
        "complete and validated",
        "sp|P11736|CU32_LOCMI",
        "XFD33108.1 unknown residues J at 82",
        "keys ✓ passed Each distinct sequence has one row",
        "master_esm2_embeddings.h5 52.8 kB vectors, one row per distinct sequence",
        "commit: 0123456789abcdef",
        "181 records from 2 files, 129 distinct sequences",
        "51 of them (28.3 %) repeat a sequence",
        "3 of 3 buckets are finished",
        "upper cased",
        "sequences to compute 129 129 1.00",
        "hours on",
        "3 submissions, started 5 times; 1 failed; 1 without an end",
        "1 kWh, by the counters of the GPUs in 2 of 5 attempts",
        "nothing: every vector was computed",
        "51 records (about",
        "0000 " + collect(results).attempts[0].started[:10],
        "no usable <device> ask for one",
        "x1, job 17.pbs no end: killed",
        "14 checks, each over every row; 2 vectors computed again",
        "0123456789abcdef",
        "doi:10.1126/science.ade2574",
        "Embeddings of 180 protein sequences (129 distinct; 1 of 181 records were skipped)",
    ):
        assert expected in text
    assert page.stat().st_size < 300_000
    raw = page.read_text(encoding="utf-8")
    assert all(f'id="figure-{name}"' in raw for name in FIGURES)
    for name in CHARTS:  # a text alternative and a stop of the keyboard each
        assert f'tabindex="0" aria-labelledby="title-{name}" aria-describedby="words-{name}"' in raw
    assert "default-src 'none'" in raw and "JavaScript is off" in raw
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:|#)", raw), (
        "it loads nothing"
    )


@pytest.mark.parametrize(
    "missing", ["validation.json", "plan.json", "master_esm2_embeddings.h5", ""]
)
def test_an_unfinished_campaign_has_what_there_is(
    results: Path, tmp_path: Path, missing: str
) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    model = copy / MODEL
    for path in (model / "validation.json", model / missing):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    result = CliRunner().invoke(group, ["report", str(copy)], catch_exceptions=False)
    page = (model if missing else copy) / "report.html"
    assert str(page) in result.output
    text = words(page)
    assert (
        "not finished yet" in text
        and "Not validated yet" in text
        and "Lengths of the distinct sequences" in text
    )
    assert ("There is no master file yet" in text) == (missing in ("", "master_esm2_embeddings.h5"))
    assert ("No bucket is finished yet" in text) == (missing == "")


def test_what_repeats_a_run_is_kept_beside_its_report(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    config = tmp_path / "mine.json"
    settings = {
        "inputs": [str(DEMO / "proteins.fasta")],
        "model": MODEL,
        "weights": str(checkpoints.DEMO),
    }
    config.write_text(json.dumps(settings))
    command = ["report", str(copy), "--configfile", str(config)]
    CliRunner().invoke(group, command, catch_exceptions=False)
    kept = copy / MODEL / "config.yaml"
    found = yaml.safe_load(kept.read_text(encoding="utf-8"))
    assert found["inputs"] == settings["inputs"] and found["model"] == [MODEL]
    assert found["residues"]["unknown"] == "skip", "defaults are named"
    text = words(copy / MODEL / "report.html")
    assert f"snakemake --configfile {kept} --cores all" in text
    assert "skipped.tsv has them all" in text
    config.write_text("{")
    with pytest.raises(PlmEmbedError, match=r"mine\.json"):
        CliRunner().invoke(group, command, catch_exceptions=False)


def test_the_crate_names_every_file_and_every_attribute(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    CliRunner().invoke(group, ["report", str(copy)], catch_exceptions=False)
    crate = json.loads((copy / MODEL / "ro-crate-metadata.json").read_text())
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert len(entities) == len(crate["@graph"])
    root = entities["./"]
    assert entities["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    for part in root["hasPart"]:
        assert (copy / MODEL / part["@id"]).stat().st_size == int(
            entities[part["@id"]]["contentSize"]
        )
    assert {"report.html", "records.parquet", "master_esm2_embeddings.h5"} <= set(entities)
    told = {entities[one["@id"]]["name"] for one in root["additionalProperty"]}
    assert told == set(collect(copy).metadata) and "workflow_commit" in told
    assert entities["#plm-embed"]["license"] == {"@id": "https://spdx.org/licenses/MIT"}
    assert "terms of the inputs apply" in entities[root["license"]["@id"]]["description"]
    assert entities["#weights"]["sha256"] == collect(copy).fingerprint.weights_sha256


def test_the_crate_is_flattened_json_ld_after_the_specification(
    results: Path, tmp_path: Path
) -> None:
    """What RO-Crate 1.1 demands: one flat graph, a descriptor, a root with its four properties,
    files that exist.
    """
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    facts = collect(copy)
    facts.model = "esm2_t6_8M_UR50D"
    assert facts.weights is not None
    facts.weights = replace(facts.weights, published="sha256")
    write_crate(facts)
    crate = json.loads((copy / MODEL / "ro-crate-metadata.json").read_text())
    assert crate["@context"] == "https://w3id.org/ro/crate/1.1/context" and set(crate) == {
        "@context",
        "@graph",
    }
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    descriptor = entities["ro-crate-metadata.json"]
    assert descriptor["@type"] == "CreativeWork"
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    root = entities[descriptor["about"]["@id"]]
    assert root["@type"] == "Dataset" and {
        "name",
        "description",
        "datePublished",
        "license",
    } <= set(root)
    assert datetime.fromisoformat(root["datePublished"]).tzinfo
    action = entities["#embedding"]
    assert datetime.fromisoformat(action["startTime"]) <= datetime.fromisoformat(action["endTime"])
    assert {one["@id"] for one in action["object"]} == {"#input-1", "#input-2", "#weights"}
    assert entities["#weights"]["url"].endswith("esm2_t6_8M_UR50D.pt")
    for entity in crate["@graph"]:
        assert {"@id", "@type"} <= set(entity)
        assert entity["@type"] != "File" or (copy / MODEL / entity["@id"]).is_file()
        for name, value in entity.items():
            for one in value if isinstance(value, list) else [value]:
                assert not isinstance(one, dict) or set(one) == {"@id"}, f"{name}: not flat"
                # nothing is referred to that is not there, but for the specification itself
                assert (
                    not isinstance(one, dict) or name == "conformsTo" or one["@id"] in entities
                ), one


def test_plan_and_fact_are_of_the_same_work(results: Path) -> None:
    facts = collect(results)
    assert facts.plan
    (hours,) = [row for row in comparison(facts) if row[0].startswith("hours on")]
    mine = [one for one in facts.attempts if one.outcome == "complete"]
    # the attempt that failed ended before the first bucket began, and the killed one has no end
    assert float(hours[2]) == pytest.approx(sum(one.seconds for one in mine) / 3600, abs=6e-4)
    facts.plan = replace(facts.plan, made="2999")
    assert [row[2] for row in comparison(facts) if row[0] == "sequences to compute"] == ["0"]
    facts.attempts = []
    facts.plan = replace(facts.plan, made="")
    (hours,) = [row for row in comparison(facts) if row[0].startswith("hours on")]
    assert float(hours[2]) == pytest.approx(sum(run.seconds for run in facts.runs) / 3600, abs=6e-4)
    assert not failures(facts)


def test_a_folder_without_a_campaign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="nothing of a campaign"):
        collect(tmp_path)


def test_text_from_the_input_is_no_markup(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    first, *others = read_summary(copy / "sequences").inputs
    named = replace(first, path="<script>alert(1)</script>")
    seal_sequences(copy / "sequences", inputs=(named, *others))
    write_report(collect(copy), tmp_path / "report.html")
    assert "<script>alert(1)" not in (tmp_path / "report.html").read_text()


def test_methods_and_citation_name_what_was_done(results: Path) -> None:
    facts = collect(results)
    assert "computed with weights of SHA-256" in methods(facts)
    assert "(commit 0123456789ab)" in methods(facts) and "embedded in one piece" in methods(facts)
    facts.model = "esm1v_t33_650M_UR90S_1"
    assert "Meier" in citation(facts)


def said_of_weights(results: Path) -> dict[str, str]:
    """Every text that names the model of a campaign."""
    facts = collect(results)
    write_report(facts, facts.folder / "report.html")
    write_crate(facts)
    texts = {
        name: (facts.folder / name).read_text()
        for name in ("report.html", "ro-crate-metadata.json")
    }
    texts["report.html"] = texts["report.html"].partition("</header>")[0].partition("<header>")[2]
    return texts | {
        "methods": methods(facts),
        "citation": citation(facts),
        "summary": summarize(results),
    }


def test_what_is_not_known_to_be_published_is_said_to_be_so_everywhere(
    results: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    for text in said_of_weights(copy).values():
        assert (
            "random numbers, not the published weights of any model: these vectors mean nothing"
            in text
        )
    facts = collect(copy)
    assert facts.weights is not None
    other = replace(
        facts.weights, published="sha256", weights_sha256="0" * 64
    )  # of other weights: proves nothing
    facts.model = "esm2_t6_8M_UR50D"
    for weights, word in (
        (None, "nothing here says where they came from"),
        (facts.weights, "not a published file, and other answers"),
        (
            replace(facts.weights, published="known answers"),
            "as weights that were changed a little would too",
        ),
    ):
        facts.weights = weights
        assert (
            facts.caveat.startswith("not verified as the published weights: ")
            and word in facts.caveat
        )
        assert facts.caveat in methods(facts) and "architecture of esm2_t6_8M_UR50D" in methods(
            facts
        )
        assert (
            citation(facts).splitlines()[1]
            == f"The weights are {facts.caveat}. For the architecture alone:"
        )
    facts.weights = replace(facts.weights, published="sha256")
    assert facts.caveat == "" and "esm2_t6_8M_UR50D (the published weights, SHA-256" in methods(
        facts
    )
    assert citation(facts).splitlines()[1].startswith("Lin Z.")
    write_manifest(copy / MODEL / "weights.json", other)
    assert collect(copy).weights is None


HARNESS = """<!doctype html><body><script>
const found = [], wait = ms => new Promise(done => setTimeout(done, ms));
async function look(width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px`;
  frame.src = "report.html";
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  await wait(500);
  const page = frame.contentDocument, view = frame.contentWindow;
  const seen = { width, scroll: page.documentElement.scrollWidth };
  seen.drawn = [...page.querySelectorAll(".chart")].filter(chart => {
    const marks = [...chart.querySelectorAll("rect, use, .bar")];
    return marks.some(mark => mark.getBoundingClientRect().width > 0)
      && chart.getBoundingClientRect().right <= width;
  }).map(chart => chart.id);
  const map = page.querySelector("#figure-umap .plot"), tip = map.querySelector(".tip");
  const lit = () => [...page.querySelectorAll("use.lit")].map(mark => mark.closest("figure").id);
  const press = key => map.dispatchEvent(new view.KeyboardEvent("keydown", { key, bubbles: true }));
  const mark = map.querySelectorAll("use")[5].getBoundingClientRect();
  map.dispatchEvent(new view.PointerEvent("pointermove",
    { clientX: mark.left + mark.width / 2, clientY: mark.top + mark.height / 2 }));
  seen.hover = [tip.textContent, lit()];
  press("Escape");
  seen.hidden = [tip.style.visibility, lit()];
  press("ArrowRight");
  seen.first = tip.textContent;
  press("ArrowRight");
  seen.second = tip.textContent;
  const choice = page.getElementById("coloring");
  choice.value = "assembly_id";
  choice.dispatchEvent(new view.Event("change"));
  press("Home");
  seen.colored = [map.querySelectorAll('use[href="#s0"]').length, tip.textContent];
  page.querySelector("#map-legend button").click();
  seen.alone = map.querySelectorAll("use:not(.dim)").length;
  press("Escape");
  page.querySelectorAll("details").forEach(one => one.open = true);
  const axe = page.createElement("script");
  axe.textContent = AXE;
  page.body.append(axe);
  const { violations, passes } = await view.axe.run();
  seen.passes = passes.length;
  seen.violations = violations.map(one => [one.help, one.nodes.map(node => node.html)]);
  found.push(seen);
}
look(WIDTH).catch(error => found.push(String(error))).then(() => {
  const result = document.createElement("pre");
  result.textContent = "FOUND" + JSON.stringify(found) + "END";
  document.body.append(result);
});
</script></body>"""


@pytest.mark.workflow
@pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_browser_draws_and_axe_finds_nothing(
    results: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    """Wide and light, narrow and dark: charts, names by pointer and keyboard, colors, no findings
    of axe-core.
    """
    write_report(collect(results), tmp_path / "report.html")
    spec = importlib.util.find_spec("axe_core_python")
    assert spec and spec.origin
    axe = Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    text = json.dumps(axe).replace("</", "<\\/")
    harness = HARNESS.replace("WIDTH", str(width)).replace("AXE", text)
    (tmp_path / "harness.html").write_text(harness, encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=60000"]
    command += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    command += ["--dump-dom", (tmp_path / "harness.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "CONSOLE" not in done.stderr
    told = re.search(r"<pre>FOUND(.*?)END</pre>", done.stdout)
    assert told, done.stdout[-2000:]
    ids = collect(results).sample.ids
    (look,) = json.loads(html.unescape(told[1]))
    assert sorted(look["drawn"]) == sorted(f"figure-{name}" for name in FIGURES)
    assert look["scroll"] <= look["width"], "nothing sticks out to the right"
    assert look["hover"][0].startswith(f"{ids[5]}, ")
    assert look["hover"][1] == ["figure-umap", "figure-pca"], "lit in both maps"
    assert look["hidden"] == ["hidden", []]
    assert look["first"] != look["second"] and look["second"].split(",")[0] in ids
    assert look["colored"][0] == look["alone"] == 10 and look["colored"][1].count(",") == 2
    assert look["violations"] == [] and look["passes"] > 20
