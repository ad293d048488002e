"use strict";
// Text reaches the page as text only: no name or message that the server tells can become markup.

const RETRY_MS = 2000;
const STALE_MS = 4000;
const TICK_MS = 200;
const WAITING = ["waiting_for_worker", "waiting_for_memory"];
const STATE_WORDS = {
  running: "running", uploading: "uploading", waiting_for_worker: "waiting",
  waiting_for_memory: "waiting",
};
const STATE_LOOKS = { running: "running", uploading: "uploading" };

const by = (id) => document.getElementById(id);
let heard = 0; // when the last snapshot came, by the page's own clock
let shown = null;

function put(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  return element;
}

function state(element, word, look = word) {
  put(element, word);
  if (element.dataset.state !== look) element.dataset.state = look;
}

// Keeps an element for each item by its key, so that what stays is not made again.
function list(parent, items, key, create, fill) {
  const known = new Map(Array.from(parent.children, (child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const name = String(key(item, at));
    let child = known.get(name);
    if (child === undefined) {
      child = create(item);
      child.dataset.key = name;
    }
    known.delete(name);
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
    fill(child, item);
  });
  known.forEach((child) => child.remove());
}

function row(numbers, count) {
  const line = make("tr");
  for (let at = 0; at < count; at += 1) line.append(make("td", numbers.includes(at) ? "number" : ""));
  return line;
}

function cells(line, texts) {
  texts.forEach((text, at) => {
    if (text === null) return;
    const cell = line.children[at];
    put(cell, text);
    if (cell.title !== String(text)) cell.title = text;
  });
}

function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 60) return `${s.toFixed(1)} s`;
  const whole = Math.floor(s);
  const two = (number) => String(number).padStart(2, "0");
  if (s < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (s < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${two(Math.floor(whole / 3600) % 24)} h`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

function moment(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  const at = new Date(seconds * 1000);
  const day = `${at.getDate()} ${at.toLocaleString("en", { month: "short" })}`;
  return `${day}, ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function draw(id, values) {
  const svg = by(id);
  const most = Math.max(4, ...values);
  const step = 120 / (values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(2)} ${(27 - (value / most) * 25).toFixed(2)}`);
  svg.classList.toggle("flat", !values.some(Boolean));
  svg.querySelector(".stroke").setAttribute("d", `M${points.join("L")}`);
  svg.querySelector(".area").setAttribute("d", `M0 28L${points.join("L")}L120 28Z`);
}

function meter(id, parts, whole) {
  list(by(id), Object.entries(parts), ([name]) => name, ([name]) => {
    const part = make("span");
    part.dataset.part = name;
    return part;
  }, (part, [, value]) => {
    // by the CSS object model: the page allows no style attributes
    part.style.width = `${whole ? Math.min(100, (value / whole) * 100) : 0}%`;
  });
}

function showServer(server, now) {
  put(by("server-id"), server.id);
  const title = `${server.id} · opferry`;
  if (document.title !== title) document.title = title;
  by("nature").hidden = server.real_device;
  list(by("about"), [
    ["backend", server.backend], ["version", server.version],
    ["listens on", server.address || "nothing yet"], ["up for", duration(now - server.started_s)],
  ], ([name]) => name, ([name]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd"));
    return pair;
  }, (pair, [, value]) => put(pair.lastChild, value));
}

function showTiles(snapshot) {
  const recent = snapshot.history.slice(-5);
  const rate = recent.reduce((sum, second) => sum + second[0], 0) / recent.length;
  put(by("rate"), rate >= 10 ? rate.toFixed(0) : rate.toFixed(1));
  put(by("total"), snapshot.requests.toLocaleString("en"));
  put(by("failed"), snapshot.history.reduce((sum, second) => sum + second[1], 0).toLocaleString("en"));
  put(by("failed-total"), snapshot.failed.toLocaleString("en"));
  draw("rate-line", snapshot.history.map((second) => second[0]));
  draw("failed-line", snapshot.history.map((second) => second[1]));

  const states = snapshot.queue.states;
  const count = (names) => names.reduce((sum, name) => sum + (states[name] ?? 0), 0);
  const parts = { running: count(["running"]), uploading: count(["uploading"]), waiting: count(WAITING) };
  put(by("inside"), count(Object.keys(states)));
  put(by("places"), snapshot.queue.places);
  put(by("queue-note"), `${parts.running} run, ${parts.uploading} upload, ${parts.waiting} wait`);
  meter("queue-meter", parts, snapshot.queue.places);

  const { used, leased, idle, limit } = snapshot.memory;
  put(by("memory"), bytes(used + leased));
  put(by("memory-limit"), bytes(limit));
  put(by("memory-note"), `${bytes(used)} used, ${bytes(leased)} leased, ${bytes(idle)} warm`);
  meter("memory-meter", { used, leased, idle }, limit);
}

function deviceState(device) {
  if (device.quarantined) return "quarantined";
  if (!device.ready) return "starting";
  if (device.leased_by) return "leased";
  return device.running.length ? "running" : "ready";
}

function makeDevice() {
  const card = make("article", "card");
  const head = make("header");
  head.append(make("h3"), make("span", "name"), make("span", "pill"));
  card.append(head, make("div", "does"), make("p", "facts"));
  return card;
}

function fillDevice(card, device) {
  const [head, does, facts] = card.children;
  const word = deviceState(device);
  if (card.dataset.state !== word) card.dataset.state = word;
  put(head.children[0], device.worker);
  put(head.children[1], device.device);
  state(head.children[2], word);
  const lines = device.running.slice(0, 2).map((job) => ({
    key: job.key, text: `${duration(job.state_s + age())} · ${job.tenant}`,
  }));
  if (device.running.length === 1) lines.push({ key: "what", look: "quiet", text: device.running[0].operator });
  if (device.running.length > 2) lines[1].text += `, and ${device.running.length - 2} more`;
  if (!device.ready && device.trouble) lines.splice(0, 2, { key: "trouble", look: "trouble", text: device.trouble });
  if (!lines.length) {
    const left = duration(device.lease_left_s - age());
    const text = device.leased_by && device.ready ? `leased by ${device.leased_by} for ${left} more`
      : device.ready ? `idle; ready for ${duration(device.ready_s + age())}` : "its process starts";
    lines.push({ key: "idle", look: "quiet", text });
  }
  list(does, lines, (line) => line.key, (line) => make("p", line.look), (paragraph, line) => {
    put(paragraph, line.text);
    if (line.look === "trouble") paragraph.title = line.text;
  });
  const memory = device.memory ? bytes(device.memory) : "–";
  const pairs = [["package", device.package], ["restarts", device.restarts], ["memory", memory]];
  list(facts, pairs, ([name]) => name, ([name]) => {
    const pair = make("span", "", `${name} `);
    pair.append(make("b"));
    return pair;
  }, (pair, [, value]) => put(pair.lastChild, value));
}

function fillJob(line, job) {
  const what = line.children[3];
  if (!what.firstChild) what.append(make("span"), make("span", "quiet"));
  if (!line.children[0].firstChild) line.children[0].append(make("span", "pill"));
  state(line.children[0].firstChild, STATE_WORDS[job.state], STATE_LOOKS[job.state] ?? job.state);
  put(line.children[1], duration(job.state_s + age()));
  line.children[1].title = `inside for ${duration(job.inside_s + age())}`;
  put(line.children[2], job.subject ? `${job.tenant} (${job.subject})` : job.tenant);
  line.children[2].title = line.children[2].textContent;
  put(what.firstChild, `${job.operator} `);
  put(what.lastChild, `${job.dtype} ${job.shape.join("×")}`);
  what.title = what.textContent;
  put(line.children[4], job.package);
  put(line.children[5], where(job));
  put(line.children[6], bytes(job.bytes));
  const id = line.children[7];
  if (!id.firstChild) id.append(make("code"));
  put(id.firstChild, job.request_id ?? job.priority);
  id.title = job.priority;
}

function where(job) {
  if (job.state === "running") return job.worker;
  if (job.state === "uploading") return "";
  const left = job.expected_wait_s ? `, ~${Math.ceil(job.expected_wait_s)} s` : "";
  return `place ${job.position + 1}${left}`;
}

function fillPackage(line, item) {
  cells(line, [
    item.is_default ? `${item.name} (default)` : item.name, null, null, item.digest,
  ]);
  const count = item.workers.length;
  put(line.children[2], count === 1 ? item.workers[0] : `${count || "no"} workers`);
  line.children[2].title = item.workers.join(", ");
  const known = line.children[1];
  if (!known.firstChild) known.append(make("span", "pill"));
  state(known.firstChild, item.known_answer ? item.known_answer.toLowerCase() : "not tried", item.known_answer || "off");
}

function fillFault(line, fault) {
  const what = fault.name ? `${fault.name} (${fault.how})` : fault.how;
  cells(line, [moment(fault.time_s), fault.worker, fault.device, fault.acl_error, what, fault.stage, fault.package]);
  line.children[3].classList.add("code-cell");
}

function age() {
  return (performance.now() - heard) / 1000;
}

// What goes on by itself between two snapshots: how long things last.
function tick() {
  const stale = !shown || performance.now() - heard > STALE_MS;
  document.body.toggleAttribute("data-stale", stale && shown !== null);
  if (stale) {
    if (shown) state(by("state"), `no answer for ${duration(age())}`, "no answer");
    return;
  }
  state(by("state"), shown.server.serving ? "serving" : "not serving");
  showServer(shown.server, shown.now_s + age());
  list(by("devices"), shown.devices, (device) => device.worker, makeDevice, fillDevice);
  list(by("jobs").tBodies[0], shown.jobs, (job) => job.key, () => row([1, 6], 8), fillJob);
}

function show(snapshot) {
  heard = performance.now();
  shown = snapshot;
  showTiles(snapshot);
  by("jobs-empty").hidden = snapshot.jobs.length > 0;
  put(by("jobs-more"), snapshot.jobs_more ? `and ${snapshot.jobs_more} more` : "");
  by("tenants-empty").hidden = snapshot.tenants.length > 0;
  list(by("tenants").tBodies[0], snapshot.tenants, (tenant) => tenant.name, () => row([1, 2, 3], 4), (line, tenant) => {
    const count = (names) => names.reduce((sum, name) => sum + (tenant.states[name] ?? 0), 0);
    cells(line, [tenant.name, count(["running"]), count(["uploading"]), count(WAITING)]);
  });
  list(by("packages").tBodies[0], snapshot.packages, (item) => item.name, () => row([], 4), fillPackage);
  by("faults-empty").hidden = snapshot.faults.length > 0;
  list(by("faults").tBodies[0], snapshot.faults, (fault) => `${fault.time_s} ${fault.worker}`, () => row([3], 7), fillFault);
  tick();
}

function listen() {
  const events = new EventSource("events");
  events.onmessage = (event) => show(JSON.parse(event.data));
  events.onerror = () => {
    // its own retries end with the first reply that is no stream
    events.close();
    setTimeout(listen, RETRY_MS);
  };
}

listen();
setInterval(tick, TICK_MS);
