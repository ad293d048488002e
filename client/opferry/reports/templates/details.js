// What unfolds below a case.

// Figures that a standard limits: name in words, figure, threshold, how they compare.
const LIMITED = [
  ["share of passing elements", "share", "min_share", "≥"],
  ["largest absolute error", "max_abs_error", "max_abs_error", "≤"],
  ["mean relative error", "mean_rel_error", "mean_rel_error", "<"],
  ["largest relative error", "max_rel_error", "max_rel_error", "<"],
  ["NaN or infinity on one side", "mismatch_count", "", "≤"],
];

const HOLDS = {
  "≥": (figure, limit) => figure >= limit,
  "≤": (figure, limit) => figure <= limit,
  "<": (figure, limit) => figure < limit,
};

const STAGES = [
  ["queue", "queue_us"], ["upload", "upload_us"], ["host to device", "host_to_device_us"],
  ["stage one", "stage_one_us"], ["kernel, median", "kernel_us"],
  ["device to host", "device_to_host_us"], ["download", "download_us"],
  ["making the inputs", "generate_us"], ["golden", "golden_us"], ["comparison", "compare_us"],
  ["whole case", "total_us"],
];

// Figures that say where a case ran.
const WHERE = [
  "request_id", "worker", "backend", "real_device", "device", "soc_name", "cann_version",
  "operator_package", "package_digest", "known_answer", "library_file",
];

function detailsOf(item, record) {
  const { figures } = record;
  const inWords = (name) => name.replaceAll("_", " ");
  return [
    figures.reason ? element("p", { class: "reason" }, figures.reason) : null,
    element("h4", {}, "To run it alone"), command(commandOf(item)),
    element(
      "div", { class: "panels" },
      element("div", {}, element("h4", {}, "Call"), definitions([
        ["operator", record.operator], ...Object.entries(record.attributes),
        ...WHERE.map((name) => [inWords(name), figures[name]]),
      ])),
      timesOf(figures),
    ),
    inputsOf(record.inputs),
    record.outputs.map(outputOf),
    rowOf(record.columns),
  ];
}

function timesOf(figures) {
  const known = STAGES.filter(([, name]) => figures[name] > 0);
  if (!known.length) return null;
  const longest = Math.max(...known.map(([, name]) => figures[name]));
  const rows = known.map(([said, name]) => {
    const runs = name === "kernel_us" && figures.run_count > 1
      ? ` (${shown(figures.kernel_min_us)} to ${shown(figures.kernel_max_us)}, ${figures.run_count} runs)` : "";
    const bar = element("span", { class: "time" });
    bar.style.width = `${(100 * figures[name]) / longest}%`;
    return [said, shown(figures[name]) + runs, bar];
  });
  return element("div", {}, element("h4", {}, "Times"),
    tableOf("times", ["stage", "µs", ""], rows, (place) => place === 1));
}

function inputsOf(inputs) {
  if (!inputs.length) return null;
  const rows = inputs.map((input) => [
    input.name, input.dtype, `[${input.shape.join(", ")}]`, viewOf(input),
    input.range.length ? rangeOf(input.range) : "–", shown(input.distribution),
    element("code", {}, shown(input.digest)),
  ]);
  const headings = ["input", "dtype", "shape", "view", "range", "distribution", "digest (XXH3)"];
  return [element("h4", {}, "Inputs"), tableOf("inputs", headings, rows)];
}

function viewOf(input) {
  if (!input.strides && !input.storage_shape && !input.storage_offset) return "contiguous";
  const said = [];
  if (input.strides) said.push(`strides [${input.strides.join(", ")}]`);
  if (input.storage_offset) said.push(`offset ${input.storage_offset}`);
  if (input.storage_shape) said.push(`storage [${input.storage_shape.join(", ")}]`);
  return said.join(", ");
}

