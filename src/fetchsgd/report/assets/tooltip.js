// The tooltip, and the run that it is about: hovered, focused, or reached with the arrow keys.

const tip = document.getElementById("tip");

function html(name, text, children = []) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

function showTip(run, series, target) {
  const details = run.details.flatMap(([name, value]) => [html("dt", name), html("dd", value)]);
  tip.replaceChildren(
    html("strong", run.number ? `${run.number}: ${run.name}` : run.name), html("span", `${series.label}, ${run.status}`),
    html("dl", undefined, details),
  );
  tip.hidden = false;
  placeTip(target);
}

function placeTip(target) {
  const box = target.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = tip;
  const beside = box.right + 12 + width < innerWidth ? box.right + 12 : box.left - 12 - width;
  const top = (box.top + box.bottom - height) / 2;
  tip.style.left = `${Math.max(8, Math.min(beside, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
}

function hideTip() {
  tip.hidden = true;
}

// A group that stands for a run or for its seeds: it speaks, can be focused, and shows the tooltip beside `mark`.
function runGroup(run, series, strong, mark, children) {
  const spoken = run.details.map(([name, value]) => `${name} ${value}`).join(", ");
  const group = svg("g", {
    class: `run ${series.look} ${strong ? "strong" : "faint"}`,
    "data-series": series.key, tabindex: -1, role: "img",
    "aria-label": `${series.label}, ${run.name}, ${run.status}: ${spoken}`,
  }, children);
  const show = () => showTip(run, series, mark);
  group.addEventListener("pointerenter", show);
  group.addEventListener("focus", show);
  group.addEventListener("pointerleave", hideTip);
  group.addEventListener("blur", hideTip);
  return group;
}

// While the page scrolls the tooltip stays with its run: focus may itself have scrolled the page.
addEventListener("scroll", () => {
  const group = document.querySelector(".run:focus, .run:hover");
  if (group && !tip.hidden) placeTip(group.querySelector(".mark"));
  else hideTip();
}, { passive: true });

// One tab stop a figure; from there the arrow keys lead to every run that is shown.
function walkable(root) {
  const shown = () => [...root.querySelectorAll(".run")].filter((g) => g.getClientRects().length);
  const first = shown()[0];
  if (first) first.setAttribute("tabindex", 0);
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const runs = shown();
    if (!step || !runs.length) return;
    event.preventDefault();
    const next = runs[(runs.indexOf(document.activeElement) + step + runs.length) % runs.length];
    root.querySelectorAll("[tabindex='0']").forEach((g) => g.setAttribute("tabindex", -1));
    next.setAttribute("tabindex", 0);
    next.focus();
  });
}
