// The paper's figures: the metric against compression, and the frontier of each series.

function drawScatter(host, task, kind, state) {
  const drawn = task.groups.filter((group) => group.points[state.count][kind]);
  const pointOf = (group) => group.points[state.count][kind];
  const inFront = (group) => group.front[state.count][kind];
  const inView = state.mode === "frontier" ? drawn.filter(inFront) : drawn;
  const title = `${kind[0].toUpperCase()}${kind.slice(1)} compression, ${task.counted[state.count]}`;
  const ratios = inView.map((group) => pointOf(group).compression);
  const { root, at } = frame(host, {
    height: 330, right: 14,
    description: `Test ${task.metric} against ${title.toLowerCase()}`,
    // Numbers from a thousand on are wider.
    x: { values: ratios, log: true, words: words.times, room: 0.08, gap: ratios.some((r) => r > 900) ? 50 : 36, title },
    y: { values: inView.flatMap((g) => [pointOf(g).low, pointOf(g).high]), words: metricWords(task),
      title: task.axis, room: 0.08 },
  });
  const place = (group) => [at.x(pointOf(group).compression), at.y(pointOf(group).value)];
  const front = new Map(task.series.map((key) => [
    key, inView.filter((group) => group.series === key && inFront(group))
      .sort((a, b) => pointOf(a).compression - pointOf(b).compression),
  ]).filter(([, groups]) => groups.length));
  const mark = (group) => drawPoint(group, inFront(group), place(group), rangeOf(pointOf(group), at));
  root.append(...inView.filter((group) => !inFront(group)).map(mark));
  for (const [key, groups] of front) {
    const series = seriesOf.get(key);
    const line = svg("path", { class: "line", d: path(groups.map(place)), "stroke-dasharray": series.dash });
    root.append(svg("g", { class: series.look, "data-series": key }, [line]));
  }
  // A hollow marker below a full one leaves both to be seen where they meet.
  const full = (key) => !seriesOf.get(key).hollow;
  for (const [, groups] of [...front].sort(([a], [b]) => full(a) - full(b))) root.append(...groups.map(mark));
  const inOrder = [...inView.filter(inFront), ...inView.filter((group) => !inFront(group))];
  const items = inOrder.map((group) => ({ number: group.number, series: seriesOf.get(group.series), at: place(group) }));
  const numbers = numberMarks(root, items, inView.map(place), { ...at.box, right: at.box.right + 14, top: at.box.top - 12 });
  nameFrontiers(root, front, [...inView.map(place), ...numbers.map(centre)], place, at.box);
  return root;
}

// A bar from the worst to the best seed, where there are several.
function rangeOf({ compression, low, high }, at) {
  if (low === high) return [];
  const x = at.x(compression);
  return [svg("line", { class: "range", x1: x, x2: x, y1: at.y(low), y2: at.y(high) })];
}

function drawPoint(group, strong, [x, y], range) {
  const series = seriesOf.get(group.series);
  const mark = marker(series, x, y, strong ? 5 : 4);
  const reach = svg("circle", { class: "reach", cx: x, cy: y, r: 9 });
  return runGroup(group, series, strong, mark, [reach, ...range, mark]);
}

function nameFrontiers(root, front, points, place, box) {
  const lines = [...front].map(([key, groups]) => {
    const places = groups.map(place);
    return { series: seriesOf.get(key), anchors: [...places.slice(-1), ...places.slice(0, -1)] };
  });
  const fronts = [...front.values()].map((groups) => groups.map(place));
  const obstacles = [...fronts.flatMap(samples), ...points, ...points, ...points];
  nameLines(root, lines, obstacles, { ...box, right: box.right + 14 });
}

function metricWords(task) {
  return task.metric === "accuracy" ? words.percent : words.plain;
}
