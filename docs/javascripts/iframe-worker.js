// A page opened from disk may not start a worker, which the search needs. A hidden frame stands in
// for one: it runs the worker's script, and each side's messages become events on the other.
"use strict";

(() => {
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open(); // or Firefox empties the frame once more when it has loaded nothing
      inside.document.write("<body></body>");
      inside.document.close();
      inside.postMessage = (data) => setTimeout(() => deliver(this, data));
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve());
      this.ready = load(inside, url);
    }

    postMessage(data) {
      this.ready.then(() => deliver(this.frame.contentWindow, structuredClone(data)));
    }

    terminate() {
      this.frame.remove();
    }
  }

  function deliver(target, data) {
    const event = new MessageEvent("message", { data });
    target.dispatchEvent(event);
    // A window calls its own handler for events that are dispatched on it.
    if (target instanceof FrameWorker) target.onmessage?.(event);
  }

  function load(inside, url) {
    return new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href);
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${url} cannot be loaded`));
      inside.document.body.append(script);
    });
  }

  window.Worker = FrameWorker;
  window.IFrameWorker = FrameWorker; // by this name the search knows that it runs in a frame
})();
