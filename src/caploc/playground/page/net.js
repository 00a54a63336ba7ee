// Talk to the server: JSON there and back, and answers as lines of JSON while they come.

async function post(path, content, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(content),
    signal,
  });
  if (!response.ok) throw new Error(await complaint(response));
  return response;
}

async function complaint(response) {
  try {
    return (await response.json()).message;
  } catch {
    return `The server answered ${response.status}; is it the one this page came from?`;
  }
}

export async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(await complaint(response));
  return response.json();
}

export async function ask(path, content) {
  return (await post(path, content)).json();
}

export async function download(path, content) {
  return (await post(path, content)).blob();
}

export async function* events(path, content, signal) {
  const response = await post(path, content, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

export function said(error) {
  return error instanceof TypeError
    ? "The server cannot be reached; is `caploc view` still running?"
    : error.message;
}
