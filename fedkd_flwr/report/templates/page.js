"use strict";

const CONFIG = {
  responsive: true,
  displaylogo: false,
  showTips: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};
const AT_ONCE = { mode: "immediate", frame: { duration: 0, redraw: true }, transition: { duration: 0 } };

// Figures contain CSS variables such as var(--ink); their values depend on the theme.
function themedFigure(chart) {
  const style = getComputedStyle(document.documentElement);
  const text = chart.querySelector("script").textContent;
  return JSON.parse(text.replace(/var\((--[a-z]+)\)/g, (_, name) => style.getPropertyValue(name).trim()));
}

async function draw(chart) {
  const { data, layout, frames } = themedFigure(chart);
  // Set the height on the element: plotly loses its own when the page is resized.
  const { height } = layout;
  delete layout.height;
  // On touch screens, dragging scrolls the page.
  if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
  const plot = chart.querySelector(".plot");
  plot.style.height = `${height}px`;
  await Plotly.react(plot, { data, layout, frames, config: CONFIG });
  // On a narrow page the legend has more lines; give it room, so that the curves keep their height.
  const legend = plot.querySelector("g.legend");
  if (!legend) return;
  plot.style.height = `${height + Math.round(legend.getBBox().height)}px`;
  await Plotly.Plots.resize(plot);
}

function read(steps, name) {
  return JSON.parse(steps.querySelector(`script.${name}`).textContent);
}

async function move(steps) {
  const position = Number(steps.querySelector("input").value);
  const label = read(steps, "labels")[position];
  // If the slider moves quickly, only the latest position is drawn.
  if (steps.dataset.shown === label) return;
  steps.dataset.shown = label;
  steps.querySelector("output").textContent = label;
  const text = steps.querySelector(".text");
  if (text) text.textContent = read(steps, "texts")[position];
  for (const plot of steps.querySelectorAll(".plot")) await Plotly.animate(plot, [label], AT_ONCE);
}

async function drawAll() {
  for (const chart of document.querySelectorAll(".chart")) await draw(chart);
  for (const steps of document.querySelectorAll(".steps")) {
    delete steps.dataset.shown;
    await move(steps);
  }
}

// Draw one after another: plotly aborts a drawing when another one starts.
// The attribute data-drawn says whether all figures are drawn.
let lastWork = Promise.resolve();
function queue(work) {
  document.documentElement.dataset.drawn = "no";
  const own = lastWork.then(work).then(() => {
    if (own === lastWork) document.documentElement.dataset.drawn = "yes";
  });
  lastWork = own;
}

function keyOf(row, column) {
  const cell = row.cells[column];
  if (!cell.classList.contains("number")) return cell.textContent;
  return cell.dataset.key === "" ? null : Number(cell.dataset.key);
}

// Missing values stay at the end in both directions.
function compared(a, b, direction) {
  if (a === null || b === null) return (a === null) - (b === null);
  return direction * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
}

function sortBy(heading) {
  const table = heading.closest("table");
  const order = heading.ariaSort === "ascending" ? "descending" : "ascending";
  const direction = order === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, heading.cellIndex), row]);
  rows.sort(([a], [b]) => compared(a, b, direction));
  table.tBodies[0].append(...rows.map(([, row]) => row));
  const section = heading.closest("#methods") ?? table;
  for (const other of section.querySelectorAll("th")) other.ariaSort = null;
  heading.ariaSort = order;
  if (section !== table) alignRows(section, rows.map(([, row]) => keyOf(row, 0)));
}

// The tables of methods have one row per method; all of them keep the same order.
function alignRows(section, names) {
  for (const body of section.querySelectorAll("tbody")) {
    const rows = new Map([...body.rows].map((row) => [keyOf(row, 0), row]));
    body.append(...names.map((name) => rows.get(name)));
  }
}

for (const steps of document.querySelectorAll(".steps")) {
  steps.querySelector("input").addEventListener("input", () => queue(() => move(steps)));
}
for (const heading of document.querySelectorAll("table.sortable th")) {
  heading.querySelector("button").addEventListener("click", () => sortBy(heading));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => queue(drawAll));
queue(drawAll);
