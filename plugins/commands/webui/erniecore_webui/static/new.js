// A new run: a field changes the text, the text fills the fields, and both show what the command says of them.
"use strict";

const draft = document.getElementById("new");
const text = document.getElementById("text");
const nameField = document.getElementById("name");
const fields = document.getElementById("fields");
const verdict = document.getElementById("verdict");
let plugins = "";
let asked = 0;
let timer = 0;
let changes = [];  // fields that were changed and are not in the text yet
let busy = false;
let submitting = false;
let toolkit = "";  // whose settings these are, if not ours

function later(wait) {
  clearTimeout(timer);
  verdict.textContent = draft.dataset.planning;
  draft.dataset.settled = "";
  timer = setTimeout(ask, wait);
}

function again(sent) {
  const newer = new Set(changes.map(([key]) => key));
  changes = [...sent.filter(([key]) => !newer.has(key)), ...changes];
}

function change(key, value) { changes = [...changes.filter(([other]) => other !== key), [key, value]]; }

async function post(path, given) {
  const answer = await fetch(path, { method: "POST", body: new URLSearchParams(given), headers: { "X-CSRF-Token": csrf } });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

async function ask() {
  if (busy) { timer = setTimeout(ask, 100); return; }
  busy = true;
  const number = ++asked;
  const before = text.value;
  const sent = changes;
  changes = [];
  try {
    const found = await post("/new/check", { text: before, changes: JSON.stringify(sent), plugins, name: nameField.value });
    // what was typed into the text meanwhile wins; a field that changed it is asked again
    if (text.value === before) { if (text.value !== found.text) text.value = found.text; } else again(sent);
    if (number === asked) show(found);
    if (changes.length || text.value !== found.text) later(0);
  } catch {
    again(sent);
    verdict.textContent = draft.dataset.offline;
    verdict.className = "notice failed";
  } finally {
    busy = false;
  }
}

function element(name, content, more) { return Object.assign(document.createElement(name), { textContent: content, ...more }); }

// An error as the command says it: its code leads to the reference, then what is wrong and the remedy.
function told(error) {
  const line = document.createElement("p");
  if (error.code) line.append(element("a", error.code, { href: `/errors/${error.code}`, target: "_blank", rel: "noopener" }), " ");
  line.append(error.text);
  if (error.fix) line.append(" ", element("span", `${draft.dataset.fix} ${error.fix}`, { className: "fix" }));
  if (error.next) line.append(" ", element("span", draft.dataset.next, { className: "fix" }), " ", element("code", error.next));
  return line;
}

function fill(field, value) {
  if (field.tagName === "FIELDSET") {
    const names = value.split(", ");
    for (const box of field.querySelectorAll("input")) box.checked = names.includes(box.value);
    return;
  }
  if (field.tagName === "SELECT" && ![...field.options].some((o) => o.value === value)) field.add(new Option(value));
  field.value = value;
}

function renew(html) {
  const focused = document.activeElement;
  const key = focused && fields.contains(focused) ? focused.closest("[data-key]")?.id : "";
  const box = key && focused.type === "checkbox" ? focused.value : "";
  const open = [...fields.querySelectorAll("details[open] > summary code")].map((e) => e.textContent);
  fields.innerHTML = html;
  for (const group of fields.querySelectorAll("details.group")) group.open = open.includes(group.querySelector("code").textContent);
  const field = key ? document.getElementById(key) : null;
  (box ? [...field.querySelectorAll("input")].find((e) => e.value === box) : field)?.focus();
  filter();
}

function show(found) {
  if (found.fields) renew(found.fields);
  if (found.plugins !== undefined) plugins = found.plugins;
  const waiting = new Set(changes.map(([key]) => key));
  for (const field of fields.querySelectorAll("[data-key]")) {
    const key = field.dataset.key;
    const bad = found.errors[key] || [];
    document.getElementById(`f-${key}-bad`).replaceChildren(...bad.map(told));
    if (bad.length) field.setAttribute("aria-invalid", "true"); else field.removeAttribute("aria-invalid");
    if (bad.length) field.closest("details.group")?.setAttribute("open", "");
    if (found.values && !waiting.has(key) && (field !== document.activeElement || field.tagName === "SELECT")) fill(field, found.values[key] || "");
  }
  document.getElementById("general").replaceChildren(...found.general.map((error) => {
    const item = document.createElement("li");
    item.append(told(error));
    return item;
  }));
  toolkit = found.toolkit || "";
  const at = document.getElementById("at");
  at.replaceChildren(...Object.keys(found.errors).map((key) => element("a", key, { href: `#f-${key}` })));
  at.hidden = at.children.length === 0;
  document.getElementById("convert").hidden = !toolkit;
  document.getElementById("toolkit").textContent = found.toolkit ? draft.dataset.foreign.replace("{toolkit}", found.toolkit) : "";
  const count = Object.values(found.errors).reduce((sum, errors) => sum + errors.length, 0) + found.general.length;
  verdict.textContent = count ? draft.dataset.wrong.replace("{n}", count) : found.toolkit ? "" : draft.dataset.right;
  verdict.className = count ? "notice failed" : found.toolkit ? "" : "notice ok";
  plan(found.plan || "");
  document.getElementById("start").disabled = count > 0 || Boolean(found.toolkit);
  if (found.command) {
    document.getElementById("command").textContent = found.command;
    document.getElementById("copy").dataset.copy = found.command;
  }
  if (changes.length) return;
  draft.dataset.settled = "true";
  if (submitting && !count && !found.toolkit) draft.requestSubmit();
  else if (found.count) rows(text.value, asked, found);
  submitting = false;
}

function plan(html) {
  const shown = document.getElementById("plan");
  const open = shown.querySelector("details.smaller")?.open;
  const focused = shown.contains(document.activeElement) ? document.activeElement.dataset.apply || "" : "";
  shown.innerHTML = html;
  const details = shown.querySelector("details.smaller");
  if (open && details) details.open = true;
  if (focused) ([...shown.querySelectorAll("[data-apply]")].find((e) => e.dataset.apply === focused) || details?.querySelector("summary"))?.focus();
}

// What is wrong with the rows, and steps that come from epochs: the rows are tokenized, which the rest need not wait for.
async function rows(about, number, before) {
  try {
    const found = await post("/new/steps", { text: about });
    if (number !== asked || text.value !== about) return;
    if (found.plan) plan(found.plan);
    if (found.general.length || Object.keys(found.errors).length) show({ ...before, ...found, fields: "", count: false });
  } catch { /* the next answer says whether the server is there */ }
}

async function convert() {
  const before = text.value;
  verdict.textContent = draft.dataset.planning;
  try {
    const found = await post("/new/import", { text: before, without_unknown: document.getElementById("without-unknown").checked });
    if (text.value !== before) return;
    document.getElementById("imported").innerHTML = found.html;
    if (found.text) { text.value = found.text; text.focus(); later(0); return; }
    show({ errors: {}, general: found.general, values: null, toolkit });
  } catch {
    verdict.textContent = draft.dataset.offline;
    verdict.className = "notice failed";
  }
}

function filter() {
  const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let any = false;
  for (const field of fields.querySelectorAll(".field")) {
    field.hidden = !words.every((word) => field.dataset.words.includes(word));
    any = any || !field.hidden;
  }
  for (const group of fields.querySelectorAll(".group")) {
    const some = group.querySelector(".field:not([hidden])") !== null;
    group.hidden = !some;
    if (group.tagName === "DETAILS" && words.length) group.open = some;
  }
  document.getElementById("nothing").hidden = any;
}

fields.addEventListener("input", (event) => {
  const field = event.target.closest("[data-key]");
  if (!field) return;
  const chosenBoxes = () => [...field.querySelectorAll("input:checked")].map((box) => box.value).join(", ");
  change(field.dataset.key, field.tagName === "FIELDSET" ? chosenBoxes() : event.target.value);
  later(350);
});
// A link to a wrong field opens its group and goes to it, also where a search hides it.
document.getElementById("at").addEventListener("click", (event) => {
  const field = event.target.hash && document.getElementById(decodeURIComponent(event.target.hash.slice(1)));
  if (!field) return;
  event.preventDefault();
  document.getElementById("search").value = "";
  filter();
  field.closest("details.group")?.setAttribute("open", "");
  (field.tagName === "FIELDSET" ? field.querySelector("input") : field)?.focus();
});
draft.addEventListener("click", (event) => {
  const button = event.target.closest("[data-apply]");
  if (!button) return;
  // `quantizer=wint8` applies as `ernie run` takes it
  for (const line of button.dataset.apply.split("\n")) change(line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1));
  later(0);
});
document.getElementById("propose").addEventListener("click", async () => {
  const shown = document.getElementById("proposed");
  shown.textContent = draft.dataset.planning;
  try {
    const given = { text: text.value, number: document.getElementById("number").value, kind: document.getElementById("kind").value };
    const found = await post("/new/layouts", given);
    shown.innerHTML = found.html;
    shown.append(...found.general.map(told));
  } catch { shown.textContent = draft.dataset.offline; }
});
for (const id of ["number", "kind"]) {
  document.getElementById(id).addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); document.getElementById("propose").click(); }
  });
}
document.getElementById("convert-now").addEventListener("click", convert);
document.getElementById("open").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  if (!file) return;
  if (file.size > 200000) { verdict.textContent = draft.dataset.tooLarge; verdict.className = "notice failed"; return; }
  text.value = await file.text();
  changes = [];
  document.getElementById("imported").replaceChildren();
  later(0);
});
text.addEventListener("input", () => later(500));
nameField.addEventListener("input", () => later(350));
document.getElementById("search").addEventListener("input", filter);
document.getElementById("search").addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
fields.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.matches("input")) event.preventDefault(); });
// What was typed last is checked before it starts.
draft.addEventListener("submit", (event) => {
  if (draft.dataset.settled) return;
  event.preventDefault();
  submitting = true;
  later(0);
});
later(0);
