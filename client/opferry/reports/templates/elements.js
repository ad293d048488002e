// Elements. Text from the record gets into the page by textContent alone, so that it stays text.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null));
  return made;
}

function tableOf(className, headings, rows, isNumber = () => false) {
  const cell = (tag) => (content, place) =>
    element(tag, { class: isNumber(place) ? "number" : "" }, content);
  return element(
    "div",
    { class: "wide" },
    element(
      "table",
      { class: className },
      element("thead", {}, element("tr", {}, headings.map(cell("th")))),
      element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell("td"))))),
    ),
  );
}

function definitions(pairs) {
  const kept = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return element("dl", {}, kept.map(([name, value]) => [
    element("dt", {}, name), element("dd", {}, shown(value)),
  ]));
}

function status(word) {
  return element("span", { class: "status", "data-status": word }, word);
}

function command(text) {
  return element(
    "div",
    { class: "command" },
    element("code", {}, text),
    element("button", { type: "button", class: "copy" }, "Copy"),
  );
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // no clipboard for pages from a file: what is selected can be copied in the old way
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

document.addEventListener("click", (event) => {
  if (event.target.matches("button.copy")) copy(event.target);
});
