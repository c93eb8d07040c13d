// Names beside lines, each where it hides least.

// A name that would hide more than this, or stand further off, is left to the legend.
const dearest = 6;

const spots = [[0, 10], [-15, 8], [15, 8], [-30, 8], [30, 8], [-45, 8], [45, 8], [-60, 8], [60, 8]].flatMap(
  ([dy, dx]) => [{ dx, dy, side: "start" }, { dx: -dx, dy, side: "end" }],
).concat([{ dx: 0, dy: -16, side: "middle" }, { dx: 0, dy: 16, side: "middle" }]);

// For lines that end at the right edge: one name below the other.
const column = Array.from({ length: 40 }, (_, i) => ({ dx: 10, dy: 3 * i, side: "start" }));

// `lines` are {series, anchors, number}: the places that a name may stand beside, the best one first.
// `obstacles` are points that had better stay visible; names must stay inside `bounds`.
function nameLines(root, lines, obstacles, bounds, allowed = spots) {
  const taken = [];
  for (const { series, anchors, number } of lines) {
    const label = number ? `${series.label} ${number}` : series.label;
    const width = 7.2 * label.length;
    const choices = anchors.flatMap((anchor, rank) => allowed.map((spot) => {
      const box = labelBox(anchor, spot, width);
      return { anchor, spot, box, cost: rank + labelCost(box, spot, taken, obstacles, bounds) };
    }));
    const best = choices.reduce((a, b) => (b.cost < a.cost ? b : a));
    if (allowed === spots && best.cost > dearest) continue;
    taken.push(best.box);
    root.append(svg("text", {
      class: `name ${series.look}`, "data-series": series.key, "text-anchor": best.spot.side,
      x: best.anchor[0] + best.spot.dx, y: best.anchor[1] + best.spot.dy + 4,
    }, label));
  }
  return taken;
}

// Numbers beside marks, where a method has several; each where it covers no mark and no other number.
// `items` are {number, series, at}; one that finds no place is left to the tooltip.
function numberMarks(root, items, marks, bounds, behind = false, names = []) {
  const ring = [[8, 0], [0, -13], [0, 13], [-8, 0], [7, -9], [7, 9], [-7, -9], [-7, 9], [0, -22], [0, 22]];
  const row = [0, -5, 5, -10, 10].flatMap((dy) => [8, 24, 40, 56].map((dx) => [dx, dy]));
  const places = (behind ? [...row, ...ring] : [...ring, ...row])
    .map(([dx, dy]) => ({ dx, dy, side: dx > 0 ? "start" : dx < 0 ? "end" : "middle" }));
  const meets = (box, other) => box.left < other.right && other.left < box.right
    && box.top < other.bottom && other.top < box.bottom;
  const taken = [...names, ...marks.map(([x, y]) => ({ left: x - 5, right: x + 5, top: y - 5, bottom: y + 5 }))];
  for (const { number, series, at } of items.filter((item) => item.number)) {
    const found = places.map((spot) => ({ spot, box: labelBox(at, spot, 7 * String(number).length) }))
      .find(({ box }) => box.left >= bounds.left && box.right <= bounds.right && box.top >= bounds.top
        && box.bottom <= bounds.bottom && !taken.some((other) => meets(box, other)));
    if (!found) continue;
    taken.push(found.box);
    root.append(svg("text", {
      class: `tag ${series.look}`, "data-series": series.key, "text-anchor": found.spot.side,
      x: at[0] + found.spot.dx, y: at[1] + found.spot.dy + 4,
    }, String(number)));
  }
  return taken;
}

function labelBox([x, y], { dx, dy, side }, width) {
  const left = x + dx - { start: 0, middle: width / 2, end: width }[side];
  return { left, right: left + width, top: y + dy - 8, bottom: y + dy + 8 };
}

function centre({ left, right, top, bottom }) {
  return [(left + right) / 2, (top + bottom) / 2];
}

function labelCost(box, spot, taken, obstacles, bounds) {
  const hidden = obstacles.filter(
    ([x, y]) => x > box.left - 3 && x < box.right + 3 && y > box.top && y < box.bottom,
  ).length;
  const overlaps = taken.some((other) => box.left < other.right + 6 && other.left < box.right + 6
    && box.top < other.bottom && other.top < box.bottom);
  const outside = box.left < bounds.left || box.right > bounds.right
    || box.top < bounds.top || box.bottom > bounds.bottom;
  return 2 * hidden + Math.abs(spot.dy) / 7 + 200 * overlaps + 1000 * outside;
}

// Points along a line of pixels, close enough that no name fits between them.
function samples(points) {
  return points.slice(1).flatMap(([x, y], i) => {
    const [fromX, fromY] = points[i];
    const steps = Math.max(1, Math.ceil(Math.hypot(x - fromX, y - fromY) / 8));
    return Array.from({ length: steps }, (_, n) => [
      fromX + ((x - fromX) * n) / steps, fromY + ((y - fromY) * n) / steps,
    ]);
  }).concat(points.slice(-1));
}
