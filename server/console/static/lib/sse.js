// Server-sent events of a fetch. EventSource cannot send the Authorization header, and only GETs.

/** Yields { event, data } for each event of a body of bytes. `onComment(text)` gets comments, which keep a stream alive. */
export async function* events(body, onComment = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        const event = parse(rest.slice(0, end), onComment);
        rest = rest.slice(end + 2);
        if (event !== null) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parse(block, onComment) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
    else if (line.startsWith(": ")) onComment(line.slice(2));
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
