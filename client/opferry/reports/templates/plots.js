// Plots. Plotly is run when the first one is wanted, and each is drawn when it comes into view.

const PLOTS = new Set();
const SIGHT = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "200px" });

function plotly() {
  if (!window.Plotly) {
    const source = document.getElementById("plotly-source").textContent;
    document.head.append(element("script", {}, source));
  }
  return window.Plotly;
}

// A place for a plot; figure() returns {data, layout} with the colours of the moment.
function plot(className, figure) {
  const place = element("div", { class: `plot ${className}` });
  place.figure = figure;
  SIGHT.observe(place);
  return place;
}

function draw(place) {
  SIGHT.unobserve(place);
  PLOTS.add(place);
  const { data, layout } = place.figure();
  plotly().react(place, data, layout, { displayModeBar: false, responsive: true });
}

function redraw() {
  for (const place of PLOTS) {
    if (place.isConnected) draw(place);
    else PLOTS.delete(place);
  }
}

function forget(parent) {
  for (const place of parent.querySelectorAll(".plot")) {
    SIGHT.unobserve(place);
    if (PLOTS.delete(place)) window.Plotly.purge(place);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
matchMedia("print").addEventListener("change", redraw);
addEventListener("beforeprint", () => {
  for (const place of document.querySelectorAll(".plot")) if (place.offsetParent) draw(place);
});

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function layoutOf(title, x, y, rest = {}) {
  const axis = (said) => ({
    gridcolor: colour("line"), zeroline: false, linecolor: colour("line"),
    automargin: true, fixedrange: true, ...said, title: { text: said.title, standoff: 6 },
  });
  return {
    title: { text: title, font: { size: 13 }, x: 0, xref: "paper", xanchor: "left", y: 0.97 },
    font: { family: "system-ui, sans-serif", size: 11, color: colour("text") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 44, r: 12, t: 34, b: 40 }, bargap: 0.08, showlegend: false,
    hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("text") } },
    xaxis: axis(x), yaxis: axis(y), ...rest,
  };
}

// How many elements have an error of which size, by powers of two; mark is drawn as a line.
function histogram(title, found, mark) {
  const exponents = Object.keys(found.counts).map(Number).sort((a, b) => a - b);
  if (!exponents.length && !found.exact_count) return null;
  const first = exponents.length ? exponents[0] : 0;
  const last = exponents.length ? exponents[exponents.length - 1] : 0;
  const words = (exponent) => `2<sup>${exponent}</sup>`.replace("-", "−");
  return plot("histogram", () => {
    const apart = Math.max(1.5, (last - first) * 0.09);
    const exact = first - apart;
    const step = Math.max(1, Math.ceil((last - first + 1) / 7));
    const ticks = [];
    for (let at = first; exponents.length && at <= last + 1; at += step) ticks.push(at);
    const counts = exponents.map((exponent) => found.counts[exponent]);
    const most = Math.max(found.exact_count || 0, ...counts, 1);
    const bars = {
      type: "bar", hoverinfo: "text", marker: { color: colour("bar") },
      x: exponents.map((exponent) => exponent + 0.5), y: counts,
      hovertext: exponents.map((exponent, place) =>
        `${counts[place].toLocaleString("en")} elements from ${words(exponent)} to ${words(exponent + 1)}`),
    };
    const equal = {
      type: "bar", hoverinfo: "text", marker: { color: colour("good") },
      width: apart / 2, x: [exact], y: [found.exact_count || 0],
      hovertext: [`${(found.exact_count || 0).toLocaleString("en")} elements without an error`],
    };
    const marked = mark ? {
      shapes: [{
        type: "line", x0: Math.log2(mark.value), x1: Math.log2(mark.value), yref: "paper",
        y0: 0, y1: 1, line: { color: colour("bad"), width: 1.5, dash: "dash" },
      }],
      annotations: [{
        x: Math.log2(mark.value), yref: "paper", y: 1, text: mark.name, showarrow: false,
        xanchor: "left", yanchor: "top", font: { color: colour("bad") },
      }],
    } : {};
    return {
      data: [equal, bars],
      layout: layoutOf(
        title,
        { tickvals: [exact, ...ticks], ticktext: ["0", ...ticks.map(words)], showgrid: false,
          range: [exact - apart / 2, exponents.length ? last + 1.8 : exact + apart / 2], tickangle: 0 },
        { title: "elements", type: "log", dtick: 1, tickformat: "~s", range: [-0.3, Math.log10(most) + 0.25] },
        marked,
      ),
    };
  });
}

const AXES = ["position", "head", "dim"];

