// The map, the search in it, and the buttons that copy. Without it the rest of the page is whole.
document.documentElement.classList.remove("noscript");
const $ = id => document.getElementById(id);
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a400", "#8c564b", "#7f7f7f", "#6a3d9a"];
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const MOST_MATCHES = 20, NONE = "#9aa5b1";

function decode(text, type) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  return new type(bytes.buffer);
}

// As many different colors as a column has values: a palette first, then hues a golden angle apart.
function category(at) {
  return PALETTE[at] ?? `hsl(${(at * 137.508) % 360} ${55 + 20 * (at % 2)}% ${42 + 12 * (at % 3)}%)`;
}

function ramp(share) {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), low = Math.min(Math.floor(place), RAMP.length - 2);
  return `rgb(${RAMP[low].map((value, n) => Math.round(value + (place - low) * (RAMP[low + 1][n] - value)))})`;
}

function makeMap(data) {
  const canvas = $("canvas"), stage = $("stage"), tip = $("tip"), count = data.ids.length;
  const layouts = data.layouts.map(one => ({ ...one, x: decode(one.x, Uint16Array), y: decode(one.y, Uint16Array), density: one.density && decode(one.density, Uint8Array) }));
  const number = (name, values, log) => ({ name, values, log, text: at => values[at]?.toLocaleString("en") ?? "no value" });
  const colorings = data.columns.map(one => {
    if (one.numbers) return number(one.name, one.numbers, false);
    const codes = decode(one.codes, Uint16Array);
    return { name: one.name, vocabulary: one.values, codes, text: at => one.values[codes[at]] ?? "no value" };
  });
  const kept = [...colorings];
  colorings.splice(data.before_length, 0, number("length", data.lengths, true));
  let layout = layouts[0], coloring = colorings[0], colors = [], alone = -1, chosen = -1, hovered = -1;
  let view = { scale: 1, x: 0.5, y: 0.5 };  // the center, in shares of the layout

  function size() {
    const ratio = devicePixelRatio || 1;
    canvas.width = stage.clientWidth * ratio;
    canvas.height = stage.clientHeight * ratio;
    return ratio;
  }
  // One unit of the layout has the same length in both directions.
  function unit() {
    const [wide, high] = layout.span.map(span => span / Math.max(...layout.span));
    const pixels = 0.92 * view.scale * Math.min(stage.clientWidth / wide, stage.clientHeight / high);
    return [pixels * wide, pixels * high];
  }
  function place(at) {
    const [w, h] = unit();
    return [stage.clientWidth / 2 + (layout.x[at] / 65535 - view.x) * w, stage.clientHeight / 2 - (layout.y[at] / 65535 - view.y) * h];
  }
  function draw() {
    const ratio = size(), context = canvas.getContext("2d"), [w, h] = unit();
    context.scale(ratio, ratio);
    if (layout.density) {
      const image = new ImageData(data.grid, data.grid), shade = matchMedia("(prefers-color-scheme: dark)").matches ? 200 : 90;
      layout.density.forEach((value, cell) => {
        const row = data.grid - 1 - Math.floor(cell / data.grid);
        image.data.set([shade, shade + 15, shade + 30, Math.round(value * 0.45)], 4 * (row * data.grid + cell % data.grid));
      });
      const small = new OffscreenCanvas(data.grid, data.grid);
      small.getContext("2d").putImageData(image, 0, 0);
      context.drawImage(small, stage.clientWidth / 2 - view.x * w, stage.clientHeight / 2 - (1 - view.y) * h, w, h);
    }
    const radius = Math.min(Math.max(70 / Math.sqrt(count) * Math.sqrt(view.scale), 1.3), 5.5);
    const order = new Map();
    colors.forEach((color, at) => (order.get(color) ?? order.set(color, []).get(color)).push(at));
    for (const [color, points] of order) {
      context.fillStyle = color;
      for (const at of points) {
        const [x, y] = place(at);
        if (x < -9 || y < -9 || x > stage.clientWidth + 9 || y > stage.clientHeight + 9) continue;
        context.globalAlpha = alone >= 0 && coloring.codes?.[at] !== alone ? 0.06 : count > 5000 ? 0.6 : 0.85;
        context.beginPath();
        if (radius < 2) context.rect(x - radius, y - radius, 2 * radius, 2 * radius);
        else context.arc(x, y, radius, 0, 7);
        context.fill();
      }
    }
    context.globalAlpha = 1;
    for (const at of [hovered, chosen].filter(at => at >= 0)) {
      const [x, y] = place(at);
      context.strokeStyle = getComputedStyle(document.body).color;
      context.lineWidth = 2.5;
      context.beginPath();
      context.arc(x, y, radius + 4, 0, 7);
      context.stroke();
    }
  }
  function show(at) {
    const marked = at >= 0 ? at : chosen;
    hovered = at;
    tip.style.visibility = marked >= 0 ? "visible" : "hidden";
    if (marked >= 0) {
      const [x, y] = place(marked), others = data.further.filter(([, point]) => point === marked).length;
      tip.textContent = [data.ids[marked], `${data.lengths[marked].toLocaleString("en")} residues`,
        ...kept.map(one => `${one.name}: ${one.text(marked)}`).slice(0, 6),
        ...(others ? [`${others.toLocaleString("en")} other record${others > 1 ? "s" : ""} with this sequence`] : [])].join("\n");
      tip.style.left = `${Math.max(4, Math.min(x - tip.offsetWidth / 2, stage.clientWidth - tip.offsetWidth - 4))}px`;
      tip.style.top = `${y - tip.offsetHeight - 14 > 0 ? y - tip.offsetHeight - 14 : y + 14}px`;
    }
    draw();
  }
  function paint() {
    if (coloring.vocabulary) {
      colors = Array.from(coloring.codes, code => coloring.vocabulary[code] === undefined ? NONE : category(code));
    } else {
      const known = coloring.values.filter(value => value !== null), scaled = coloring.log ? Math.log : value => value;
      const low = scaled(Math.min(...extreme(known))), high = scaled(Math.max(...extreme(known)));
      colors = coloring.values.map(value => value === null ? NONE : ramp((scaled(value) - low) / (high - low || 1)));
    }
    alone = -1;
    legend();
    draw();
  }
  // Math.min takes no 50,000 arguments everywhere.
  function extreme(values) {
    return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [values[0] ?? 0, values[0] ?? 1]);
  }
  function swatch(color, kind = "") {
    const made = document.createElement("i");
    made.className = kind;
    made.style.background = color;
    return made;
  }
  function legend() {
    if (!coloring.vocabulary) {
      const [low, high] = extreme(coloring.values.filter(value => value !== null));
      const steps = [0, .25, .5, .75, 1].map(ramp).join(", ");
      $("legend").replaceChildren(`${coloring.name} ${low.toLocaleString("en")}`, swatch(`linear-gradient(90deg, ${steps})`, "ramp"), `${high.toLocaleString("en")}${coloring.log ? " (logarithmic)" : ""}`);
      return;
    }
    const counts = new Map();
    for (const code of coloring.codes) counts.set(code, (counts.get(code) ?? 0) + 1);
    const codes = [...counts.keys()].sort((a, b) => a - b);
    $("legend").replaceChildren(...codes.map(code => {
      const button = document.createElement("button"), value = coloring.vocabulary[code];
      button.type = "button";
      button.setAttribute("aria-pressed", "false");
      button.append(swatch(value === undefined ? NONE : category(code)), `${value ?? "no value"} (${counts.get(code).toLocaleString("en")})`);
      button.addEventListener("click", () => {
        alone = alone === code ? -1 : code;
        $("legend").querySelectorAll("button").forEach(one => one.setAttribute("aria-pressed", String(one === button && alone === code)));
        draw();
      });
      return button;
    }));
  }
  function zoom(factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
    const [w, h] = unit(), scale = Math.min(Math.max(view.scale * factor, 1), 400);
    const grown = scale / view.scale, dx = (x - stage.clientWidth / 2) / w, dy = -(y - stage.clientHeight / 2) / h;
    view = scale === 1 ? { scale, x: 0.5, y: 0.5 } : { scale, x: view.x + dx * (1 - 1 / grown), y: view.y + dy * (1 - 1 / grown) };
    show(-1);
  }
  function move(dx, dy) {
    const [w, h] = unit();
    view = { ...view, x: view.x - dx / w, y: view.y + dy / h };
    show(-1);
  }
  function nearest(x, y) {
    let best = -1, least = 14 ** 2;
    for (let at = 0; at < count; at++) {
      const [px, py] = place(at), far = (px - x) ** 2 + (py - y) ** 2;
      if (far <= least && !(alone >= 0 && coloring.codes?.[at] !== alone)) [best, least] = [at, far];
    }
    return best;
  }
  const pointers = new Map();
  let spread = 0, dragged = false;
  canvas.addEventListener("pointerdown", event => {
    pointers.set(event.pointerId, event);
    canvas.setPointerCapture?.(event.pointerId);
    [spread, dragged] = [0, false];
  });
  canvas.addEventListener("pointermove", event => {
    const last = pointers.get(event.pointerId);
    if (!last) {
      const at = nearest(event.offsetX, event.offsetY);
      if (at !== hovered) show(at);
      return;
    }
    pointers.set(event.pointerId, event);
    if (pointers.size === 2) {
      const [one, other] = [...pointers.values()], far = Math.hypot(one.offsetX - other.offsetX, one.offsetY - other.offsetY);
      if (spread) zoom(far / spread, (one.offsetX + other.offsetX) / 2, (one.offsetY + other.offsetY) / 2);
      [spread, dragged] = [far, true];
    } else if (Math.hypot(event.offsetX - last.offsetX, event.offsetY - last.offsetY) > 0) {
      dragged = true;
      move(event.offsetX - last.offsetX, event.offsetY - last.offsetY);
    }
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, event => {
    pointers.delete(event.pointerId);
    if (name === "pointerup" && !dragged) { chosen = nearest(event.offsetX, event.offsetY); show(-1); }
  });
  canvas.addEventListener("pointerleave", () => show(-1));
  canvas.addEventListener("dblclick", event => zoom(2, event.offsetX, event.offsetY));
  // The wheel scrolls the page until the map has been clicked, so that nobody is caught by it.
  canvas.addEventListener("wheel", event => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("keydown", event => {
    const act = { "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), Escape: whole, ArrowLeft: () => move(40, 0), ArrowRight: () => move(-40, 0), ArrowUp: () => move(0, 40), ArrowDown: () => move(0, -40) }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  function whole() {
    [view, chosen] = [{ scale: 1, x: 0.5, y: 0.5 }, -1];
    show(-1);
  }
  function choose(at) {
    chosen = at;
    if (view.scale > 1) view = { ...view, x: layout.x[at] / 65535, y: layout.y[at] / 65535 };
    show(-1);
  }
  $("in").addEventListener("click", () => zoom(1.5));
  $("out").addEventListener("click", () => zoom(1 / 1.5));
  $("whole").addEventListener("click", whole);

  const names = [...data.ids, ...data.further.map(([id]) => id)], lower = names.map(name => name.toLowerCase());
  const target = at => at < count ? at : data.further[at - count][1];
  function find() {
    const text = $("find").value.trim().toLowerCase(), matches = [];
    let total = 0;
    if (text) lower.forEach((name, at) => { if (name.includes(text) && ++total <= MOST_MATCHES) matches.push(at); });
    // the whole id comes first
    matches.sort((a, b) => (lower[b] === text) - (lower[a] === text));
    const items = matches.map(at => {
      const where = target(at);
      if (typeof where === "string") return `${names[at]}: skipped, ${where}.`;
      if (where < 0) return `${names[at]}: has a vector, not drawn.`;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = names[at];
      button.addEventListener("click", () => choose(where));
      return button;
    });
    const more = total > MOST_MATCHES ? [`and ${(total - MOST_MATCHES).toLocaleString("en")} more`] : [];
    const lacks = text && !data.complete ? [`This page knows ${names.length.toLocaleString("en")} records. Ask the files for any other: ${document.body.dataset.search}${$("find").value.trim()}`] : [];
    $("matches").replaceChildren(...(text && !total ? ["No record found."] : []), ...items, ...more, ...lacks);
    if (matches.length && (total === 1 || lower[matches[0]] === text) && target(matches[0]) >= 0) choose(target(matches[0]));
    else { chosen = -1; show(-1); }
  }
  $("find").addEventListener("input", find);

  function choices(select, items, change) {
    select.append(...items.map(one => new Option(one.name, one.name)));
    select.addEventListener("change", () => change(items[select.selectedIndex]));
  }
  const say = () => { $("layout-words").textContent = `To the right: ${layout.axes[0]}; upward: ${layout.axes[1]}.${layout.density ? " Gray: density of up to a million vectors." : ""} Click the map, then use the wheel to zoom; drag to move.`; };
  choices($("layout"), layouts, one => { layout = one; say(); whole(); });
  choices($("coloring"), colorings, one => { coloring = one; paint(); });
  $("layout-choice").hidden = layouts.length < 2;
  say();
  paint();
  new ResizeObserver(draw).observe(stage);
}

// The maps of several models side by side, with one selection.
function makeMaps(data) {
  const canvases = [...document.querySelectorAll(".maps canvas")], count = data.ids.length;
  const maps = data.maps.map(map => ({ ...map, x: decode(map.x, Uint16Array), y: decode(map.y, Uint16Array), neighbors: decode(map.neighbors, Uint16Array) }));
  const columns = data.columns.filter(column => column.values).map(column => ({ ...column, codes: decode(column.codes, Uint16Array) }));
  const lower = data.ids.map(id => id.toLowerCase());
  let column = columns[0], selected = -1, ringed = new Set();

  function place(map, canvas, at) {
    const longest = Math.max(...map.span), size = canvas.clientWidth;
    const scaled = (axis, n) => 0.92 * size * (axis[at] / 65535 - 0.5) * map.span[n] / longest;
    return [size / 2 + scaled(map.x, 0), size / 2 - scaled(map.y, 1)];
  }
  function draw() {
    const ink = getComputedStyle(document.body).color, radius = Math.min(Math.max(50 / Math.sqrt(count), 1.5), 4.5);
    canvases.forEach((canvas, n) => {
      const ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
      canvas.width = canvas.height = canvas.clientWidth * ratio;
      context.scale(ratio, ratio);
      const circle = (at, r) => { context.beginPath(); context.arc(...place(maps[n], canvas, at), r, 0, 7); };
      for (let at = 0; at < count; at++) {
        context.globalAlpha = selected < 0 || ringed.has(at) ? 0.8 : 0.35;
        context.fillStyle = column ? (column.values[column.codes[at]] === undefined ? NONE : category(column.codes[at])) : PALETTE[0];
        circle(at, radius);
        context.fill();
      }
      context.globalAlpha = 1;
      context.strokeStyle = context.fillStyle = ink;
      context.lineWidth = 2;
      for (const at of ringed) { circle(at, radius + 3); context.stroke(); }
      if (selected >= 0) { circle(selected, radius + 3); context.fill(); }
    });
  }
  function select(at, n) {
    selected = at;
    ringed = new Set(at < 0 ? [] : maps[n].neighbors.slice(at * data.neighbors, (at + 1) * data.neighbors));
    $("selected").textContent = at < 0 ? "Nothing is selected." : `${data.ids[at]} and its nearest in ${maps[n].name}: ${[...ringed].map(other => data.ids[other]).join(", ")}.`;
    draw();
  }
  function legend() {
    $("legend").replaceChildren(...(column?.values ?? []).slice(0, 60).map((value, code) => {
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.style.background = category(code);
      item.append(swatch, value);
      return item;
    }));
  }
  canvases.forEach((canvas, n) => {
    canvas.nextElementSibling.textContent = `To the right: ${maps[n].axes[0]}; upward: ${maps[n].axes[1]}.`;
    canvas.addEventListener("click", event => {
      let best = -1, least = 14 ** 2;
      for (let at = 0; at < count; at++) {
        const [x, y] = place(maps[n], canvas, at), far = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
        if (far <= least) [best, least] = [at, far];
      }
      select(best, n);
    });
  });
  $("find").addEventListener("input", () => {
    const text = $("find").value.trim().toLowerCase();
    const whole = lower.indexOf(text), at = !text ? -1 : whole >= 0 ? whole : lower.findIndex(id => id.includes(text));
    select(at, 0);
    if (text && at < 0) $("selected").textContent = "No such id among the compared sequences.";
  });
  $("coloring").append(...columns.map(item => new Option(item.name)));
  $("coloring").parentElement.hidden = columns.length < 2;
  $("coloring").addEventListener("change", () => { column = columns[$("coloring").selectedIndex]; legend(); draw(); });
  legend();
  new ResizeObserver(draw).observe(canvases[0]);
}

if ($("comparison-data")) makeMaps(JSON.parse($("comparison-data").textContent));
if ($("map-data")) makeMap(JSON.parse($("map-data").textContent));

document.querySelectorAll(".copy").forEach(button => button.addEventListener("click", async () => {
  const text = button.parentElement.querySelector("pre, p");
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text);
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
