// The queue for those who use a keyboard or a screen reader: who has moved a task stays at it, and hears where it is.
"use strict";

let at = "";     // id of what had the focus
let moved = "";  // id of the button that was pressed
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.target.id !== "tasks") return;
  at = event.target.contains(document.activeElement) ? document.activeElement.id : "";
  if (event.detail.requestConfig.verb === "post") moved = at;
});
document.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id !== "tasks" || !at) return;
  // a button that is gone leaves the focus at its task
  const task = at.slice(at.indexOf("-") + 1);
  (document.getElementById(at) || document.getElementById(`task-${task}`) || event.target).focus();
  const row = moved && document.getElementById(moved)?.closest("[data-said]");
  if (row) document.getElementById("moved").textContent = row.dataset.said;
  at = moved = "";
});
