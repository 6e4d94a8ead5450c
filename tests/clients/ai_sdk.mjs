// What the AI SDK and Ollama's package for JavaScript get from a server: a JSON object, a member for each call made here.
// Run by check_ai_sdk.py, in the folder of the packages.
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(path.join(process.cwd(), "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { embedMany, generateText, Output, streamText, tool } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOllama } = await load("ollama-ai-provider-v2");
const { Ollama } = await load("ollama");
const { z } = await load("zod");

const { CLIENT_URL: url, CLIENT_API_KEY: key, CLIENT_MODEL: model } = process.env;
const headers = { Authorization: `Bearer ${key}` };
const compatible = createOpenAICompatible({
  name: "cohort", baseURL: `${url}/v1`, apiKey: key, supportsStructuredOutputs: true, includeUsage: true,
});
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: key });
const ollama = createOllama({ baseURL: `${url}/api`, headers });
const models = {
  compatible: compatible(model), "openai-chat": openai.chat(model), "openai-responses": openai.responses(model), ollama: ollama(model),
};
const COUNT = "Count from 3 to 9.";
const HUGO = "Hugo, 51, is a baker. Return a JSON object with the fields name, age and job.";
const PARIS = "What is the weather in Paris?";
const person = z.object({ name: z.string(), age: z.number().int(), job: z.string() });
const tools = { get_weather: tool({ description: "Get the weather of a city", inputSchema: z.object({ city: z.string() }) }) };
const results = {};

async function record(name, call) {
  try {
    results[name] = { value: await call() };
  } catch (error) {
    results[name] = { error: String(error?.responseBody ?? error?.stack ?? error) };
  }
}

const calls = (toolCalls) => toolCalls.map((one) => [one.toolName, one.input]);

for (const [name, served] of Object.entries(models)) {
  const common = { model: served, temperature: 0, maxRetries: 0, maxOutputTokens: 200 };
  await record(`${name} text`, async () => {
    const whole = await generateText({ ...common, prompt: COUNT, topP: 0.9 });
    const stream = streamText({ ...common, prompt: COUNT, topP: 0.9, onError: () => {} });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    return { text: whole.text, streamed: text, finish: await stream.finishReason, tokens: whole.usage.outputTokens };
  });
  await record(`${name} tool`, async () => {
    const whole = await generateText({ ...common, prompt: PARIS, tools });
    const stream = streamText({ ...common, prompt: PARIS, tools, onError: () => {} });
    await stream.consumeStream();
    return { whole: calls(whole.toolCalls), streamed: calls(await stream.toolCalls) };
  });
  await record(`${name} result of a tool`, async () => {
    const first = await generateText({ ...common, prompt: PARIS, tools });
    const result = first.toolCalls.map((one) => ({
      type: "tool-result", toolCallId: one.toolCallId, toolName: one.toolName, output: { type: "text", value: "It is sunny." },
    }));
    const talk = [{ role: "user", content: PARIS }, ...first.response.messages, { role: "tool", content: result }];
    const second = await generateText({ ...common, messages: talk, tools });
    return second.finishReason;
  });
  for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
    const forced = { ...common, prompt: COUNT, tools, toolChoice };
    const form = Output.object({ schema: person });
    const label = typeof toolChoice === "string" ? "required" : "named";
    await record(`${name} ${label}`, async () => calls((await generateText(forced)).toolCalls));
    await record(`${name} ${label} beside a format`, async () => {
      const stream = streamText({ ...forced, output: form, onError: () => {} });
      await stream.consumeStream();
      const streamed = calls(await stream.toolCalls);
      // A named call ends with "stop", as OpenAI's API has it, and generateText then expects the object.
      return label === "named" ? streamed : [streamed, calls((await generateText({ ...forced, output: form })).toolCalls)].flat();
    });
  }
  await record(`${name} object`, async () => (await generateText({ ...common, prompt: HUGO, output: Output.object({ schema: person }) })).output);
  await record(`${name} object streamed`, async () => {
    const stream = streamText({ ...common, prompt: HUGO, output: Output.object({ schema: person }), onError: () => {} });
    let last;
    for await (const part of stream.partialOutputStream) last = part;
    return last;
  });
}
for (const [name, embedding] of Object.entries({
  compatible: compatible.textEmbeddingModel(model), openai: openai.textEmbeddingModel(model), ollama: ollama.textEmbeddingModel(model),
})) {
  await record(`${name} embeddings`, async () => (await embedMany({ model: embedding, values: ["One", "Two"], maxRetries: 0 })).embeddings);
}

const client = new Ollama({ host: url, headers });
const options = { temperature: 0 };
await record("ollama-js chat", async () => {
  const asked = { model, messages: [{ role: "user", content: COUNT }], options };
  const whole = await client.chat(asked);
  let text = "";
  for await (const part of await client.chat({ ...asked, stream: true })) text += part.message.content;
  return { text: whole.message.content, streamed: text };
});
await record("ollama-js tool", async () => {
  const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const tool = { type: "function", function: { name: "get_weather", description: "Get the weather of a city", parameters } };
  const answer = await client.chat({ model, messages: [{ role: "user", content: PARIS }], tools: [tool], options });
  return answer.message.tool_calls.map((one) => [one.function.name, one.function.arguments]);
});
await record("ollama-js format", async () => {
  const format = z.toJSONSchema(person);
  return JSON.parse((await client.chat({ model, messages: [{ role: "user", content: HUGO }], format, options })).message.content);
});
await record("ollama-js embeddings", async () => (await client.embed({ model, input: ["One", "Two"] })).embeddings);
await record("ollama-js models", async () => (await client.list()).models.map((one) => one.name));

process.stdout.write(JSON.stringify(results));
