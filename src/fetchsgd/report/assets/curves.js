// Training curves: the metric, the loss or a diagnostic against rounds, epochs or bytes.

const horizontal = {
  round: { title: "Rounds", words: words.plain, gap: 48 },
  epoch: { title: "Epochs", words: words.plain, gap: 48 },
  bytes: { title: "Bytes sent both ways", words: words.bytes, log: true, gap: 56 },
};

// What is on the vertical axis: its title, its words, whether it may be logarithmic, and the figure's height.
function vertical(task, y) {
  if (y === "metric") {
    return { name: `test ${task.metric}`, title: task.axis, words: metricWords(task), mayBeLog: !task.higherIsBetter, height: 400 };
  }
  if (y === "loss") return { name: "training loss", title: "Training loss", words: words.plain, mayBeLog: true, height: 400 };
  const { title, axis } = task.diagnostics[y];
  return { name: title, title: axis, words: words.plain, mayBeLog: true, height: 260 };
}

function drawCurves(host, task, state, y) {
  const upright = vertical(task, y);
  const pointsOf = ({ curves }) => {
    const curve = curves[y];
    if (!curve) return [];
    // A run of an older version does not know its bytes on the wire, and has no points there.
    const xs = state.x === "bytes" ? curve.bytes[state.count] ?? [] : curve[state.x];
    const points = xs.map((x, i) => [x, curve.y[i]]);
    return horizontal[state.x].log ? points.filter(([x]) => x > 0) : points;
  };
  const all = task.runs.map((run) => ({ run, points: pointsOf(run) }));
  const strong = ({ run }) => run.front[state.count];
  const counted = state.x === "bytes" ? `, ${task.counted[state.count]}` : "";
  const shown = all.filter((c) => c.points.length && (state.mode === "all" || strong(c)));
  // A run that diverges would squeeze all others flat, so it does not set the scale.
  const calm = shown.filter(({ run }) => run.status !== "diverged");
  const setting = (calm.length ? calm : shown).flatMap(({ points }) => points);
  const ys = setting.map(([, y]) => y);
  const least = ys.reduce((a, b) => Math.min(a, b), Infinity);
  const wide = least > 0 && ys.some((y) => y > 30 * least);
  const { root, at } = frame(host, {
    height: upright.height, right: host.clientWidth < 600 ? 14 : roomForNames(task),
    description: `Training curves: ${upright.name}`,
    x: { values: setting.map(([x]) => x), room: 0.02, ...horizontal[state.x],
      title: horizontal[state.x].title + counted },
    y: { values: ys, log: wide && upright.mayBeLog, room: 0.04, words: upright.words, title: upright.title },
  });
  const clip = clipTo(root, at.box, `clip-${host.closest("[data-task]").dataset.task}-${host.dataset.chart}`);
  const pixels = (points) => points.map(([x, y]) => [at.x(x), at.y(y)]);
  const curve = (c) => drawCurve(c.run, strong(c), pixels(c.points), at.box, clip);
  root.append(...shown.filter((c) => !strong(c)).map(curve), ...shown.filter(strong).map(curve));
  const named = host.clientWidth < 600 ? { boxes: [], numbers: [] } : nameBest(root, task, shown.filter(strong), pixels, at, host);
  const ends = shown.map(({ run, points }) => ({ run, at: pixels(points.slice(-1))[0] }))
    .filter(({ at: [x, y] }) => x <= at.box.right + 1 && y >= at.box.top - 4 && y <= at.box.bottom + 4);
  const first = ends.filter(({ run }) => run.front[state.count]);
  const items = [...first, ...ends.filter((end) => !first.includes(end))]
    .filter(({ run }) => !named.numbers.includes(run.number))
    .map(({ run, at: end }) => ({ number: run.number, series: seriesOf.get(run.series), at: end }));
  const free = { ...at.box, top: at.box.top - 12, right: host.clientWidth - 2, bottom: at.box.bottom + 12 };
  numberMarks(root, eachOnce(items), ends.map(({ at: end }) => end), free, true, named.boxes);
  return root;
}

// The names of methods, each with the number of its best run; and what they cover.
function nameBest(root, task, strong, pixels, at, host) {
  const best = bestOnes(task, strong, pixels);
  const atEdge = best.every(({ anchors: [[x]] }) => x > at.box.right - 30);
  const obstacles = strong.flatMap(({ points }) => samples(pixels(points)));
  const bounds = { ...at.box, top: at.box.top - 12, right: host.clientWidth };
  const boxes = atEdge ? nameLines(root, best, [], { ...bounds, bottom: Infinity }, column)
    : nameLines(root, best, obstacles, bounds);
  return { boxes, numbers: atEdge ? best.map(({ number }) => number) : [] };
}

// Seeds of the same settings have the same number; one of them shows it.
function eachOnce(items) {
  return items.filter(({ number }, i) => items.findIndex((other) => other.number === number) === i);
}

function roomForNames(task) {
  const longest = task.series.reduce((most, key) => Math.max(most, seriesOf.get(key).label.length), 0);
  return Math.max(120, 16 + 7.2 * (longest + 3));
}

function clipTo(root, { left, right, top, bottom }, id) {
  const area = svg("rect", { x: left, y: top - 4, width: right - left + 4, height: bottom - top + 4 });
  root.append(svg("clipPath", { id }, [area]));
  return `url(#${id})`;
}

function drawCurve(run, strong, points, box, clip) {
  const series = seriesOf.get(run.series);
  const d = path(points);
  const [x, y] = points[points.length - 1];
  const level = Math.max(box.top, Math.min(y, box.bottom));
  const mark = marker(series, Math.min(x, box.right), level, strong ? 5 : 4);
  const line = svg("path", { class: "line", d, "stroke-dasharray": series.dash, "clip-path": clip });
  const reach = svg("path", { class: "reach", d, "clip-path": clip });
  return runGroup(run, series, strong, mark, [reach, line, mark]);
}

// The best run of each series, to be named at its end.
function bestOnes(task, strong, pixels) {
  const sign = task.higherIsBetter ? 1 : -1;
  const named = task.series.flatMap((key) => {
    const own = strong.filter(({ run }) => run.series === key);
    if (!own.length) return [];
    const best = own.reduce((a, b) => (sign * b.run.value > sign * a.run.value ? b : a));
    return [{ series: seriesOf.get(key), number: best.run.number, anchors: pixels(best.points.slice(-1)) }];
  });
  return named.sort((a, b) => a.anchors[0][1] - b.anchors[0][1]);
}
