// A page with React's hook `useStream` over a state of an author's own: shows it, edits, regenerates, answers, rejoins.
// Bundled for each major of the SDK: esbuild hook.jsx --bundle --alias:langgraph-sdk=langgraph-sdk-MAJOR
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { useStream } from "langgraph-sdk/react";

const { apiUrl, apiKey } = window.settings;
const said = (content) => ({ messages: [{ type: "human", content }] });

function Message({ stream, message, text }) {
  const meta = stream.getMessagesMetadata(message);
  const checkpoint = meta?.firstSeenState?.parent_checkpoint;
  const { branch, branchOptions } = meta ?? {};
  const at = branchOptions?.indexOf(branch);
  return (
    <li className={message.type}>
      <p>{message.content}</p>
      {message.type === "human" && <button onClick={() => stream.submit(said(text), { checkpoint })}>Edit</button>}
      {message.type === "ai" && <button onClick={() => stream.submit(undefined, { checkpoint })}>Regenerate</button>}
      {branchOptions && <i>{`${at + 1} of ${branchOptions.length}`}</i>}
      {at > 0 && <button onClick={() => stream.setBranch(branchOptions[at - 1])}>Earlier</button>}
    </li>
  );
}

function App() {
  const [threadId, setThreadId] = useState(() => location.hash.slice(1) || null);
  const [text, setText] = useState("");
  const [heard, setHeard] = useState([]);
  const stream = useStream({
    apiUrl,
    apiKey,
    assistantId: "agent0",
    threadId,
    fetchStateHistory: { limit: 100 },
    reconnectOnMount: true,
    onThreadId: (id) => {
      location.hash = id;
      setThreadId(id);
    },
    onCustomEvent: (event) => setHeard((before) => [...before, event.step]),
  });
  const asked = stream.interrupt?.value;
  return (
    <main>
      <input value={text} onChange={(event) => setText(event.target.value)} />
      <button onClick={() => stream.submit(said(text))}>Send</button>
      <ul>
        {stream.messages.map((message, at) => (
          <Message key={message.id ?? at} {...{ stream, message, text }} />
        ))}
      </ul>
      <p id="report">{stream.values.report}</p>
      <p id="steps">{stream.values.steps?.join(" ")}</p>
      <p id="heard">{heard.join(" ")}</p>
      <p id="status">{stream.isLoading ? "runs" : "rests"}</p>
      <p id="error">{stream.error ? String(stream.error.message ?? stream.error) : ""}</p>
      {asked && <p id="question">{asked.question}</p>}
      {asked?.options?.map((option) => (
        <button key={option} onClick={() => stream.submit(null, { command: { resume: option } })}>
          {option}
        </button>
      ))}
    </main>
  );
}

createRoot(document.body).render(<App />);
