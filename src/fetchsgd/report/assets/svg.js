// Drawing: elements, markers, and the frame of axes that every figure has.

const shapes = {
  circle: (r) => `M${-r},0a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0z`,
  square: (r) => polygon([[-1, -1], [1, -1], [1, 1], [-1, 1]], r * 0.9),
  triangle: (r) => polygon([[0, -1.2], [1.1, 0.8], [-1.1, 0.8]], r * 1.05),
  down: (r) => polygon([[0, 1.2], [1.1, -0.8], [-1.1, -0.8]], r * 1.05),
  diamond: (r) => polygon([[0, -1], [1, 0], [0, 1], [-1, 0]], r * 1.25),
  cross: (r) => polygon([
    [-1, -0.45], [-0.45, -1], [0, -0.55], [0.45, -1], [1, -0.45], [0.55, 0],
    [1, 0.45], [0.45, 1], [0, 0.55], [-0.45, 1], [-1, 0.45], [-0.55, 0],
  ], r * 1.15),
  pentagon: (r) => polygon([[0, -1], [0.95, -0.31], [0.59, 0.81], [-0.59, 0.81], [-0.95, -0.31]], r * 1.15),
  plus: (r) => polygon([
    [-0.4, -1], [0.4, -1], [0.4, -0.4], [1, -0.4], [1, 0.4], [0.4, 0.4],
    [0.4, 1], [-0.4, 1], [-0.4, 0.4], [-1, 0.4], [-1, -0.4], [-0.4, -0.4],
  ], r * 1.15),
};

function polygon(corners, r) {
  return `M${corners.map(([x, y]) => `${(x * r).toFixed(2)},${(y * r).toFixed(2)}`).join("L")}z`;
}

function svg(name, attributes = {}, children = []) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...[].concat(children));
  return element;
}

function marker(series, x, y, r) {
  return svg("path", { class: "mark", d: shapes[series.marker](r), transform: `translate(${x},${y})` });
}

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
}

// An empty figure in `host`: axes, ticks and titles. An axis is {values, log, words, title, room, gap}.
function frame(host, { height, right, x, y, description }) {
  const width = Math.max(280, host.clientWidth);
  const box = { left: 46, right: width - right, top: 28, bottom: height - 44 };
  const xDomain = domainOf(x.values, x.log, x.room);
  const yDomain = domainOf(y.values, y.log, y.room);
  const at = {
    box,
    x: scale(xDomain, [box.left, box.right], x.log),
    y: scale(yDomain, [box.bottom, box.top], y.log),
  };
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": description });
  root.append(svg("desc", {}, "Left and right arrow keys move from run to run."));
  for (const tick of (y.log ? logTicks : linearTicks)(yDomain, box.bottom - box.top, 30)) {
    const level = at.y(tick);
    root.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: level, y2: level }));
    root.append(svg("text", { x: box.left - 8, y: level + 4, "text-anchor": "end" }, y.words(tick)));
  }
  for (const tick of (x.log ? logTicks : linearTicks)(xDomain, box.right - box.left, x.gap)) {
    const place = at.x(tick);
    root.append(svg("line", { class: "axis", x1: place, x2: place, y1: box.bottom, y2: box.bottom + 5 }));
    root.append(svg("text", { x: place, y: box.bottom + 19, "text-anchor": "middle" }, x.words(tick)));
  }
  root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  root.append(svg("text", { x: 0, y: 12 }, y.title));
  root.append(svg("text", { x: box.right, y: height - 6, "text-anchor": "end" }, x.title));
  host.replaceChildren(root);
  return { root, at };
}
