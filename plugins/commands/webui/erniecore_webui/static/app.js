// What every page does: the CSRF secret of requests, choices of rows, copying, keys, logs that follow their end.
"use strict";

const csrf = document.querySelector('meta[name="csrf"]').content;
document.addEventListener("htmx:configRequest", (event) => { event.detail.headers["X-CSRF-Token"] = csrf; });

// A list that refreshes itself keeps still while somebody uses it.
let chosen = new Set();
const reachable = (box) => [...box.querySelectorAll("a, input, button, summary, [tabindex]")];
document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.target.matches("[data-refresh]") && document.hidden) event.preventDefault();
});
const before = new WeakMap();
document.addEventListener("htmx:beforeSwap", (event) => {
  // what did not change stays as it is: opened details, scrolled tables, text that somebody marks
  if (event.detail.requestConfig?.elt.matches("[data-refresh]")) {
    if (before.get(event.target) === event.detail.serverResponse) { event.detail.shouldSwap = false; return; }
    before.set(event.target, event.detail.serverResponse);
  }
  if (event.target.id !== "rows") return;
  const focused = document.activeElement, all = reachable(event.target), at = all.indexOf(focused);
  event.target.focused = at < 0 ? null : { value: focused.getAttribute("href") || focused.value, at };
});
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.target.id === "rows") {
    for (const box of event.target.querySelectorAll('input[type="checkbox"]')) box.checked = chosen.has(box.value);
    const was = event.target.focused, all = reachable(event.target);
    if (was) (all.find((e) => was.value && (e.getAttribute("href") || e.value) === was.value) ?? all[was.at])?.focus();
    choices();
  }
  follow();
});

function choices() {
  for (const button of document.querySelectorAll("[data-with-choice]")) button.disabled = chosen.size < (button.dataset.withChoice || 1) || chosen.size > (button.dataset.withChoice || Infinity);
}
document.addEventListener("change", (event) => {
  if (event.target.matches('#rows input[type="checkbox"]')) {
    if (event.target.checked) chosen.add(event.target.value); else chosen.delete(event.target.value);
    choices();
  }
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  const text = button.textContent;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = text; }, 1500);
});

// "/" goes to the search, as in other tools.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  const search = document.querySelector('[data-focus="/"]');
  if (search) { event.preventDefault(); search.focus(); }
});

function follow() {
  for (const log of document.querySelectorAll("[data-tail]")) {
    if (log.dataset.left !== "true") log.scrollTop = log.scrollHeight;
    log.addEventListener("scroll", () => { log.dataset.left = String(log.scrollTop + log.clientHeight < log.scrollHeight - 40); });
  }
}
// On a narrow window navigation and tabs are scrolled; where one is has to be seen.
for (const current of document.querySelectorAll("nav [aria-current]")) {
  const nav = current.parentElement;
  if (nav.scrollWidth > nav.clientWidth) nav.scrollLeft = current.offsetLeft - nav.offsetLeft - (nav.clientWidth - current.offsetWidth) / 2;
}
const here = document.querySelector("[data-here]");
if (here) here.value = location.pathname + location.search;
for (const box of document.querySelectorAll('#rows input[type="checkbox"]:checked')) chosen.add(box.value);
choices();
follow();
