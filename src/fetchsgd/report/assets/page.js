// Putting it together: each task has a state, and every control changes it and draws again.

const data = JSON.parse(document.getElementById("data").textContent);
const methods = new Map(data.methods.map((method) => [method.name, method]));

function startTask(section, task) {
  const state = { mode: "all", x: "round", y: "metric", hidden: new Set() };
  const hosts = [...section.querySelectorAll(".chart")];
  const draw = (host) => {
    const { chart } = host.dataset;
    const root = chart === "curves" ? drawCurves(host, task, state) : drawScatter(host, task, chart, state);
    for (const part of root.querySelectorAll("[data-method]")) {
      part.classList.toggle("off", state.hidden.has(part.dataset.method));
    }
    walkable(root);
  };
  const drawAll = () => hosts.forEach(draw);
  fillLegend(section.querySelector(".legend"), task, state, drawAll);
  for (const group of section.querySelectorAll(".switch")) connectSwitch(group, state, drawAll);
  sortable(section.querySelector("table"));
  watchWidth(hosts, draw);
}

function fillLegend(legend, task, state, changed) {
  for (const name of task.methods) {
    const method = methods.get(name);
    const sample = svg("svg", { width: 34, height: 14, viewBox: "-17 -7 34 14", class: method.look, "aria-hidden": true }, [
      svg("path", { class: "line", d: "M-17,0H17", "stroke-dasharray": method.dash }), marker(method, 0, 0, 5),
    ]);
    const button = html("button", undefined, [sample, method.label]);
    button.type = "button";
    button.dataset.method = name;
    button.setAttribute("aria-pressed", true);
    button.addEventListener("click", () => {
      const hide = !state.hidden.has(name);
      if (hide) state.hidden.add(name);
      else state.hidden.delete(name);
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
