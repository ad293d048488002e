// The table: rows are made as they are scrolled to, and a case's details when it is unfolded.

const CHUNK = 200;

// Each column: what is written, and by what it is sorted.
const HEADINGS = [
  { title: "row", class: "number row", key: (item) => item.row, cell: (item) => String(item.row) },
  { title: "case", class: "name", key: (item) => item.name, cell: (item) => element(
    "button", { type: "button", class: "fold", "aria-expanded": "false" }, item.name) },
  { title: "verdict", class: "verdict", key: (item) => severity(item.status),
    cell: (item) => status(item.status) },
  ...INDEX.groups.filter((name) => name !== "standard").map((name) => ({
    title: name, class: "group", key: (item) => item.groups[name], cell: (item) => item.groups[name] })),
  { title: "largest error", class: "number error", key: (item) => item.error,
    cell: ({ error, output }) => (error === null ? "" : `${Number(error.toPrecision(3))} ${output}`) },
  { title: "kernel µs", class: "number kernel", key: (item) => item.kernel,
    cell: ({ kernel }) => (kernel === null ? "" : kernel.toFixed(1)) },
  { title: "reason", class: "why", key: (item) => item.reason, cell: (item) => element("span", {}, item.reason) },
];

const BODY = document.querySelector("#case-table tbody");
const MORE = document.getElementById("more");
const TEXT = document.getElementById("filter-text");

const wanted = { statuses: new Set(), groups: {}, text: "" };
let order = { heading: null, descending: false };
let visible = [];
let made = 0;

function choose() {
  visible = CASES.filter((item) =>
    (!wanted.statuses.size || wanted.statuses.has(item.status)) &&
    item.sought.includes(wanted.text) &&
    Object.entries(wanted.groups).every(([name, value]) => item.groups[name] === value));
  const key = order.heading ? order.heading.key : (item) => severity(item.status);
  const absent = (value) => value === undefined || value === null || value === "";
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  const keyed = visible.map((item) => [key(item), item]);
  keyed.sort(([a, first], [b, second]) => {
    if (absent(a) || absent(b)) return absent(a) - absent(b) || first.number - second.number;
    return (order.descending ? -compare(a, b) : compare(a, b)) || first.number - second.number;
  });
  visible = keyed.map(([, item]) => item);
  forget(BODY);
  BODY.replaceChildren();
  made = 0;
  makeRows();
  document.getElementById("filter-count").textContent =
    `${visible.length.toLocaleString("en")} of ${CASES.length.toLocaleString("en")} shown`;
}

function makeRows() {
  const next = visible.slice(made, made + CHUNK);
  BODY.append(...next.map(rowFor));
  made += next.length;
  MORE.hidden = made >= visible.length;
}

function rowFor(item) {
  const cells = HEADINGS.map(({ class: name, cell }) => element("td", { class: name }, cell(item)));
  const row = element("tr", { class: "case", id: `row-${item.row}` }, cells);
  row.item = item;
  return row;
}

async function unfold(row, open) {
  const button = row.querySelector(".fold");
  if ((button.getAttribute("aria-expanded") === "true") === open) return;
  button.setAttribute("aria-expanded", String(open));
  if (open) {
    const details = element("div", { class: "details" });
    row.after(element("tr", { class: "unfolded" }, element("td", { colspan: HEADINGS.length }, details)));
    const record = await recordOf(row.item);
    details.append(...detailsOf(row.item, record).flat(Infinity).filter(Boolean));
  } else {
    forget(row.nextElementSibling);
    row.nextElementSibling.remove();
  }
}

BODY.addEventListener("click", (event) => {
  const row = event.target.closest("tr.case");
  if (!row || getSelection().toString()) return;
  unfold(row, row.querySelector(".fold").getAttribute("aria-expanded") !== "true");
});

function makeHeadings() {
  const buttons = HEADINGS.map((heading) => {
    const button = element("button", { type: "button", class: "sort", onclick: () => {
      order = { heading, descending: order.heading === heading && !order.descending };
      for (const cell of buttons) cell.removeAttribute("aria-sort");
      button.parentElement.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
      choose();
    } }, heading.title);
    return element("th", { scope: "col", class: heading.class }, button);
  });
  document.querySelector("#case-table thead").append(element("tr", {}, buttons));
}

function makeFilters() {
  const counts = {};
  for (const { status: word } of CASES) counts[word] = (counts[word] || 0) + 1;
  const present = Object.keys(counts).sort((a, b) => severity(a) - severity(b));
  document.getElementById("filter-statuses").append(...present.map((word) =>
    element("button", { type: "button", class: "chip status", "data-status": word, "aria-pressed": "false",
      onclick: (event) => {
        const on = !wanted.statuses.has(word);
        if (on) wanted.statuses.add(word);
        else wanted.statuses.delete(word);
        event.currentTarget.setAttribute("aria-pressed", String(on));
        choose();
      } }, `${word} ${counts[word].toLocaleString("en")}`)));
  for (const name of INDEX.groups) {
    const values = [...new Set(CASES.map((item) => item.groups[name]))].sort();
    if (values.length < 2) continue;
    const select = element("select", { "data-group": name, "aria-label": name,
      onchange: () => setGroup(name, select.selectedIndex ? values[select.selectedIndex - 1] : null) },
    element("option", {}, `every ${name}`), values.map((value) => element("option", {}, value || "none")));
    select.values = values;
    document.getElementById("filter-groups").append(select);
  }
}

function setGroup(name, value) {
  if (value === null) delete wanted.groups[name];
  else wanted.groups[name] = value;
  for (const select of document.querySelectorAll("#filter-groups select")) {
    if (select.dataset.group === name) select.selectedIndex = select.values.indexOf(value) + 1;
  }
  choose();
}

function reset() {
  wanted.statuses.clear();
  wanted.groups = {};
  wanted.text = TEXT.value = "";
  for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", "false");
  for (const select of document.querySelectorAll("#filter-groups select")) select.selectedIndex = 0;
  choose();
}

// #row-17 in the address unfolds the case of row 17.
async function showNamed() {
  const place = visible.findIndex((item) => `#row-${item.row}` === location.hash);
  if (place < 0) return;
  while (made <= place) makeRows();
  const row = document.getElementById(location.hash.slice(1));
  await unfold(row, true);
  row.scrollIntoView();
}

makeHeadings();
makeFilters();
choose();
showNamed();

TEXT.addEventListener("input", () => {
  wanted.text = TEXT.value.trim().toLowerCase();
  choose();
});
document.getElementById("filter-reset").addEventListener("click", reset);
document.querySelector("#summary").addEventListener("click", (event) => {
  const { group, value } = event.target.dataset;
  if (group === undefined) return;
  setGroup(group, value);
  document.getElementById("cases").scrollIntoView();
});
addEventListener("hashchange", () => {
  reset();
  showNamed();
});
MORE.addEventListener("click", makeRows);
new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting)) makeRows();
}, { rootMargin: "600px" }).observe(MORE);
