"use strict";

// Figures come as plain values; colors and fonts are those of the page, so that light and dark both fit.
const figures = JSON.parse(document.getElementById("figures").textContent);
const config = { displayModeBar: false, responsive: true, scrollZoom: false, plotlyServerURL: "" };
let axis = "round";

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function merged(base, more) {
  const result = { ...base };
  for (const [key, value] of Object.entries(more || {})) {
    const nested = value && typeof value === "object" && !Array.isArray(value);
    result[key] = nested ? merged(result[key] || {}, value) : value;
  }
  return result;
}

function trace(spec) {
  const shade = color(spec.meta.color);
  const result = { ...spec, marker: { ...spec.marker, color: shade } };
  if (spec.line) result.line = { ...spec.line, color: shade };
  if (spec.meta.outlined) result.marker.line = { color: color("card"), width: 1 };
  if (spec.meta.x) {
    result.x = spec.meta.x[axis];
    // Exact methods coincide round by round: what lies below is drawn wider, so that every run is seen.
    const more = axis === "round" ? 2.4 * spec.meta.hidden : 0;
    result.line.width += more;
    result.marker.size += more;
  }
  return result;
}

function layout(spec, height) {
  const line = { gridcolor: color("rule"), linecolor: color("rule"), zeroline: false, ticks: "", fixedrange: true };
  const title = { font: { size: 13, color: color("soft") }, standoff: 10 };
  const base = {
    height,
    autosize: true,
    showlegend: false,
    hovermode: "x unified",
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 58, r: 16, t: 10, b: 48 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: color("soft") },
    hoverlabel: { bgcolor: color("card"), bordercolor: color("rule"), font: { color: color("ink"), size: 13 } },
    xaxis: { ...line, title },
    yaxis: { ...line, title },
  };
  const result = merged(base, spec);
  if (spec.meta && spec.meta.x) {
    result.xaxis.title.text = spec.meta.x[axis];
    if (spec.meta.step[axis]) result.xaxis.dtick = spec.meta.step[axis];
  }
  return result;
}

function draw() {
  for (const figure of figures) {
    Plotly.react(figure.name, figure.traces.map(trace), layout(figure.layout, figure.height), config);
  }
}

for (const button of document.querySelectorAll("[data-axis]")) {
  button.addEventListener("click", () => {
    axis = button.dataset.axis;
    for (const other of document.querySelectorAll("[data-axis]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    draw();
  });
}

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
