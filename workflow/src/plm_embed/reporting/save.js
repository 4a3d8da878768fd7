// Buttons that save a chart: its numbers as TSV, itself as SVG or PNG in the colors of the light page.
const SVG = "http://www.w3.org/2000/svg";
const DRAWN = ["fill", "stroke", "stroke-width", "opacity", "font-size", "font-weight", "text-anchor"];

function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// A copy that needs no style sheet.
function copied(element) {
  const copy = element.cloneNode(true), copies = [copy, ...copy.querySelectorAll("*")];
  [element, ...element.querySelectorAll("*")].forEach((one, at) => {
    const style = getComputedStyle(one);
    for (const name of DRAWN) copies[at].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style"]) copies[at].removeAttribute(name);
  });
  return copy;
}

// The plot, and below it its legend.
function picture(figure) {
  const plot = figure.querySelector(".plot"), inner = plot.querySelector("svg"), root = document.documentElement;
  const around = plot.getBoundingClientRect(), box = inner.getBoundingClientRect(), edge = 12, row = 20;
  const map = figure.querySelector(".frame"), legend = [...(map ? document.getElementById("map-legend") : figure).querySelectorAll(".legend li, #map-legend li")];
  const width = around.width + 2 * edge, plotted = around.height + 2 * edge, height = plotted + row * legend.length;
  const made = drawn("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "Helvetica, Arial, sans-serif" });
  root.classList.add("light");
  made.append(copied(document.querySelector("body > svg > defs")), drawn("rect", { width, height, fill: "#fff" }));
  const copy = copied(inner);
  for (const [key, value] of Object.entries({ x: box.left - around.left + edge, y: box.top - around.top + edge, width: box.width, height: box.height, overflow: "visible" })) copy.setAttribute(key, value);
  // a line that was stretched with its plot would grow thick in programs that do not know such strokes
  copy.querySelectorAll("polyline").forEach(line => {
    const points = line.getAttribute("points").trim().split(/\s+/).map(point => point.split(","));
    line.setAttribute("points", points.map(([x, y]) => `${(x * box.width / 100).toFixed(2)},${(y * box.height / 100).toFixed(2)}`).join(" "));
    line.parentElement.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  });
  made.append(copy);
  legend.forEach((item, at) => {
    const line = drawn("g", { transform: `translate(${edge} ${plotted + row * at})` }), words = drawn("text", { x: 22, y: 11, "font-size": 12, fill: "#17212b" });
    words.textContent = item.textContent.trim();
    line.append(...[...item.querySelector("svg").children].map(copied), words);
    made.append(line);
  });
  root.classList.remove("light");
  return [new XMLSerializer().serializeToString(made), width, height];
}

function table(name) {
  const [head, rows] = JSON.parse(document.getElementById(`numbers-${name}`).textContent);
  return [head, ...rows].map(row => row.map(cell => String(cell).replace(/\s+/g, " ")).join("\t") + "\n").join("");
}

async function pixels([text, width, height]) {
  const image = new Image(), canvas = document.createElement("canvas"), scale = 3;
  await new Promise((done, fail) => {
    Object.assign(image, { onload: done, onerror: fail });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
  [canvas.width, canvas.height] = [scale * width, scale * height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png");
}

function kept(text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  return url;
}

document.querySelectorAll(".save button").forEach(button => button.addEventListener("click", async () => {
  const { kind, chart, numbers } = button.dataset, figure = document.getElementById(`figure-${chart}`);
  const link = document.createElement("a");
  link.href = kind === "tsv" ? kept(table(numbers), "text/tab-separated-values")
    : kind === "svg" ? kept(picture(figure)[0], "image/svg+xml") : await pixels(picture(figure));
  link.download = `${document.body.dataset.name}_${chart}.${kind}`;
  link.click();
}));
