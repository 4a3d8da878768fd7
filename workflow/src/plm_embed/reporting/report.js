// The maps, the search in them, and the buttons that copy. Without it the rest of the page is whole.
document.documentElement.classList.remove("noscript");
const $ = id => document.getElementById(id);
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a400", "#8c564b", "#7f7f7f", "#6a3d9a"];
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const MOST_MATCHES = 20, NONE = "#9aa5b1", WHOLE = { scale: 1, x: 0.5, y: 0.5 };  // the center, in shares of the layout
const english = number => number.toLocaleString("en");

function decode(text, type) {
  return new type(Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer);
}

// As many different colors as a column has values: a palette first, then hues a golden angle apart.
function category(code) {
  return PALETTE[code] ?? `hsl(${(code * 137.508) % 360} ${55 + 20 * (code % 2)}% ${42 + 12 * (code % 3)}%)`;
}

function ramp(share) {
  const place = share * (RAMP.length - 1), low = Math.min(Math.floor(place), RAMP.length - 2);
  return `rgb(${RAMP[low].map((value, n) => Math.round(value + (place - low) * (RAMP[low + 1][n] - value)))})`;
}

function element(tag, properties, ...content) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...content);
  return made;
}

// One map in a report, one for each model in a comparison: colors and selection are those of all.
function makeMaps(data) {
  const count = data.ids.length, textOf = value => typeof value === "number" ? english(value) : value ?? "no value";
  const kept = data.columns.map(({ name, numbers, values, codes }) => {
    codes = codes && decode(codes, Uint16Array);
    return { name, numbers, values, codes, text: at => textOf(numbers ? numbers[at] : values[codes[at]]) };
  });
  const colorings = [...kept];
  colorings.splice(data.before_length, 0, { name: "length", numbers: data.lengths, log: true });
  let coloring = colorings[0], colors = [], alone = -1, chosen = -1, ringed = [];
  const faded = at => alone >= 0 && coloring.codes?.[at] !== alone;

  function makeMap(stage, { name, layouts, neighbors }) {
    const canvas = stage.querySelector("canvas"), tip = stage.querySelector(".tip"), words = stage.nextElementSibling;
    layouts = layouts.map(({ x, y, density, ...rest }) => ({ ...rest, x: decode(x, Uint16Array), y: decode(y, Uint16Array), density: density && decode(density, Uint8Array) }));
    neighbors = neighbors && decode(neighbors, Uint16Array);
    let layout, view, hovered = -1;

    // One unit of the layout has the same length in both directions.
    function unit() {
      const [wide, high] = layout.span.map(span => span / Math.max(...layout.span));
      const pixels = 0.92 * view.scale * Math.min(stage.clientWidth / wide, stage.clientHeight / high);
      return [pixels * wide, pixels * high];
    }
    // Return the function from a point to its place in the stage.
    function placing() {
      const [w, h] = unit(), left = stage.clientWidth / 2 - view.x * w, low = stage.clientHeight / 2 + view.y * h;
      return at => [left + layout.x[at] / 65535 * w, low - layout.y[at] / 65535 * h];
    }
    function drawDensity(context) {
      const [w, h] = unit(), image = new ImageData(data.grid, data.grid), shade = matchMedia("(prefers-color-scheme: dark)").matches ? 200 : 90;
      layout.density.forEach((value, cell) => {
        const row = data.grid - 1 - Math.floor(cell / data.grid);
        image.data.set([shade, shade + 15, shade + 30, Math.round(value * 0.45)], 4 * (row * data.grid + cell % data.grid));
      });
      const small = new OffscreenCanvas(data.grid, data.grid);
      small.getContext("2d").putImageData(image, 0, 0);
      context.drawImage(small, stage.clientWidth / 2 - view.x * w, stage.clientHeight / 2 - (1 - view.y) * h, w, h);
    }
    function draw() {
      const ratio = devicePixelRatio || 1, context = canvas.getContext("2d"), place = placing();
      const wide = stage.clientWidth, high = stage.clientHeight;
      canvas.width = wide * ratio;
      canvas.height = high * ratio;
      context.scale(ratio, ratio);
      if (layout.density) drawDensity(context);
      const radius = Math.min(Math.max(wide / 14 / Math.sqrt(count) * Math.sqrt(view.scale), 1.3), 5.5);
      colors.forEach((color, at) => {
        const [x, y] = place(at);
        if (x < -9 || y < -9 || x > wide + 9 || y > high + 9) return;
        context.globalAlpha = faded(at) ? 0.06 : count > 5000 ? 0.6 : 0.85;
        context.fillStyle = color;
        context.beginPath();
        if (radius < 2) context.rect(x - radius, y - radius, 2 * radius, 2 * radius);
        else context.arc(x, y, radius, 0, 7);
        context.fill();
      });
      context.globalAlpha = 1;
      context.strokeStyle = context.fillStyle = getComputedStyle(document.body).color;
      for (const at of [hovered, chosen, ...ringed].filter(at => at >= 0)) {
        context.lineWidth = at === chosen ? 4 : 2;
        context.beginPath();
        context.arc(...place(at), radius + 4, 0, 7);
        context.stroke();
      }
      label(hovered >= 0 ? hovered : chosen);
    }
    function label(at) {
      tip.style.visibility = at >= 0 ? "visible" : "hidden";
      if (at < 0) return;
      const [x, y] = placing()(at), more = data.further.filter(([, point]) => point === at).length;
      tip.textContent = [data.ids[at], `${english(data.lengths[at])} residues`,
        ...kept.slice(0, 6).map(column => `${column.name}: ${column.text(at)}`),
        ...(more ? [`${english(more)} other record${more > 1 ? "s" : ""} with this sequence`] : [])].join("\n");
      tip.style.left = `${Math.max(4, Math.min(x - tip.offsetWidth / 2, stage.clientWidth - tip.offsetWidth - 4))}px`;
      tip.style.top = `${y - tip.offsetHeight - 14 > 0 ? y - tip.offsetHeight - 14 : y + 14}px`;
    }
    function look(change) {
      [view, hovered] = [{ ...view, ...change }, -1];
      draw();
    }
    function zoom(factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
      const [w, h] = unit(), scale = Math.min(Math.max(view.scale * factor, 1), 400), share = 1 - view.scale / scale;
      const dx = (x - stage.clientWidth / 2) / w, dy = (stage.clientHeight / 2 - y) / h;
      look(scale === 1 ? WHOLE : { scale, x: view.x + dx * share, y: view.y + dy * share });
    }
    function move(dx, dy) {
      const [w, h] = unit();
      look({ x: view.x - dx / w, y: view.y + dy / h });
    }
    function whole() {
      view = WHOLE;
      choose(-1);
    }
    function nearest({ offsetX, offsetY }) {
      const place = placing();
      let best = -1, least = 14 ** 2;
      for (let at = 0; at < count; at++) {
        const [x, y] = place(at), far = (x - offsetX) ** 2 + (y - offsetY) ** 2;
        if (far <= least && !faded(at)) [best, least] = [at, far];
      }
      return best;
    }
    function lay(chosenLayout) {
      layout = chosenLayout;
      words.textContent = `To the right: ${layout.axes[0]}; upward: ${layout.axes[1]}.${layout.density ? " Gray: density of up to a million vectors." : ""} Click the map, then use the wheel to zoom; drag to move.`;
      view = WHOLE;
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
        const at = nearest(event);
        if (at !== hovered) { hovered = at; draw(); }
        return;
      }
      pointers.set(event.pointerId, event);
      if (pointers.size === 2) {
        const [one, two] = [...pointers.values()], far = Math.hypot(one.offsetX - two.offsetX, one.offsetY - two.offsetY);
        if (spread) zoom(far / spread, (one.offsetX + two.offsetX) / 2, (one.offsetY + two.offsetY) / 2);
        [spread, dragged] = [far, true];
      } else if (event.offsetX !== last.offsetX || event.offsetY !== last.offsetY) {
        dragged = true;
        move(event.offsetX - last.offsetX, event.offsetY - last.offsetY);
      }
    });
    canvas.addEventListener("pointerup", event => {
      pointers.delete(event.pointerId);
      if (!dragged) choose(nearest(event), map);
    });
    canvas.addEventListener("pointercancel", event => pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => look({}));
    canvas.addEventListener("dblclick", event => zoom(2, event.offsetX, event.offsetY));
    // The wheel scrolls the page until the map has been clicked, so that nobody is caught by it.
    canvas.addEventListener("wheel", event => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
    }, { passive: false });
    const acts = {
      "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), Escape: whole,
      ArrowLeft: () => move(40, 0), ArrowRight: () => move(-40, 0), ArrowUp: () => move(0, 40), ArrowDown: () => move(0, -40),
    };
    canvas.addEventListener("keydown", event => {
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
    stage.querySelectorAll("button").forEach(button => button.addEventListener("click", acts[button.value]));
    new ResizeObserver(draw).observe(stage);
    const map = {
      name, layouts, draw, lay,
      near: at => neighbors ? [...neighbors.slice(at * data.neighbors, (at + 1) * data.neighbors)] : [],
      center: at => { if (view.scale > 1) view = { ...view, x: layout.x[at] / 65535, y: layout.y[at] / 65535 }; },
    };
    lay(layouts[0]);
    return map;
  }

  // Math.min takes no 50,000 arguments everywhere.
  const range = numbers => numbers.reduce(([low, high], value) => value === null ? [low, high] : [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  function paint() {
    const { codes, numbers, values, log } = coloring, [low, high] = numbers ? range(numbers) : [], scaled = log ? Math.log : value => value;
    const colorOf = code => code < values.length ? category(code) : NONE;
    alone = -1;
    if (numbers) {
      colors = numbers.map(value => value === null ? NONE : ramp((scaled(value) - scaled(low)) / (scaled(high) - scaled(low) || 1)));
      const bar = element("i", { className: "ramp" });
      bar.style.background = `linear-gradient(90deg, ${RAMP.map(color => `rgb(${color})`)})`;
      $("legend").replaceChildren(`${coloring.name} ${english(low)}`, bar, `${english(high)}${log ? " (logarithmic)" : ""}`);
    } else {
      colors = Array.from(codes, colorOf);
      const counts = new Map();
      for (const code of codes) counts.set(code, (counts.get(code) ?? 0) + 1);
      $("legend").replaceChildren(...[...counts].sort(([a], [b]) => a - b).map(([code, number]) => {
        const swatch = element("i", {}), button = element("button", { type: "button", ariaPressed: "false" }, swatch, `${values[code] ?? "no value"} (${english(number)})`);
        swatch.style.background = colorOf(code);
        button.addEventListener("click", () => {
          alone = alone === code ? -1 : code;
          $("legend").querySelectorAll("button").forEach(each => { each.ariaPressed = String(each === button && alone === code); });
          maps.forEach(map => map.draw());
        });
        return button;
      }));
    }
    maps.forEach(map => map.draw());
  }
  // Select a sequence, -1: none, and its neighbors in the map where it was chosen.
  function choose(at, map = maps[0]) {
    [chosen, ringed] = [at, at < 0 ? [] : map.near(at)];
    $("selected").textContent = ringed.length ? `${data.ids[at]} and its nearest in ${map.name}: ${ringed.map(other => data.ids[other]).join(", ")}.` : "";
    for (const each of maps) {
      if (at >= 0) each.center(at);
      each.draw();
    }
  }

  const names = [...data.ids, ...data.further.map(([id]) => id)], lower = names.map(name => name.toLowerCase());
  const target = at => at < count ? at : data.further[at - count][1];
  $("find").addEventListener("input", () => {
    const text = $("find").value.trim().toLowerCase(), matches = [];
    let total = 0;
    if (text) lower.forEach((name, at) => { if (name.includes(text) && ++total <= MOST_MATCHES) matches.push(at); });
    // the whole id comes first
    matches.sort((a, b) => (lower[b] === text) - (lower[a] === text));
    const items = matches.map(at => {
      const where = target(at);
      if (typeof where === "string") return `${names[at]}: skipped, ${where}.`;
      if (where < 0) return `${names[at]}: has a vector, not drawn.`;
      const button = element("button", { type: "button" }, names[at]);
      button.addEventListener("click", () => choose(where));
      return button;
    });
    if (total > MOST_MATCHES) items.push(`and ${english(total - MOST_MATCHES)} more`);
    if (text && !total) items.push("No record found.");
    if (text && !data.complete) items.push(`This page knows ${english(names.length)} records. Ask the files for any other: ${document.body.dataset.search}${$("find").value.trim()}`);
    $("matches").replaceChildren(...items);
    const only = total === 1 || lower[matches[0]] === text ? target(matches[0]) : -1;
    choose(only >= 0 ? only : -1);
  });

  const maps = [...document.querySelectorAll(".stage")].map((stage, n) => makeMap(stage, data.maps[n]));
  function choices(select, items, change) {
    select.append(...items.map(({ name }) => new Option(name, name)));
    select.parentElement.hidden = items.length < 2;
    select.addEventListener("change", () => { change(items[select.selectedIndex]); paint(); });
  }
  choices($("layout"), maps[0].layouts, layout => maps[0].lay(layout));
  choices($("coloring"), colorings, item => { coloring = item; });
  paint();
}

if ($("map-data")) makeMaps(JSON.parse($("map-data").textContent));

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
