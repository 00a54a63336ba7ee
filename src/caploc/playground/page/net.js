// Talk to the server: JSON there and back, and answers as lines of JSON while they come.

async function complaint(response) {
  try {
    return (await response.json()).message;
  } catch {
    return `The server answered ${response.status}; is it the one this page came from?`;
  }
}

async function answered(path, options) {
  const response = await fetch(path, options);
  if (!response.ok) throw new Error(await complaint(response));
  return response;
}

function post(path, content, signal) {
  return answered(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content), signal });
}

export async function get(path) {
  return (await answered(path)).json();
}

export async function ask(path, content) {
  return (await post(path, content)).json();
}

export async function* lines(path, content, signal) {
  const response = await post(path, content, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n");
    rest = whole.pop();
    yield* whole.map((line) => JSON.parse(line));
  }
}

export function said(error) {
  return error instanceof TypeError
    ? "The server cannot be reached; is `caploc view` still running?"
    : error.message;
}
