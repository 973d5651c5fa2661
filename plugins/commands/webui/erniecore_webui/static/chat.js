// A conversation with one model or two beside each other. The browser holds it; each model has messages of its own.
"use strict";

const chatBox = document.getElementById("chat");
const field = (id) => document.getElementById(id);

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

// The data of server-sent events, as they come. Where they come faster than they are read, no read ever waits: without a pause
// the page would draw nothing and hear no click until the last one.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", since = performance.now();
  for (;;) {
    if (performance.now() - since > 20) {
      await new Promise((go) => setTimeout(go));
      since = performance.now();
    }
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}

// One answer while it grows: reasoning and tool calls folded, text.
class Answer {
  constructor(talk, texts) {
    this.texts = texts;
    this.message = { role: "assistant", content: "" };
    this.calls = [];
    this.box = element("div", "said assistant");
    this.text = element("div", "text");
    this.drawn = 0;  // milliseconds that the last drawing took
    this.end = element("small", "muted");
    this.box.append(this.text, this.end);
    talk.append(this.box);
    this.talk = talk;
  }
  fold(name) {
    if (!this[name]) {
      const details = element("details"), pre = element("pre");
      details.append(element("summary", "", this.texts[name]), pre);
      this.box.insertBefore(details, this.text);
      this[name] = pre;
    }
    return this[name];
  }
  add(delta) {
    // not for each token: a fast model would block the page; and long answers, whose layout takes long, less often
    this.later ??= setTimeout(() => this.draw(), Math.max(40, 5 * this.drawn));
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) this.message.reasoning_content = (this.message.reasoning_content ?? "") + thought;
    this.message.content += delta.content ?? "";
    for (const part of delta.tool_calls ?? []) {
      const call = (this.calls[part.index ?? 0] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
      if (part.id) call.id = part.id;
      call.function.name += part.function?.name ?? "";
      call.function.arguments += part.function?.arguments ?? "";
      this.message.tool_calls = this.calls;
    }
  }
  draw() {
    const started = performance.now();
    clearTimeout(this.later);
    this.later = undefined;
    if (this.message.reasoning_content) this.fold("reasoning").textContent = this.message.reasoning_content;
    if (this.calls.length) {
      const shown = this.fold("tools");
      shown.textContent = this.calls.map((call) => `${call.function.name}(${readable(call.function.arguments)})`).join("\n");
      shown.parentElement.open = true;
    }
    this.text.textContent = this.message.content;
    this.talk.scrollTop = this.talk.scrollHeight;  // waits for the layout
    this.drawn = performance.now() - started;
  }
}

class Pane {
  constructor(box, chat) {
    this.box = box;
    this.chat = chat;
    this.model = box.dataset.model;
    this.talk = box.querySelector(".talk");
    this.messages = [];
    this.system = [];  // with which the last answer was made
    if (this.waits) this.look();
  }
  // Calls of the last answer whose results nobody has given.
  get calls() { return (this.messages.at(-1)?.role === "assistant" && this.messages.at(-1).tool_calls) || []; }
  // The messages up to the last question, and what the model made of it.
  get turn() {
    const from = this.messages.findLastIndex((message) => message.role === "user") + 1;
    return { prompt: [...this.system, ...this.messages.slice(0, from)], answer: this.messages.slice(from) };
  }
  get ready() { return this.box.dataset.state === "ready"; }
  get waits() { return ["starting", "waiting", "stopping"].includes(this.box.dataset.state); }
  get media() { return this.box.dataset.media === "true"; }
  // A server needs a while to read its model.
  async look() {
    const before = this.box.dataset.state;
    let now = before;
    while (now === before) {
      await new Promise((go) => setTimeout(go, 700));
      try { now = (await (await fetch("/chat/state?model=" + encodeURIComponent(this.model))).json()).state; } catch { continue; }
    }
    if (!this.chat.begun) location.reload();
    else { this.box.dataset.state = now; this.chat.buttons(); if (this.waits) this.look(); }
  }
  show(message) {
    const said = element("div", `said ${message.role}`), text = element("div", "text");
    text.textContent = typeof message.content === "string" ? message.content : message.content.filter((p) => p.type === "text").map((p) => p.text).join("");
    said.append(text);
    for (const part of Array.isArray(message.content) ? message.content : []) {
      if (part.type !== "image_url") continue;
      const image = element("img");
      image.src = part.image_url.url;
      image.alt = this.chat.texts.image;
      said.append(image);
    }
    this.talk.append(said);
  }
  async answer(parameters, signal) {
    const answer = new Answer(this.talk, this.chat.texts);
    const told = field("system").value.trim(), messages = [...(told ? [{ role: "system", content: told }] : []), ...this.messages];
    this.system = messages.slice(0, messages.length - this.messages.length);
    this.whole = false;
    let ended = false;
    try {
      const reply = await fetch("/chat/answer?model=" + encodeURIComponent(this.model), {
        method: "POST", signal, headers: { "content-type": "application/json", "X-CSRF-Token": csrf },
        body: JSON.stringify({ ...parameters, messages, stream_options: { include_usage: true } }),
      });
      if (!reply.ok) throw new Error(await problem(reply));
      for await (const data of events(reply.body)) {
        if (data === "[DONE]") { ended = true; break; }
        const event = JSON.parse(data);
        if (event.error) throw new Error(event.error.message);
        const choice = event.choices?.[0];
        if (choice?.delta) answer.add(choice.delta);
        if (choice?.finish_reason === "length") answer.end.textContent = this.chat.texts.cut;
        if (event.usage) answer.end.textContent += ` ${event.usage.completion_tokens} ${this.chat.texts.tokens}`;
      }
      if (!ended) throw new Error(this.chat.texts.broken);
    } catch (error) {
      const canceled = error.name === "AbortError";
      answer.end.textContent = canceled ? this.chat.texts.canceled : error.message;
      answer.box.classList.toggle("bad", !canceled);
      if (!canceled && /image/.test(error.message)) this.chat.refuseImages();
      if (!canceled) this.look();
    }
    answer.draw();
    this.messages.push(answer.message);
    this.whole = ended;
    if (ended && this.calls.length) this.askResults(answer);
  }
  askResults(answer) {
    const form = callForm(this.calls, this.chat.texts, (results) => {
      if (this.chat.control) return false;
      for (const message of results) { this.messages.push(message); this.show(message); }
      this.chat.ask([this]);
      return true;
    });
    answer.box.append(form);
    this.talk.scrollTop = this.talk.scrollHeight;
    form.first.focus();
  }
}

