/** Requests over HTTP, to where the config lets the plugin go (`[plugins.<name>.grants] http`). */
import { send } from "#http";

import { target } from "./outbound.js";

const [decoder, encoder] = [new TextDecoder(), new TextEncoder()];
const OPTIONS = ["method", "headers", "body", "timeoutMs"];

function bytesOf(body) {
  if (body === undefined || body === null) return new Uint8Array();
  if (typeof body === "string") return encoder.encode(body);
  if (body instanceof Uint8Array) return body;
  throw new TypeError("the body of a request is a string or a Uint8Array: `JSON.stringify` makes one of an object");
}

/** An answer. */
class Answer {
  constructor({ status, headers, body }) {
    this.status = status;
    this.body = body;
    this.headers = {};
    for (const [name, value] of headers) this.headers[name.toLowerCase()] ??= decoder.decode(value);
  }

  /** Whether the status is one of success. */
  get ok() {
    return this.status >= 200 && this.status < 300;
  }

  text() {
    return decoder.decode(this.body);
  }

  json() {
    return JSON.parse(this.text());
  }
}

export const http = Object.freeze({
  /**
   * Sends a request and waits for the whole answer, whatever its status; redirects are not followed. Throws a Failure where
   * there is none: code `http-denied` (fatal), `http-timeout` or `http-failed` (retry), `http-request` (poison: no request
   * can be made of the URL, the method or the headers).
   */
  request(url, options = {}) {
    const unknown = Object.keys(options).find((name) => !OPTIONS.includes(name));
    if (unknown !== undefined) throw new TypeError(`a request has no \`${unknown}\`: ${OPTIONS.join(", ")}`);
    const { method = "GET", headers = {}, body, timeoutMs } = options;
    target(String(url));
    const named = Object.entries(headers).map(([name, value]) => [name, encoder.encode(String(value))]);
    return new Answer(send({ method, url: String(url), headers: named, body: bytesOf(body), timeoutMs }));
  },
});
