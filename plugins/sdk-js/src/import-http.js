/**
 * One request by `wasi:http`, of the host. Whose plugin has this file in it imports the interface, and so asks for it.
 *
 * What is taken from the host is given back before what it came from: the host counts on it.
 */
import { handle } from "wasi:http/outgoing-handler@0.2.0";
import { Fields, OutgoingBody, OutgoingRequest, RequestOptions } from "wasi:http/types@0.2.0";

import { Failure } from "./failure.js";
import { failed, said, target, wrong, wrongUrl } from "./outbound.js";

/** Bytes that one write may have, and one reading. */
const WRITTEN = 4096;
const READ = 65536n;
const METHODS = ["get", "head", "post", "put", "delete", "connect", "options", "trace", "patch"];

const giveBack = (resource) => resource[Symbol.dispose]?.();

/** Sends it, and waits for the whole answer. */
export function send({ method, url, headers, body, timeoutMs }) {
  const nanoseconds = timeoutMs === undefined ? undefined : BigInt(Math.round(timeoutMs * 1e6));
  const request = requestOf(method, url, headers);
  let options;
  if (nanoseconds !== undefined) {
    options = new RequestOptions();
    options.setFirstByteTimeout(nanoseconds);
  }
  const outgoing = request.body();
  let future;
  try {
    // It takes the request and the options, also where it refuses.
    future = handle(request, options);
  } catch (error) {
    giveBack(outgoing);
    throw failureOf(error.payload ?? error);
  }
  // Who refuses it stops reading, and says why in the answer.
  const unwritten = write(outgoing, body);
  const ready = future.subscribe();
  ready.block();
  giveBack(ready);
  const got = future.get();
  giveBack(future);
  if (got?.tag !== "ok") throw failed("there is no answer");
  if (got.val.tag !== "ok") throw failureOf(got.val.val);
  const incoming = got.val.val;
  try {
    if (unwritten) throw unwritten;
    return read(incoming);
  } finally {
    giveBack(incoming);
  }
}

function requestOf(method, url, headers) {
  const { scheme, authority, path } = target(url);
  let fields;
  try {
    fields = Fields.fromList(headers);
  } catch (error) {
    throw wrong(`a header cannot be sent: ${error.payload?.tag ?? error.message}`);
  }
  const request = new OutgoingRequest(fields);
  const verb = method.toLowerCase();
  let refusal = wrong("the method is no word that can be sent");
  try {
    request.setMethod(METHODS.includes(verb) ? { tag: verb } : { tag: "other", val: method });
    refusal = wrongUrl(url);
    request.setScheme({ tag: scheme });
    request.setAuthority(authority);
    request.setPathWithQuery(path);
  } catch {
    giveBack(request);
    throw refusal;
  }
  return request;
}

/** Why not all of it was taken, if so. */
function write(outgoing, bytes) {
  try {
    const stream = outgoing.write();
    try {
      for (let at = 0; at < bytes.length; at += WRITTEN) {
        stream.blockingWriteAndFlush(bytes.subarray(at, at + WRITTEN));
      }
    } finally {
      giveBack(stream);
    }
  } catch (error) {
    const why = broken(error.payload ?? error);
    giveBack(outgoing);
    return why;
  }
  try {
    OutgoingBody.finish(outgoing, undefined);
    return null;
  } catch (error) {
    return failureOf(error.payload ?? error);
  }
}

function read(incoming) {
  const fields = incoming.headers();
  const headers = fields.entries();
  giveBack(fields);
  const body = incoming.consume();
  const stream = body.stream();
  const chunks = [];
  try {
    for (;;) chunks.push(stream.blockingRead(READ));
  } catch (error) {
    if (error.payload?.tag !== "closed") throw broken(error.payload ?? error);
  } finally {
    giveBack(stream);
    giveBack(body);
  }
  return { status: incoming.status(), headers, body: joined(chunks) };
}

function joined(chunks) {
  if (chunks.length === 1) return chunks[0];
  const whole = new Uint8Array(chunks.reduce((length, chunk) => length + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}

/** A stream's error. */
function broken(error) {
  if (error.tag === "closed") return failed("the connection was closed");
  if (error.tag !== "last-operation-failed") return failureOf(error);
  const message = error.val.toDebugString();
  giveBack(error.val);
  return said(message);
}

/** An error code of `wasi:http`. */
function failureOf(error) {
  if (error instanceof Failure) return error;
  switch (error.tag) {
    case "internal-error": return said(error.val ?? "the request failed");
    case "HTTP-request-denied": return Failure.fatal("http-denied", "the host denies requests");
    case "HTTP-response-timeout":
    case "connection-timeout": return Failure.retry("http-timeout", "there was no answer in time");
    default: return failed(error.tag ?? String(error));
  }
}
