// Puts each document under a URL of its own, and removes it from there.
import { Failure, http, sink } from "anabranch-sdk";

class Items {
  /** There are several instances, and each is made anew: be quick. */
  constructor(settings) {
    this.url = settings.url;
  }

  /** One result for each document, in order. Behind one that has to come again nothing is tried: the whole batch comes. */
  deliver(batch) {
    return batch.each((document) => this.put(document));
  }

  put({ destination, id, body }) {
    // At the end of a URL these are the folder.
    if (id === "." || id === "..") throw Failure.poison("id", "an id of dots is no part of a URL");
    const url = `${this.url}/${encodeURIComponent(destination)}/${encodeURIComponent(id)}`;
    // `body` is the document's text; null: the id is to be removed.
    const answer = body === null
      ? http.request(url, { method: "DELETE" })
      : http.request(url, { method: "PUT", body, headers: { "content-type": "application/json" } });
    // It is durable.
    if (answer.ok || (answer.status === 404 && body === null)) return;
    // This document can never work; the others can.
    if (answer.status === 400 || answer.status === 422) throw Failure.poison("refused", "the service refused the document");
    throw Failure.retry("busy", `the service answered ${answer.status}`);
  }
}

// The settings: `config` of the `[sink.…]` table. A name that is not here is refused; a `?` says that one may be missing.
export const plugin = sink(Items, { settings: { url: "string" } });
