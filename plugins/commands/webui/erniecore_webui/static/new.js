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

function later(wait) {
  clearTimeout(timer);
  verdict.textContent = draft.dataset.planning;
  draft.dataset.settled = "";
  timer = setTimeout(ask, wait);
}

async function ask() {
  if (busy) { timer = setTimeout(ask, 100); return; }
  busy = true;
  const number = ++asked;
  const before = text.value;
  const [key, value] = changes.shift() || ["", ""];
  const body = new URLSearchParams({ text: before, key, value, plugins, name: nameField.value });
  try {
    const answer = await fetch("/new/check", { method: "POST", body, headers: { "X-CSRF-Token": csrf } });
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    // what was typed into the text meanwhile wins; a field that changed it is asked again
    if (text.value === before) { if (text.value !== found.text) text.value = found.text; } else if (key) changes.unshift([key, value]);
    if (number === asked) show(found);
    if (changes.length || text.value !== found.text) later(0);
  } catch {
    if (key) changes.unshift([key, value]);
    verdict.textContent = draft.dataset.offline;
    verdict.className = "notice failed";
  } finally {
    busy = false;
  }
}

function show(found) {
  if (found.fields) {
    const focused = document.activeElement && document.activeElement.id;
    const open = [...fields.querySelectorAll("details[open] > summary code")].map((e) => e.textContent);
    fields.innerHTML = found.fields;
    for (const group of fields.querySelectorAll("details.group")) group.open = open.includes(group.querySelector("code").textContent);
    if (focused && focused.startsWith("f-")) document.getElementById(focused)?.focus();
    filter();
  }
  if (found.plugins !== undefined) plugins = found.plugins;
  const waiting = new Set(changes.map(([key]) => key));
  for (const field of fields.querySelectorAll("[data-key]")) {
    const key = field.dataset.key;
    const bad = found.errors[key] || "";
    document.getElementById(`f-${key}-bad`).textContent = bad;
    if (bad) field.setAttribute("aria-invalid", "true"); else field.removeAttribute("aria-invalid");
    if (bad) field.closest("details.group")?.setAttribute("open", "");
    if (found.values && !waiting.has(key) && (field !== document.activeElement || field.tagName === "SELECT")) {
      const value = found.values[key] || "";
      if (field.tagName === "SELECT" && ![...field.options].some((o) => o.value === value)) field.add(new Option(value));
      field.value = value;
    }
  }
  const general = document.getElementById("general");
  general.replaceChildren(...found.general.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
  const count = Object.keys(found.errors).length + found.general.length;
  verdict.textContent = count ? draft.dataset.wrong.replace("{n}", count) : draft.dataset.right;
  verdict.className = count ? "notice failed" : "notice ok";
  document.getElementById("plan").innerHTML = found.plan || "";
  document.getElementById("start").disabled = count > 0;
  if (found.command) {
    document.getElementById("command").textContent = found.command;
    document.getElementById("copy").dataset.copy = found.command;
  }
  if (changes.length) return;
  draft.dataset.settled = "true";
  if (submitting && !count) draft.requestSubmit();
  submitting = false;
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
  const key = event.target.dataset.key;
  if (!key) return;
  changes = [...changes.filter(([other]) => other !== key), [key, event.target.value]];
  later(350);
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