async function problem(reply) {
  const text = await reply.text();
  try { return JSON.parse(text).error.message; } catch { return new DOMParser().parseFromString(text, "text/html").body.textContent.trim() || String(reply.status); }
}

class Chat {
  constructor(box) {
    this.box = box;
    this.texts = JSON.parse(box.dataset.texts);
    this.panes = [...box.querySelectorAll(".pane")].map((pane) => new Pane(pane, this));
    this.images = [];
    this.begun = false;
    this.tools = new Tools(this.texts);
    this.kept();
    field("say").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    field("text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    });
    field("cancel").addEventListener("click", () => this.control?.abort());
    field("retry").addEventListener("click", () => this.retry());
    field("save").addEventListener("click", () => this.save());
    field("clear").addEventListener("click", () => this.clear());
    field("attach").addEventListener("change", (event) => { this.attach([...event.target.files]); event.target.value = ""; });
    field("text").addEventListener("paste", (event) => this.attach([...event.clipboardData.files].filter((file) => file.type.startsWith("image/"))));
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") this.control?.abort(); });
    for (const button of box.querySelectorAll("[data-better]")) button.addEventListener("click", () => this.prefer(Number(button.dataset.better)));
    this.buttons();
  }
  // Parameters stay in this tab.
  kept() {
    for (const id of ["temperature", "top_p", "top_k", "repetition_penalty", "seed", "thinking", "system"]) {
      const kept = sessionStorage.getItem("chat." + id);
      if (kept !== null) field(id).value = kept;
      field(id).addEventListener("input", () => sessionStorage.setItem("chat." + id, field(id).value));
    }
  }
  parameters() {
    const found = { ...this.tools.parameters() }, thinking = field("thinking").value;
    if (thinking) found.chat_template_kwargs = { enable_thinking: thinking === "on" };
    for (const id of ["temperature", "top_p", "top_k", "repetition_penalty", "max_tokens", "seed"]) if (field(id).value !== "" && field(id).checkValidity()) found[id] = Number(field(id).value);
    return found;
  }
  buttons() {
    const busy = Boolean(this.control), last = this.panes.every((pane) => pane.messages.at(-1)?.role === "assistant");
    const whole = last && this.panes.every((pane) => pane.whole), asked = this.panes.some((pane) => pane.whole && pane.calls.length);
    const ready = !busy && this.panes.every((pane) => pane.ready);
    field("send").disabled = !ready || asked;
    field("cancel").disabled = !busy;
    field("retry").disabled = !ready || !last;
    field("save").disabled = busy || !whole;
    for (const button of this.box.querySelectorAll(".calls button")) button.disabled = !ready;
    this.box.querySelector(".attach").hidden = !this.media;
    const same = whole && this.panes.length === 2 && JSON.stringify(this.panes[0].turn.prompt) === JSON.stringify(this.panes[1].turn.prompt);
    for (const button of this.box.querySelectorAll("[data-better]")) button.disabled = busy || !same || this.preferred;
    this.box.dataset.busy = String(busy);
    if (asked && !busy) this.tell(this.texts.results_first);
  }
  get media() { return this.panes.every((pane) => pane.media); }
  tell(text) { field("told").textContent = text; }
  async send() {
    const text = field("text").value;
    if (field("send").disabled || !text.trim()) return;
    if (!this.tools.check()) { this.tell(this.texts.tools_wrong); this.tools.text.focus(); return; }
    const content = this.images.length ? [...this.images.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }] : text;
    for (const pane of this.panes) {
      const message = { role: "user", content };
      pane.messages.push(message);
      pane.show(message);
    }
    field("text").value = "";
    this.drop();
    await this.ask();
  }
  async ask(panes = this.panes) {
    this.begun = true;
    this.preferred = false;
    this.control = new AbortController();
    this.tell("");
    this.buttons();
    const parameters = this.parameters();
    // two answers of one model are of two seeds
    const own = (pane) => (parameters.seed === undefined ? parameters : { ...parameters, seed: parameters.seed + this.panes.indexOf(pane) });
    await Promise.all(panes.map((pane) => pane.answer(own(pane), this.control.signal)));
    this.control = undefined;
    this.buttons();
  }
  async retry() {
    for (const pane of this.panes) {
      pane.messages.pop();
      pane.talk.lastElementChild?.remove();
    }
    await this.ask();
  }
  clear() {
    this.control?.abort();
    for (const pane of this.panes) { pane.messages = []; pane.talk.replaceChildren(); }
    this.tell("");
    this.buttons();
  }
  async store(row) {
    const reply = await fetch("/chat/save", { method: "POST", headers: { "content-type": "application/json", "X-CSRF-Token": csrf }, body: JSON.stringify(row) });
    const text = reply.ok ? `${this.texts.saved} ${(await reply.json()).file}` : await problem(reply);
    this.tell(text);
    return reply.ok;
  }
  row(row) { return { ...row, ...(this.tools.check()?.length ? { tools: this.tools.check() } : {}) }; }
  async save() {
    for (const pane of this.panes) await this.store(this.row({ file: "chat", messages: [...pane.system, ...pane.messages] }));
  }
  // Both go on from the better answer.
  async prefer(better) {
    const [chosen, rejected] = [this.panes[better], this.panes[1 - better]], one = (said) => (said.length === 1 ? said[0] : said);
    const row = { file: "preferences", messages: chosen.turn.prompt, chosen: one(chosen.turn.answer), rejected: one(rejected.turn.answer) };
    if (!(await this.store(this.row(row)))) return;
    rejected.messages = [...chosen.messages];
    chosen.talk.lastElementChild.classList.add("chosen");
    for (const form of rejected.talk.querySelectorAll(".calls")) form.remove();
    if (rejected.calls.length) rejected.askResults({ box: rejected.talk.lastElementChild });
    this.preferred = true;
    this.buttons();
  }
  // Images are kept by the page as they are, so that a row has what the model was shown.
  async attach(files) {
    if (files.length && !this.media) { this.tell(this.texts.no_images); return; }
    for (const file of files) {
      const reply = await fetch("/chat/image", { method: "POST", headers: { "X-CSRF-Token": csrf, "HX-Request": "true" }, body: file });
      if (reply.ok) this.images.push((await reply.json()).url);
      else this.tell(await problem(reply));
    }
    this.drawImages();
  }
  drawImages() {
    const row = this.box.querySelector(".images");
    row.replaceChildren(...this.images.map((url, index) => {
      const image = element("img"), button = element("button", "", "×"), box = element("span", "attached");
      image.src = url;
      image.alt = this.texts.image;
      button.type = "button";
      button.setAttribute("aria-label", `${this.texts.remove} ${index + 1}`);
      button.addEventListener("click", () => { this.images.splice(index, 1); this.drawImages(); field("text").focus(); });
      box.append(image, button);
      return box;
    }));
    row.hidden = !this.images.length;
  }
  drop() {
    this.images = [];
    this.drawImages();
  }
  refuseImages() {
    for (const pane of this.panes) pane.box.dataset.media = "false";
    this.tell(this.texts.no_images);
  }
}

if (chatBox) window.chat = new Chat(chatBox);
