// Putting it together: each task has a state, and every control changes it and draws again.

const data = JSON.parse(document.getElementById("data").textContent);
const seriesOf = new Map(data.series.map((series) => [series.key, series]));

function startTask(section, task) {
  const state = { mode: "all", count: task.count, x: "round", y: "metric", hidden: new Set() };
  const hosts = [...section.querySelectorAll(".chart")];
  const draw = (host) => {
    const { chart } = host.dataset;
    const curves = { curves: state.y, ...Object.fromEntries(Object.keys(task.diagnostics).map((name) => [name, name])) };
    const root = chart in curves ? drawCurves(host, task, state, curves[chart]) : drawScatter(host, task, chart, state);
    for (const part of root.querySelectorAll("[data-series]")) {
      part.classList.toggle("off", state.hidden.has(part.dataset.series));
    }
    walkable(root);
  };
  const files = section.querySelectorAll(".files[data-count]");
  const drawAll = () => {
    files.forEach((links) => { links.hidden = links.dataset.count !== state.count; });
    hosts.forEach(draw);
  };
  fillLegend(section.querySelector(".legend"), task, state, drawAll);
  for (const group of section.querySelectorAll(".switch")) connectSwitch(group, state, drawAll);
  sortable(section.querySelector("table"));
  watchWidth(hosts, draw);
}

function fillLegend(legend, task, state, changed) {
  for (const key of task.series) {
    const series = seriesOf.get(key);
    const sample = svg("svg", { width: 34, height: 14, viewBox: "-17 -7 34 14", class: series.look, "aria-hidden": true }, [
      svg("path", { class: "line", d: "M-17,0H17", "stroke-dasharray": series.dash }), marker(series, 0, 0, 5),
    ]);
    const button = html("button", undefined, [sample, series.label]);
    button.type = "button";
    button.dataset.series = key;
    button.setAttribute("aria-pressed", true);
    button.addEventListener("click", () => {
      const hide = !state.hidden.has(key);
      if (hide) state.hidden.add(key);
      else state.hidden.delete(key);
      button.setAttribute("aria-pressed", !hide);
      changed();
    });
    legend.append(button);
  }
}

function connectSwitch(group, state, changed) {
  const buttons = [...group.querySelectorAll("button")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      state[group.dataset.switch] = button.dataset.value;
      buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
      changed();
    });
  }
}

// Text keeps its size on every screen because a figure is drawn again when its width changes.
function watchWidth(hosts, draw) {
  const widths = new Map();
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (widths.get(target) === target.clientWidth) continue;
      widths.set(target, target.clientWidth);
      draw(target);
    }
  });
  hosts.forEach((host) => {
    widths.set(host, host.clientWidth);
    draw(host);
    observer.observe(host);
  });
}

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
document.querySelectorAll("[data-task]").forEach((section) => {
  startTask(section, data.tasks[section.dataset.task]);
});
