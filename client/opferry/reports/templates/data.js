"use strict";

// The embedded data: an index of all cases, and their records, packed, since there may be 30,000.

const INDEX = JSON.parse(document.getElementById("case-index").textContent);
const CHUNKS = document.getElementById("case-chunks").textContent.trim().split("\n");

const CASES = INDEX.rows.map((values, number) => {
  const found = { number };
  INDEX.columns.forEach((name, place) => { found[name] = values[place]; });
  const groups = values.slice(INDEX.columns.length);
  found.groups = Object.fromEntries(INDEX.groups.map((name, place) => [name, groups[place]]));
  found.sought = `${found.name}\n${found.reason}`.toLowerCase();
  return found;
});

// The order in which a reader wants them: what needs him first.
const SEVERITY = ["FAIL", "ERROR", "NOT RUN", "PASS", "EXECUTED", "DISABLED"];

function severity(status) {
  const place = SEVERITY.indexOf(status);
  return place < 0 ? 0 : place;
}

// The records of the cases of one chunk; the last one that was unpacked is kept.
let unpacked = { chunk: -1, records: [] };

async function recordOf(item) {
  const chunk = INDEX.starts.findLastIndex((start) => start <= item.number);
  if (unpacked.chunk !== chunk) {
    const packed = Uint8Array.from(atob(CHUNKS[chunk]), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked = { chunk, records: (await new Response(stream).text()).split("\n") };
  }
  return JSON.parse(unpacked.records[item.number - INDEX.starts[chunk]]);
}

function commandOf(item) {
  return `${INDEX.commands[item.part]} -t ${item.quoted}`;
}

// Numbers as a person reads them; "nan" and "inf" come as words. Nine digits tell all float32.
function shown(value, digits = 6) {
  if (value === undefined || value === null || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

// Thresholds, most of which are powers of two.
function power(value) {
  const exponent = typeof value === "number" && value > 0 ? Math.log2(value) : 0.5;
  return exponent < 0 && Number.isInteger(exponent) ? `2^${exponent}` : shown(value);
}
