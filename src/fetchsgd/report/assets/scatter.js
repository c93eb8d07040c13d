// The paper's figures: the metric against compression, and each method's frontier.

function drawScatter(host, task, kind, state) {
  const drawn = task.runs.filter((run) => run.drawn[kind]);
  const inView = state.mode === "frontier" ? drawn.filter((run) => run.front[kind]) : drawn;
  const { root, at } = frame(host, {
    height: 330, right: 14,
    description: `Test ${task.metric} against ${kind} compression`,
    x: { values: inView.map((r) => r.compression[kind]), log: true, words: words.times, room: 0.08, gap: 36,
      title: `${kind[0].toUpperCase()}${kind.slice(1)} compression` },
    y: { values: inView.map((r) => r.value), words: metricWords(task), title: task.axis, room: 0.08 },
  });
  const place = (run) => [at.x(run.compression[kind]), at.y(run.value)];
  const point = (run, strong) => {
    const method = methods.get(run.method);
    const [x, y] = place(run);
    const mark = marker(method, x, y, strong ? 5 : 4);
    return runGroup(run, method, strong, mark, [svg("circle", { class: "reach", cx: x, cy: y, r: 9 }), mark]);
  };
  const front = new Map(task.methods.map((name) => [
    name, inView.filter((run) => run.method === name && run.front[kind])
      .sort((a, b) => a.compression[kind] - b.compression[kind]),
  ]));
  root.append(...inView.filter((run) => !run.front[kind]).map((run) => point(run, false)));
  for (const [name, runs] of front) {
    const method = methods.get(name);
    const line = svg("path", { class: "line", d: path(runs.map(place)), "stroke-dasharray": method.dash });
    root.append(svg("g", { class: method.look, "data-method": name }, [line]));
  }
  for (const runs of front.values()) root.append(...runs.map((run) => point(run, true)));
  const fronts = [...front.values()].filter((runs) => runs.length).map((runs) => runs.map(place));
  const named = [...front.keys()].filter((name) => front.get(name).length);
  const lines = named.map((name, i) => ({
    method: methods.get(name), anchors: [...fronts[i].slice(-1), ...fronts[i].slice(0, -1)],
  }));
  const obstacles = [...fronts.flatMap(samples), ...inView.flatMap((run) => [place(run), place(run)])];
  nameLines(root, lines, obstacles, { ...at.box, right: at.box.right + 14 });
  return root;
}

function metricWords(task) {
  return task.metric === "accuracy" ? words.percent : words.plain;
}
