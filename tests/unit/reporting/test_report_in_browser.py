"""The report in a real browser: no error and no finding on a wide and on a narrow screen."""

import importlib.util
import json
from pathlib import Path

import pytest

from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import write_report
from support.browser import needs_browser, seen

ID = "sp|P11736|CU32_LOCMI"

HARNESS = """<!doctype html><body><script>
const results = [], wait = ms => new Promise(done => setTimeout(done, ms));
async function look(width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px`;
  frame.src = "report.html";
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  await wait(500);
  const page = frame.contentDocument, view = frame.contentWindow;
  const seen = { width, scroll: page.documentElement.scrollWidth };
  const [canvas, tip, stage] = ["canvas", ".tip", ".stage"].map(name => page.querySelector(name));
  const press = key =>
    canvas.dispatchEvent(new view.KeyboardEvent("keydown", { key, bubbles: true }));
  const change = (id, value) => {
    page.getElementById(id).value = value;
    page.getElementById(id).dispatchEvent(new view.Event(id === "find" ? "input" : "change"));
  };
  const colors = () => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const kinds = new Set();
    for (let at = 0; at < data.length; at += 4)
      if (data[at + 3] > 200) kinds.add(data.slice(at, at + 3).join());
    return kinds.size;
  };
  seen.large = stage.clientWidth * stage.clientHeight;
  seen.colorings = [...page.getElementById("coloring").options].map(one => one.value);
  change("coloring", "length");
  seen.continuous = colors();
  change("coloring", "assembly_id");
  seen.legend = page.querySelectorAll("#legend button").length;
  page.querySelector("#legend button").click();
  seen.pressed = page.querySelectorAll("#legend [aria-pressed=true]").length;
  page.querySelector("#legend button").click();
  change("find", ID.toLowerCase());
  seen.sought = [page.getElementById("matches").textContent, tip.textContent];
  const left = parseFloat(tip.style.left) + tip.offsetWidth / 2;
  press("+"); press("+");
  seen.zoomed = Math.abs(parseFloat(tip.style.left) + tip.offsetWidth / 2 - left) > 1;
  const point = (kind, clientX, clientY = 0) => canvas.dispatchEvent(
    new view.PointerEvent(kind, { pointerId: 1, clientX, clientY, bubbles: true }));
  canvas.setPointerCapture = () => {};
  const before = canvas.toDataURL();
  for (const [kind, x] of [["down", 200], ["move", 240], ["up", 240]]) point(`pointer${kind}`, x);
  seen.moved = [canvas.toDataURL() !== before, tip.textContent];
  point("lostpointercapture", 0);
  press("ArrowRight");
  seen.back = canvas.toDataURL() === before;
  canvas.focus();
  canvas.dispatchEvent(new view.WheelEvent("wheel", { deltaY: -300, cancelable: true }));
  seen.wheel = canvas.toDataURL() !== before;
  press("Escape");
  seen.hidden = tip.style.visibility;
  change("find", "XFD33108.1");
  seen.skipped = page.getElementById("matches").textContent;
  change("find", "no such id");
  seen.absent = page.getElementById("matches").textContent;
  change("find", "");
  page.querySelectorAll("details").forEach(one => one.open = true);
  const axe = page.createElement("script");
  axe.textContent = AXE;
  page.body.append(axe);
  const { violations, passes } = await view.axe.run();
  seen.passes = passes.length;
  seen.violations = violations.map(one => [one.help, one.nodes.map(node => node.html)]);
  results.push(seen);
}
look(WIDTH).catch(error => results.push(String(error))).then(() => {
  const result = document.createElement("pre");
  result.textContent = "FOUND" + JSON.stringify(results) + "END";
  document.body.append(result);
});
</script></body>"""


@pytest.mark.workflow
@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 390)])
def test_a_browser_draws_and_axe_finds_nothing(
    results: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    """Wide and light, narrow and dark: map, search, colors; axe finds nothing."""
    report = tmp_path / "report.html"
    write_report(collect(results), report)
    # many kept columns, whose numbers are not finite, come before the length
    kept = [{"name": f"kept {n}", "numbers": [None] * 129} for n in range(8)]
    text = report.read_text(encoding="utf-8")
    assert text.count('"columns": [') == 1
    longer = f'"columns": [{json.dumps(kept)[1:-1]}, '
    report.write_text(text.replace('"columns": [', longer), encoding="utf-8")
    spec = importlib.util.find_spec("axe_core_python")
    assert spec and spec.origin
    axe = Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    text = json.dumps(axe).replace("</", "<\\/")
    harness = (
        HARNESS.replace("WIDTH", str(width)).replace("ID", json.dumps(ID)).replace("AXE", text)
    )
    (look,) = seen(tmp_path, harness, dark=scheme == "dark")
    assert isinstance(look, dict), look
    assert look["scroll"] <= look["width"], "nothing sticks out to the right"
    assert look["large"] > 100_000
    assert look["colorings"][8:] == ["length", "assembly_id", "protein_name"]
    assert look["continuous"] > 20, "a scale of colors"
    assert (look["legend"], look["pressed"]) == (8, 1)
    assert look["sought"][0] == ID and look["sought"][1].startswith(f"{ID}\n")
    assert "\nlength: " in look["sought"][1]
    assert look["zoomed"] and look["hidden"] == "hidden"
    assert look["moved"][0] and look["moved"][1].startswith(f"{ID}\n"), "a drag selects nothing"
    assert look["back"] and look["wheel"]
    assert look["skipped"] == "XFD33108.1: skipped, unknown residues."
    assert look["absent"] == "No record found."
    assert look["violations"] == [] and look["passes"] > 20
