"""The report in a real browser: no error and no finding on a wide and on a narrow screen."""

import html
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import write_report
from support.finished import MODEL

CHARTS = ("umap", "pca", "norms", "lengths", "timeline")
FIGURES = (*CHARTS, "outcomes", "speed")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


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
  page.querySelector("#map-legend button").click();
  press("Escape");
  const find = page.getElementById("find"), wanted = seen.second.split(",")[0];
  find.value = wanted.toLowerCase();
  find.dispatchEvent(new view.Event("input"));
  const among = page.getElementById("found").textContent;
  seen.sought = [map.querySelectorAll("use:not(.dim)").length, among, tip.textContent];
  find.value = "";
  find.dispatchEvent(new view.Event("input"));
  seen.dimmed = map.querySelectorAll("use.dim").length;
  // pictures load and texts are read in real time, which does not pass here
  seen.saved = {};
  view.Blob = function ([text]) { this.text = text; };
  view.URL.createObjectURL = blob => "text:" + blob.text;
  Object.defineProperty(view.Image.prototype, "src", {
    set(url) { this.url = url; this.onload(); },
  });
  view.CanvasRenderingContext2D.prototype.drawImage = image => { seen.pixels = image.url; };
  view.HTMLAnchorElement.prototype.click = function () {
    seen.saved[this.download] = this.getAttribute("href");
  };
  for (const button of page.querySelectorAll(".save button")) button.click();
  await wait(100);
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
    assert look["sought"][:2] == [1, "1 of 129"]
    assert look["sought"][2].split(",")[0] == look["second"].split(",")[0]
    assert look["dimmed"] == 0
    saved = look["saved"]
    assert set(saved) == {
        *(f"{MODEL}_{name}.{kind}" for name in CHARTS for kind in ("svg", "png", "tsv")),
        *(f"{MODEL}_{name}.tsv" for name in ("outcomes", "speed")),
    }
    assert look["pixels"].startswith("data:image/svg+xml;charset=utf-8,%3Csvg")
    for name, content in saved.items():
        assert content.startswith("data:image/png;" if name.endswith("png") else "text:")
        if name.endswith("svg"):
            ElementTree.fromstring(content.removeprefix("text:"))
            assert "var(" not in content and "class=" not in content, "it needs no style sheet"
            assert "rgb(13, 18, 24)" not in content, "light, also on a dark page"
    head, *rows = (row.split("\t") for row in saved[f"{MODEL}_umap.tsv"].splitlines())
    assert head[:3] == ["text:id", "length", "UMAP 1"] and head[-1] == "protein_name"
    assert [row[0] for row in rows] == list(ids) and {len(row) for row in rows} == {len(head)}
    assert look["violations"] == [] and look["passes"] > 20
