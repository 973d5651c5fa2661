// Tools of a conversation: their definitions, which somebody writes or takes from a file, and the results of calls by hand.
"use strict";

const WEATHER = {
  type: "function",
  function: {
    name: "get_weather", description: "Weather of a city now.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
  },
};

// A list of tools from JSON: OpenAI's, or functions alone; also one of them, and an object with "tools".
function toolsOf(text) {
  const found = JSON.parse(text), listed = Array.isArray(found) ? found : found?.tools ?? [found];
  if (!Array.isArray(listed)) throw new Error("tools");
  return listed.map((tool) => {
    const made = tool?.function ? tool : { type: "function", function: tool };
    if (typeof made.function?.name !== "string" || !made.function.name) throw new Error("name");
    return { type: "function", ...made };
  });
}

class Tools {
  constructor(texts) {
    this.texts = texts;
    this.text = document.getElementById("tools");
    this.told = document.getElementById("tools-told");
    this.choice = document.getElementById("tool_choice");
    for (const kept of [this.text, this.choice]) {
      const name = "chat." + kept.id;
      if (sessionStorage.getItem(name) !== null) kept.value = sessionStorage.getItem(name);
      kept.addEventListener("input", () => { sessionStorage.setItem(name, kept.value); this.check(); });
    }
    document.getElementById("tools-file").addEventListener("change", async (event) => {
      const file = event.target.files[0];
      event.target.value = "";
      if (file) this.write(file.size > 1 << 20 ? "" : await file.text());
    });
    document.getElementById("tools-example").addEventListener("click", () => this.write(JSON.stringify([WEATHER], null, 2)));
    this.check();
    if (this.text.value.trim()) this.text.closest("details").open = true;
  }
  write(text) {
    this.text.value = text;
    this.text.dispatchEvent(new Event("input"));
    this.text.focus();
  }
  // The tools; null where they are wrong.
  check() {
    let found = [], wrong = "";
    if (this.text.value.trim()) try { found = toolsOf(this.text.value); } catch (error) { wrong = `${this.texts.tools_wrong} ${error.message}`; }
    this.text.setAttribute("aria-invalid", String(Boolean(wrong)));
    this.told.textContent = wrong || found.map((tool) => tool.function.name).join(", ");
    this.told.classList.toggle("bad", Boolean(wrong));
    return wrong ? null : found;
  }
  parameters() {
    const found = this.check() ?? [];
    return found.length ? { tools: found, tool_choice: this.choice.value } : {};
  }
}

// Arguments as they are read best; what is no JSON stays as the model wrote it.
function readable(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

// The calls of an answer with a field for each result; `send` gets the messages of role tool.
function callForm(calls, texts, send) {
  const form = element("form", "calls stack");
  calls.forEach((call, index) => {
    const label = element("label", "stack"), field = element("textarea");
    field.rows = 2;
    field.placeholder = '{"temperature": 3}';
    label.append(element("span", "", texts.result.replace("NAME", call.function.name)), field);
    form.append(label);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
    });
    if (!index) form.first = field;
  });
  const button = element("button", "primary", texts.send_results);
  form.append(button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const results = [...form.querySelectorAll("textarea")].map((field) => field.value);
    const made = calls.map((call, i) => ({ role: "tool", content: results[i], ...(call.id ? { tool_call_id: call.id } : {}) }));
    if (send(made)) form.remove();
  });
  return form;
}
