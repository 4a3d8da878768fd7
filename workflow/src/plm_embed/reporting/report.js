// Hover and keyboard for the charts, colors of the maps, buttons that copy. Without it the page is whole.
document.documentElement.classList.remove("noscript");
const maps = ["umap", "pca"].map(name => document.querySelector(`#figure-${name} .plot`)).filter(Boolean);
const colorings = JSON.parse(document.getElementById("colorings").textContent);
let coloring = colorings[0], alone = "", wanted = "";

function prepare(plot) {
  const marks = [...plot.querySelectorAll("rect, use")].filter(mark => mark.querySelector("title"));
  const tip = plot.querySelector(".tip");
  const words = marks.map(mark => {
    const title = mark.querySelector("title");
    title.remove();
    return title.textContent;
  });
  let boxes = null, shown = -1;
  const group = maps.includes(plot) ? maps : [plot];

  function light(at, on) {
    for (const one of group) one.marks[at]?.classList.toggle("lit", on);
  }
  function show(at) {
    if (shown >= 0) light(shown, false);
    shown = at;
    tip.style.visibility = at < 0 ? "hidden" : "visible";
    if (at < 0) return;
    light(at, true);
    tip.textContent = words[at] + (group.length > 1 && coloring.name !== "length" ? `, ${meaning(at)}` : "");
    const mark = marks[at].getBoundingClientRect(), around = plot.getBoundingClientRect();
    const left = mark.left + mark.width / 2 - around.left - tip.offsetWidth / 2;
    tip.style.left = `${Math.max(0, Math.min(left, around.width - tip.offsetWidth))}px`;
    const above = mark.top - around.top - tip.offsetHeight - 8;
    tip.style.top = `${above > -30 ? above : mark.bottom - around.top + 8}px`;
  }
  function nearest(x, y) {
    boxes ??= marks.map(mark => mark.getBoundingClientRect());
    let best = -1, least = 24 ** 2;
    boxes.forEach((box, at) => {
      if (marks[at].classList.contains("dim")) return;
      const wide = Math.max(box.left - x, 0, x - box.right), high = Math.max(box.top - y, 0, y - box.bottom);
      // of marks that lie on each other, the last is on top
      if (wide ** 2 + high ** 2 <= least) [best, least] = [at, wide ** 2 + high ** 2];
    });
    return best;
  }
  Object.assign(plot, { marks, words, show });
  plot.addEventListener("pointerenter", () => { boxes = null; });
  addEventListener("scroll", () => { boxes = null; }, { passive: true });
  plot.addEventListener("pointermove", event => show(nearest(event.clientX, event.clientY)));
  for (const end of ["pointerleave", "blur"]) plot.addEventListener(end, () => show(-1));

  const order = marks.map((_, at) => at);
  plot.addEventListener("keydown", event => {
    const last = order.length - 1, at = order.indexOf(shown);
    const next = { ArrowRight: Math.min(at + 1, last), ArrowDown: Math.min(at + 1, last), ArrowLeft: Math.max(at - 1, 0),
      ArrowUp: Math.max(at - 1, 0), Home: 0, End: last, Escape: -2 }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    if (maps.includes(plot)) order.sort((a, b) => marks[a].x.baseVal.value - marks[b].x.baseVal.value);
    show(next < 0 ? -1 : order[next]);
  });
}

function meaning(at) {
  return coloring.meanings.find(([symbol]) => symbol === coloring.symbols[at])?.[1] ?? "";
}

// Marks of another color than the one chosen in the legend step back, and those without the text to find.
function dim() {
  const left = [];
  for (const map of maps)
    map.marks.forEach((mark, at) => {
      const out = (alone && coloring.symbols[at] !== alone) || !map.words[at].toLowerCase().includes(wanted);
      mark.classList.toggle("dim", Boolean(out));
      if (!out && map === maps[0]) left.push(at);
    });
  return left;
}

function color(name) {
  coloring = colorings.find(one => one.name === name);
  for (const map of maps) map.marks.forEach((mark, at) => mark.setAttribute("href", `#${coloring.symbols[at]}`));
  alone = "";
  dim();
  const legend = document.getElementById("map-legend");
  legend.replaceChildren(...coloring.meanings.map(([symbol, words, count]) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.innerHTML = `<svg width="14" height="14" aria-hidden="true"><use href="#${symbol}" x="7" y="7"/></svg>`;
    button.append(`${words} (${count.toLocaleString("en")})`);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      alone = button.getAttribute("aria-pressed") === "false" ? symbol : "";
      legend.querySelectorAll("button").forEach(one => one.setAttribute("aria-pressed", "false"));
      button.setAttribute("aria-pressed", String(alone === symbol));
      dim();
    });
    item.append(button);
    return item;
  }));
}

document.querySelectorAll(".plot").forEach(prepare);
const choice = document.getElementById("coloring");
if (choice) {
  choice.addEventListener("change", () => color(choice.value));
  color(choice.value);
  const find = document.getElementById("find"), found = document.getElementById("found");
  find.addEventListener("input", () => {
    wanted = find.value.toLowerCase();
    const left = dim();
    found.textContent = wanted ? `${left.length.toLocaleString("en")} of ${maps[0].marks.length.toLocaleString("en")}` : "";
    maps[0].show(wanted && left.length === 1 ? left[0] : -1);
  });
}
document.querySelectorAll(".copy").forEach(button => button.addEventListener("click", async () => {
  const text = button.parentElement.querySelector("pre, p").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("pre, p"));
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}));
const links = [...document.querySelectorAll("nav a")];
const watcher = new IntersectionObserver(entries => entries.forEach(entry => {
  if (!entry.isIntersecting) return;
  links.forEach(link => link.classList.toggle("here", link.hash === `#${entry.target.id}`));
  const here = links.find(link => link.classList.contains("here"));
  here.closest("nav").scrollLeft = here.offsetLeft - 40;
}), { rootMargin: "-20% 0px -75% 0px" });
document.querySelectorAll("section").forEach(section => watcher.observe(section));
