"use strict";
// From numbers to pixels: scales, ticks, and the labels of numbers on axes.

function plain(number) {
  const rounded = Number(number.toPrecision(6));
  if (rounded !== 0 && Math.abs(rounded) < 1e-5) return rounded.toExponential();
  return rounded.toLocaleString("en", { maximumSignificantDigits: 6 });
}

const words = {
  times: (number) => `${plain(number)}×`,
  percent: (number) => plain(100 * number),
  plain,
  bytes: (number) => {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    const step = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(number || 1) / 3)));
    return `${plain(number / 1000 ** step)} ${units[step]}`;
  },
};

// Round numbers, a power of ten times 1, 2 or 5 apart, and at least `gap` pixels.
function linearTicks([low, high], length, gap) {
  const rough = (high - low) / Math.max(1, length / gap);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12) + step * 1e-9; n += 1) {
    ticks.push(n * step);
  }
  return ticks;
}

// As many as are `gap` pixels apart: 1, 1.5, 2, 3, ... or 1, 2, 5, ... or 1, 3, 10, ... or powers of ten.
function logTicks([low, high], length, gap) {
  const decade = length / Math.log10(high / low);
  const choices = [[[1, 1.5, 2, 3, 5, 7], 1, 0.124], [[1, 2, 5], 1, 0.3], [[1, 3], 1, 0.47], [[1], 1, 1], [[1], 2, 2], [[1], 3, 3], [[1], 6, 6]];
  const [factors, every] = choices.find((choice) => choice[2] * decade >= gap) || choices[choices.length - 1];
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e += 1) {
    if (e % every) continue;
    ticks.push(...factors.map((factor) => Number(`${factor}e${e}`)));
  }
  const inside = ticks.filter((tick) => tick >= low * 0.9999 && tick <= high * 1.0001);
  return inside.length > 1 ? inside : linearTicks([low, high], length, Math.max(gap, length / 4));
}

// The least interval that holds all values, with some room at both ends.
function domainOf(values, log, room) {
  const forth = log ? Math.log : (v) => v;
  const back = log ? Math.exp : (v) => v;
  let low = values.length ? forth(values.reduce((a, b) => Math.min(a, b))) : 0;
  let high = values.length ? forth(values.reduce((a, b) => Math.max(a, b))) : 1;
  if (low === high) {
    const wider = log ? Math.log(2) : Math.abs(low) / 10 || 1;
    [low, high] = [low - wider, high + wider];
  }
  const margin = room * (high - low);
  return [back(low - margin), back(high + margin)];
}

function scale(domain, range, log) {
  const forth = log ? Math.log : (v) => v;
  const [low, high] = domain.map(forth);
  return (value) => range[0] + ((forth(value) - low) / (high - low)) * (range[1] - range[0]);
}
