// Asks two servers with OpenAI's client for node and prints what it got as JSON: node openai.mjs URL KEY THINKER_URL.
// The client is found in $CLIENTS_NODE/node_modules.
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.CLIENTS_NODE, "here.js"));
const { OpenAI } = require("openai");
const [url, key, thinkerUrl] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const body = { model: "tiny", messages: [{ role: "user", content: "copy this" }], max_tokens: 12, temperature: 0 };
const found = { models: [], errors: [], streamed: "" };

for await (const model of await client.models.list()) found.models.push(model.id);
const whole = await client.chat.completions.create({ ...body, logprobs: true, top_logprobs: 1 });
found.whole = whole.choices[0].message.content;
found.logprobs = whole.choices[0].logprobs.content.length;
const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  found.streamed += chunk.choices[0]?.delta.content ?? "";
  found.usage = chunk.usage?.completion_tokens ?? 0;
}
const wrong = new OpenAI({ baseURL: url, apiKey: "sk-wrong", maxRetries: 0 });
for (const [asking, change] of [[client, { max_token: 3 }], [client, { model: "gpt-4" }], [wrong, {}]]) {
  try {
    await asking.chat.completions.create({ ...body, ...change });
  } catch (error) {
    found.errors.push([error.constructor.name, error.status, error.code]);
  }
}
const thinker = new OpenAI({ baseURL: thinkerUrl, apiKey: "none" });
const thought = await thinker.chat.completions.create({ ...body, model: "thinker" });
found.reasoning = thought.choices[0].message.reasoning_content;
console.log(JSON.stringify(found));