// Where the elements lie that do not pass: the sums over each axis that the others leave.
function heatMaps(map) {
  const pairs = [[1, 2], [0, 2], [0, 1]].filter(([y, x]) => map.bins[y] > 1 && map.bins[x] > 1);
  const shown = pairs.length ? pairs : [[1, 2]];
  return shown.map((pair) => heatMap(map, pair));
}

function heatMap(map, [y, x]) {
  const summed = 3 - y - x;
  const choice = element(
    "select", { "aria-label": AXES[summed] },
    element("option", { value: "" }, `every ${AXES[summed]}`),
    binsOf(map, summed).map((name, bin) => element("option", { value: bin }, `${AXES[summed]} ${name}`)),
  );
  const place = plot("heat", () => heatFigure(map, y, x, choice.value));
  choice.addEventListener("change", () => draw(place));
  const few = map.bins[summed] < 2;
  return element("div", { class: "chosen" }, few ? null : choice, place);
}

function bound(map, axis, bin) {
  return Math.floor((bin * map.extents[axis]) / map.bins[axis]);
}

function binsOf(map, axis) {
  return Array.from({ length: map.bins[axis] }, (_, bin) => {
    const first = bound(map, axis, bin);
    const last = bound(map, axis, bin + 1) - 1;
    return first === last ? `${first}` : `${first}–${last}`;
  });
}

function heatFigure(map, y, x, only) {
  const summed = 3 - y - x;
  const [names, others] = [binsOf(map, y), binsOf(map, x)];
  const size = (axis, bin) => bound(map, axis, bin + 1) - bound(map, axis, bin);
  const layers = only === "" ? binsOf(map, summed).map((_, bin) => bin) : [Number(only)];
  const shares = [], texts = [];
  names.forEach((name, row) => {
    shares.push([]);
    texts.push([]);
    others.forEach((other, column) => {
      let failing = 0, total = 0;
      for (const layer of layers) {
        const at = [];
        at[y] = row; at[x] = column; at[summed] = layer;
        failing += map.failing[(at[0] * map.bins[1] + at[1]) * map.bins[2] + at[2]];
        total += size(y, row) * size(x, column) * size(summed, layer);
      }
      shares[row].push(failing ? failing / total : null);
      texts[row].push(`${AXES[y]} ${name}, ${AXES[x]} ${other}<br>` +
        `${failing.toLocaleString("en")} of ${total.toLocaleString("en")} do not pass`);
    });
  });
  const ticks = (found) => {
    const step = Math.ceil(found.length / 6);
    const at = found.map((_, bin) => bin).filter((bin) => bin % step === 0);
    return { tickvals: at, ticktext: at.map((bin) => found[bin].split("–")[0]) };
  };
  return {
    data: [{
      type: "heatmap", z: shares, text: texts, hoverinfo: "text", hoverongaps: false,
      zmin: 0, zmax: Math.max(...shares.flat(), 1e-9), xgap: 1, ygap: 1,
      colorscale: [[0, colour("heat-low")], [1, colour("heat-high")]],
      colorbar: { thickness: 8, tickformat: ".2~p", nticks: 4, outlinewidth: 0 },
    }],
    layout: layoutOf(
      `Share of elements that do not pass${only === "" ? "" : `, ${AXES[summed]} ${binsOf(map, summed)[only]}`}`,
      { title: AXES[x], showgrid: false, range: [-0.5, others.length - 0.5], ...ticks(others) },
      { title: AXES[y], showgrid: false, range: [names.length - 0.5, -0.5], ...ticks(names) },
      { plot_bgcolor: colour("empty") },
    ),
  };
}

function slicePlot(found) {
  const where = found.index.map((number, axis) => (axis === found.index.length - 1 ? ":" : number));
  const finite = (values) => values.map((value) => (typeof value === "number" ? value : null));
  return plot("slice", () => {
    const line = (name, values, said, dash) => ({
      type: "scatter", name, y: finite(values), mode: values.length > 64 ? "lines" : "lines+markers",
      line: { color: colour(said), width: 1.6, dash }, marker: { size: 5 },
    });
    const lost = found.actual.map((value, at) => at).filter((at) => typeof found.actual[at] !== "number");
    const crosses = {
      type: "scatter", name: "output not finite", mode: "markers", hoverinfo: "text", x: lost,
      y: lost.map((at) => finite(found.golden)[at] ?? 0), text: lost.map((at) => `output ${found.actual[at]}`),
      marker: { symbol: "x", size: 9, color: colour("actual") },
    };
    return {
      data: [
        line("golden", found.golden, "golden", "solid"),
        line("output", found.actual, "actual", "dot"),
        ...(lost.length ? [crosses] : []),
      ],
      layout: layoutOf(
        `First failing slice: [${where.join(", ")}]`,
        { title: "dim", showgrid: false }, {},
        { showlegend: true, legend: { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom" } },
      ),
    };
  });
}