function rangeOf([low, high, ...certain]) {
  return `${shown(low)} to ${shown(high)}${certain.length ? `, with ${certain.map(shown).join(", ")}` : ""}`;
}

function outputOf(output) {
  const failed = output.status === "FAIL" || output.status === "MISSING";
  const parts = [
    element("h3", {}, `${output.short_name} `, element("small", {}, output.name), " ", status(output.status)),
    output.reason ? element("p", { class: "reason" }, output.reason) : null,
    element("p", { class: "what" },
      [`${output.dtype} [${output.shape.join(", ")}]`,
        output.digest ? `digest ${output.digest}` : "",
        output.golden_digest && output.digest
          ? (output.golden_digest === output.digest ? "the golden's very bits" : `golden ${output.golden_digest}`)
          : ""].filter(Boolean).join(" · ")),
  ];
  if (Object.keys(output.figures).length) {
    const worst = worstOf(output.worst);
    parts.push(element("div", { class: "panels" }, figuresOf(output), worst));
    const plots = plotsOf(output);
    if (plots.length && failed) parts.push(element("div", { class: "plots" }, plots));
    else if (plots.length) {
      parts.push(element("details", {}, element("summary", {}, "Plots"), element("div", { class: "plots" }, plots)));
    }
  }
  return element("section", { class: "output" }, parts);
}

function figuresOf(output) {
  const figures = output.figures, thresholds = { ...output.thresholds };
  if (thresholds.ptol !== undefined) thresholds.min_share = 1 - thresholds.ptol;
  const rows = LIMITED.filter(([, name]) => figures[name] !== undefined).map(([said, name, limit, sign]) => {
    const allowed = limit ? thresholds[limit] : 0;
    if (allowed === undefined) return [said, shown(figures[name]), "", ""];
    const holds = HOLDS[sign](Number(figures[name]), Number(allowed));
    return [said, shown(figures[name]), `${sign} ${power(allowed)}`,
      element("span", { class: holds ? "good" : "bad" }, holds ? "✓" : "✗")];
  });
  rows.unshift(["elements that pass", `${shown(figures.passing_count)} of ${shown(figures.element_count)}`, "", ""]);
  const { statistics } = output;
  if (statistics.rmse !== undefined) rows.push(["RMSE", shown(statistics.rmse), "", ""]);
  if (statistics.small_error_count) rows.push(["errors at small values", shown(statistics.small_error_count), "", ""]);
  const others = Object.entries(thresholds).filter(([name]) =>
    !LIMITED.some(([, , limit]) => limit === name)).map(([name, value]) => `${name} ${power(value)}`);
  return element("div", {},
    tableOf("figures", ["figure", "found", "allowed", ""], rows, (place) => place === 1 || place === 2),
    others.length ? element("p", { class: "what" }, `thresholds: ${others.join(", ")}`) : null);
}

function worstOf(worst) {
  if (!worst.length) return null;
  const rows = worst.map((item) => [
    `[${item.index.join(", ")}]`, shown(item.actual, 9), shown(item.golden, 9), shown(item.abs_error), shown(item.ulps),
  ]);
  return element("div", {}, tableOf("worst", ["worst at", "output", "golden", "error", "ULP"], rows, (place) => place > 0));
}

function plotsOf(output) {
  const { rtol, max_rel_error: limit } = output.thresholds;
  const mark = limit ? { name: "limit", value: limit } : rtol ? { name: "rtol", value: rtol } : null;
  return [
    histogram("Relative error against the golden", output.relative_errors, mark),
    histogram("Distance from the golden in ULP", output.ulp_distances, null),
    output.failing_slice ? slicePlot(output.failing_slice) : null,
    ...(output.heat_map ? heatMaps(output.heat_map) : []),
  ].filter(Boolean);
}

function rowOf(columns) {
  const filled = Object.entries(columns).filter(([, cell]) => cell !== "");
  return element("details", {}, element("summary", {}, "The row in the case file"), definitions(filled));
}
