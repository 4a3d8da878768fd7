// The maps and the search in them. Without it the rest of the page is whole.
document.documentElement.classList.remove("noscript");
const $ = id => document.getElementById(id);
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a400", "#8c564b", "#7f7f7f", "#6a3d9a"];
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const MOST_MATCHES = 20, NONE = "#9aa5b1", WHOLE = { scale: 1, x: 0.5, y: 0.5 };  // the center, in shares of the layout
const english = number => number.toLocaleString("en");
const decode = (text, type) => new type(Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer);

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
  const count = data.ids.length;
  const columns = data.columns.map(column => ({ ...column, codes: column.codes && decode(column.codes, Uint16Array) }));
  let coloring = columns[0], colors = [], alone = -1, chosen = -1;
  const faded = at => alone >= 0 && coloring.codes?.[at] !== alone;

  function described(at) {
    const others = data.further.filter(([, point]) => point === at).length;
    const shown = columns.filter(({ name }, place) => place < 7 || name === "length");
    const values = shown.map(({ name, numbers, values, codes }) => {
      const value = (numbers ? numbers[at] : values[codes[at]]) ?? "no value";
      return `${name}: ${typeof value === "number" ? english(value) : value}`;
    });
    return [data.ids[at], ...values, ...(others ? [`other records with this sequence: ${english(others)}`] : [])].join("\n");
  }

  function makeMap(stage, { axes, span, x, y, density }) {
    const canvas = stage.querySelector("canvas"), tip = stage.querySelector(".tip"), words = stage.nextElementSibling;
    const across = decode(x, Uint16Array), up = decode(y, Uint16Array), grid = density && decode(density, Uint8Array);
    let view = WHOLE, hovered = -1;

    // Return the size of the whole map in pixels: a unit has the same length in both directions.
    function extent() {
      const [wide, high] = span.map(part => part / Math.max(...span));
      const pixels = 0.92 * view.scale * Math.min(stage.clientWidth / wide, stage.clientHeight / high);
      return [pixels * wide, pixels * high];
    }
    // Return the function from a point to its place in the stage.
    function placing() {
      const [w, h] = extent(), left = stage.clientWidth / 2 - view.x * w, low = stage.clientHeight / 2 + view.y * h;
      return at => [left + across[at] / 65535 * w, low - up[at] / 65535 * h];
    }
    function drawDensity(context) {
      const [w, h] = extent(), image = new ImageData(data.grid, data.grid), shade = matchMedia("(prefers-color-scheme: dark)").matches ? 200 : 90;
      grid.forEach((value, cell) => {
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
      [canvas.width, canvas.height] = [wide * ratio, high * ratio];
      context.scale(ratio, ratio);
      if (grid) drawDensity(context);
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
      context.strokeStyle = getComputedStyle(document.body).color;
      for (const at of [hovered, chosen].filter(at => at >= 0)) {
        context.lineWidth = at === chosen ? 4 : 2;
        context.beginPath();
        context.arc(...place(at), radius + 4, 0, 7);
        context.stroke();
      }
      const named = hovered >= 0 ? hovered : chosen;
      tip.style.visibility = named >= 0 ? "visible" : "hidden";
      if (named < 0) return;
      const [x, y] = place(named);
      tip.textContent = described(named);
      tip.style.left = `${Math.max(4, Math.min(x - tip.offsetWidth / 2, wide - tip.offsetWidth - 4))}px`;
      tip.style.top = `${y - tip.offsetHeight - 14 > 0 ? y - tip.offsetHeight - 14 : y + 14}px`;
    }
    function look(change) {
      [view, hovered] = [{ ...view, ...change }, -1];
      draw();
    }
    function zoom(factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
      const [w, h] = extent(), scale = Math.min(Math.max(view.scale * factor, 1), 400), share = 1 - view.scale / scale;
      const dx = (x - stage.clientWidth / 2) / w, dy = (stage.clientHeight / 2 - y) / h;
      look(scale === 1 ? WHOLE : { scale, x: view.x + dx * share, y: view.y + dy * share });
    }
    function move(dx, dy) {
      const [w, h] = extent();
      look({ x: view.x - dx / w, y: view.y + dy / h });
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

    let last = null, dragged = false;
    canvas.addEventListener("pointerdown", event => {
      [last, dragged] = [event, false];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (last) {
        dragged ||= Math.hypot(event.offsetX - last.offsetX, event.offsetY - last.offsetY) > 0;
        move(event.offsetX - last.offsetX, event.offsetY - last.offsetY);
        last = event;
      } else if (hovered !== (hovered = nearest(event))) draw();
    });
    canvas.addEventListener("pointerup", event => { if (!dragged) choose(nearest(event)); });
    canvas.addEventListener("lostpointercapture", () => { last = null; });
    canvas.addEventListener("pointerleave", () => look({}));
    canvas.addEventListener("dblclick", event => zoom(2, event.offsetX, event.offsetY));
    // The wheel scrolls the page until the map has been clicked, so that nobody is caught by it.
    canvas.addEventListener("wheel", event => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
    }, { passive: false });
    const acts = {
      "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), Escape: () => { view = WHOLE; choose(-1); },
      ArrowLeft: () => move(40, 0), ArrowRight: () => move(-40, 0), ArrowUp: () => move(0, 40), ArrowDown: () => move(0, -40),
    };
    canvas.addEventListener("keydown", event => {
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
    stage.querySelectorAll("button").forEach(button => button.addEventListener("click", acts[button.value]));
    new ResizeObserver(draw).observe(stage);
    words.textContent = `To the right: ${axes[0]}; upward: ${axes[1]}.${density ? " Gray: density of up to a million vectors." : ""} Click the map, then use the wheel to zoom; drag to move.`;
    return { draw, center: at => { if (view.scale > 1) view = { ...view, x: across[at] / 65535, y: up[at] / 65535 }; } };
  }

  function paint() {
    const { name, codes, numbers, values, log } = coloring;
    alone = -1;
    if (numbers) {
      // Math.min takes no 50,000 arguments everywhere.
      const known = numbers.filter(value => value !== null), scaled = log ? Math.log : value => value;
      const [low, high] = [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
      colors = numbers.map(value => value === null ? NONE : ramp((scaled(value) - scaled(low)) / (scaled(high) - scaled(low) || 1)));
      const bar = element("i", { className: "ramp" });
      bar.style.background = `linear-gradient(90deg, ${RAMP.map(color => `rgb(${color})`)})`;
      $("legend").replaceChildren(`${name} ${english(low)}`, bar, `${english(high)}${log ? " (logarithmic)" : ""}`);
    } else {
      const colorOf = code => code < values.length ? category(code) : NONE, numberOf = new Map();
      colors = Array.from(codes, colorOf);
      for (const code of codes) numberOf.set(code, (numberOf.get(code) ?? 0) + 1);
      $("legend").replaceChildren(...[...numberOf].sort(([a], [b]) => a - b).map(([code, number]) => {
        const swatch = element("i", {}), button = element("button", { type: "button", ariaPressed: "false" }, swatch, `${values[code] ?? "no value"} (${english(number)})`);
        swatch.style.background = colorOf(code);
        button.addEventListener("click", () => {
          alone = alone === code ? -1 : code;
          $("legend").querySelectorAll("button").forEach(other => { other.ariaPressed = String(other === button && alone === code); });
          maps.forEach(map => map.draw());
        });
        return button;
      }));
    }
    maps.forEach(map => map.draw());
  }
  // Select a sequence in all maps; -1: none.
  function choose(at) {
    chosen = at;
    for (const map of maps) {
      if (at >= 0) map.center(at);
      map.draw();
    }
  }

  const names = [...data.ids, ...data.further.map(([id]) => id)], lower = names.map(name => name.toLowerCase());
  const target = at => at < count ? at : data.further[at - count][1];
  $("find").addEventListener("input", () => {
    const text = $("find").value.trim().toLowerCase();
    const matches = text ? [...lower.keys()].filter(at => lower[at].includes(text)) : [];
    matches.sort((a, b) => (lower[b] === text) - (lower[a] === text));  // the whole id comes first
    const items = matches.slice(0, MOST_MATCHES).map(at => {
      const where = target(at);
      if (typeof where === "string") return `${names[at]}: skipped, ${where}.`;
      if (where < 0) return `${names[at]}: has a vector, not drawn.`;
      const button = element("button", { type: "button" }, names[at]);
      button.addEventListener("click", () => choose(where));
      return button;
    });
    if (matches.length > MOST_MATCHES) items.push(`and ${english(matches.length - MOST_MATCHES)} more`);
    if (text && !matches.length) items.push("No record found.");
    if (text && data.search) items.push(`This page knows ${english(names.length)} records. Ask the files for any other: ${data.search}${$("find").value.trim()}`);
    $("matches").replaceChildren(...items);
    const where = matches.length === 1 || lower[matches[0]] === text ? target(matches[0]) : -1;
    choose(where >= 0 ? where : -1);
  });

  const maps = [...document.querySelectorAll(".stage")].map((stage, n) => makeMap(stage, data.maps[n]));
  $("coloring").append(...columns.map(({ name }) => new Option(name, name)));
  $("coloring").addEventListener("change", event => { coloring = columns[event.target.selectedIndex]; paint(); });
  paint();
}

if ($("map-data")) makeMaps(JSON.parse($("map-data").textContent));
