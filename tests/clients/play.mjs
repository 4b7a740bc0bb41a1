// Plays the JavaScript SDK of one major against a gateway, and prints what it saw as JSON.
// node play.mjs MAJOR URL KEY FLOW [ARGUMENT]
const [major, apiUrl, apiKey, flow, argument] = process.argv.slice(2);
const { Client } = await import(`langgraph-sdk-${major}`);
const client = new Client({ apiUrl, apiKey });
const said = (text, id) => ({ messages: [{ type: "human", content: text, ...(id ? { id } : {}) }] });

async function all(stream) {
  const found = [];
  for await (const one of stream) found.push(one);
  return found;
}

async function refusal(call) {
  try {
    await call();
    return null;
  } catch (error) {
    return { status: error.status ?? null, text: String(error.text ?? error.message) };
  }
}

const flows = {
  async runs() {
    const [assistant] = await client.assistants.search();
    const thread = await client.threads.create({ metadata: { client: `js-${major}` } });
    let created;
    const streamMode = ["values", "messages-tuple", "updates"];
    const onRunCreated = (run) => (created = run);
    const events = await all(
      client.runs.stream(thread.thread_id, "agent0", { input: said("Hello"), streamMode, onRunCreated }),
    );
    const waited = await client.runs.wait(thread.thread_id, assistant.assistant_id, { input: said("And now?") });
    const run = await client.runs.create(thread.thread_id, "agent0", { input: said("Once more") });
    const joined = await client.runs.join(thread.thread_id, run.run_id);
    const rejoined = await all(client.runs.joinStream(thread.thread_id, run.run_id, { streamMode: ["values"] }));
    await client.runs.cancel(thread.thread_id, run.run_id, true);
    const found = await client.threads.search({ metadata: { client: `js-${major}` } });
    const state = await client.threads.getState(thread.thread_id);
    const history = await client.threads.getHistory(thread.thread_id);
    return {
      assistant: assistant.name,
      created: created?.run_id ?? null,
      names: [...new Set(events.map((one) => one.event))],
      run_id: events[0].data.run_id,
      last: events.at(-1).event,
      waited: waited.messages.length,
      joined: joined.messages.length,
      rejoined: rejoined.map((one) => one.event),
      found: found.map((one) => one.thread_id === thread.thread_id),
      newest: state.checkpoint.checkpoint_id === history[0].checkpoint.checkpoint_id,
      states: history.length,
      runs: (await client.runs.list(thread.thread_id)).map((one) => one.status),
    };
  },
  async crons() {
    const thread = await client.threads.create();
    const payload = { schedule: "0 9 * * *", input: said("What is new?"), metadata: { client: `js-${major}` } };
    const cron = await client.crons.createForThread(thread.thread_id, "agent0", payload);
    const found = await client.crons.search({ threadId: thread.thread_id });
    const changed = await client.crons.update(cron.cron_id, { schedule: "0 8 * * *", enabled: false });
    await client.crons.delete(cron.cron_id);
    return {
      same: found.map((one) => one.cron_id === cron.cron_id),
      schedule: changed.schedule,
      enabled: changed.enabled,
      left: (await client.crons.search({ threadId: thread.thread_id })).length,
    };
  },
  async store() {
    const place = ["workspace", `js${major}`];
    await client.store.putItem(place, "ada", { age: 36 });
    const item = await client.store.getItem(place, "ada");
    const { items } = await client.store.searchItems(place, { filter: { age: { $gt: 30 } } });
    const { namespaces } = await client.store.listNamespaces({ prefix: ["workspace"] });
    await client.store.deleteItem(place, "ada");
    return { value: item.value, keys: items.map((one) => one.key), listed: namespaces.some((one) => one[1] === place[1]) };
  },
  async decide() {
    const { interrupts } = await client.threads.get(argument);
    const [id] = Object.keys(interrupts);
    const command = { resume: { [id]: { decisions: [{ type: "approve" }] } } };
    const events = await all(client.runs.stream(argument, "agent0", { input: null, command, streamMode: ["values"] }));
    return { names: [...new Set(events.map((one) => one.event))], left: (await client.threads.get(argument)).interrupts };
  },
  async refused() {
    const { thread_id } = await client.threads.create();
    const started = performance.now();
    const input = said("x");
    const calls = [
      () => client.runs.create(thread_id, "agent0", { input, webhook: "https://example.org/told" }),
      () => client.threads.updateState(thread_id, { values: { messages: [] } }),
      () => client.assistants.create({}),
      () => client.runs.create(thread_id, "nobody", { input }),
    ];
    const found = [];
    for (const call of calls) found.push(await refusal(call));
    return { found, seconds: (performance.now() - started) / 1000 };
  },
  async threadStream() {
    const thread = client.threads.stream({ assistantId: "agent0" });
    const messages = (async () => {
      const texts = [];
      for await (const message of thread.messages) texts.push(await message.text);
      return texts;
    })();
    const { run_id } = await thread.run.start({ input: said("Hello") });
    const output = await thread.output;
    const texts = await messages;
    await thread.close();
    return { run_id, texts, output: output.messages.map((one) => one.type ?? one._getType?.()) };
  },
  async fork() {
    // Edit and Regenerate as useStream does them, with the function by which it reads a history.
    const { getBranchContext } = await import(`./node_modules/langgraph-sdk-${major}/dist/ui/branching.js`);
    const getMessages = (values) => values.messages ?? [];
    const read = async () => {
      const history = await client.threads.getHistory(argument, { limit: 1000 });
      const { threadHead: head, branchByCheckpoint } = getBranchContext("", history);
      const of = getMessages(head.values).map(({ id }) => {
        const first = history.findLast((state) => getMessages(state.values).some((one) => one.id === id));
        return { first, options: branchByCheckpoint[first.checkpoint.checkpoint_id]?.branchOptions ?? [] };
      });
      return { head, of };
    };
    const before = async (type) => {
      const { head, of } = await read();
      const at = getMessages(head.values).findLastIndex((one) => one.type === type);
      return of[at].first.parent_checkpoint;
    };
    const found = { start: getMessages((await read()).head.values).at(-1).content };
    await client.runs.wait(argument, "agent0", { input: said("Edited"), checkpoint: await before("human") });
    const edited = await read();
    found.edited = getMessages(edited.head.values).filter((one) => one.type === "human").map((one) => one.content);
    found.branches = edited.of.map((one) => one.options.length);
    const answer = getMessages(edited.head.values).at(-1).id;
    await client.runs.wait(argument, "agent0", { input: null, checkpoint: await before("ai") });
    const again = await read();
    found.again = getMessages(again.head.values).filter((one) => one.type === "human").map((one) => one.content);
    found.isNew = getMessages(again.head.values).at(-1).id !== answer;
    return found;
  },
  async ownState() {
    // A state without messages: answer a question with one of its options, edit the input, run steps again.
    const { getBranchContext } = await import(`./node_modules/langgraph-sdk-${major}/dist/ui/branching.js`);
    const { thread_id } = await client.threads.create();
    const wait = (payload) => client.runs.wait(thread_id, "agent0", payload);
    await all(client.runs.stream(thread_id, "agent0", { input: { topic: "which" }, streamMode: ["values", "updates"] }));
    const asked = Object.values((await client.threads.get(thread_id)).interrupts)[0][0].value;
    const answered = await wait({ command: { resume: asked.options[1] } });
    const before = await client.threads.getHistory(thread_id, { limit: 100 });
    const inside = before.map((state) => state.next[0]).filter((name) => name && name !== "__start__").reverse();
    const edited = await wait({ input: { topic: "pipes" }, checkpoint: before.at(-1).checkpoint });
    const again = await wait({ input: null, checkpoint: before.find((state) => state.next[0] === "publish").checkpoint });
    const { branchByCheckpoint } = getBranchContext("", await client.threads.getHistory(thread_id, { limit: 100 }));
    const branches = Math.max(...Object.values(branchByCheckpoint).map((one) => one.branchOptions.length));
    return { asked, answered, inside: [...new Set(inside)], edited, again, branches };
  },
  async remoteGraph() {
    // Our graph as a node of a JavaScript graph: its steps, and a question that is answered there.
    const { Annotation, Command, MemorySaver, START, StateGraph } = await import("@langchain/langgraph");
    const { RemoteGraph } = await import("@langchain/langgraph/remote");
    const ours = new RemoteGraph({ graphId: "agent0", url: apiUrl, apiKey });
    const State = Annotation.Root({ topic: Annotation, report: Annotation, title: Annotation });
    const graph = new StateGraph(State)
      .addNode("ours", ours)
      .addNode("name", (state) => ({ title: state.report.toUpperCase() }))
      .addEdge(START, "ours")
      .addEdge("ours", "name")
      .compile({ checkpointer: new MemorySaver() });
    const at = (thread_id) => ({ configurable: { thread_id: `js-${thread_id}` } });
    const { report, title } = await graph.invoke({ topic: "pumps" }, at("plain"));
    const how = { ...at("streamed"), streamMode: "updates", subgraphs: true };
    const parts = await all(await graph.stream({ topic: "pipes" }, how));
    const inside = parts.filter(([place]) => place.length).flatMap(([, data]) => Object.keys(data));
    const asked = (await graph.invoke({ topic: "which" }, at("asked"))).__interrupt__?.[0].value;
    const state = (await ours.getState(at("asked"))).tasks[0].interrupts[0].value;
    const refused = (await refusal(() => graph.invoke(new Command({ resume: "new" }), at("asked"))))?.status;
    const answered = (await ours.invoke(new Command({ resume: "new" }), at("asked"))).report;
    return { plain: { report, title }, inside, asked, state, refused, answered };
  },
  async follow() {
    const events = await all(client.runs.stream(argument, "agent0", { input: said("Hello", "followed"), streamMode: ["values"] }));
    return { last: events.at(-1).event, messages: events.filter((one) => one.event === "values").at(-1).data.messages.length };
  },
};

console.log(JSON.stringify(await flows[flow]()));
process.exit(0);
