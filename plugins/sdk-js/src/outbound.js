/** Where a request goes, and why there is no answer: what does not need the host. */
import { Failure, hasHalf } from "./failure.js";

/** The parts of a URL that a request can go to. */
export function target(url) {
  const parts = /^(https?):\/\/([^/?#]+)([^#]*)/i.exec(url);
  // Half a character would be another one at the other side.
  if (parts === null || hasHalf(url)) throw wrongUrl(url);
  const [, scheme, authority, rest] = parts;
  return { scheme: scheme.toUpperCase(), authority, path: rest.startsWith("/") ? rest : `/${rest}` };
}

/** The request itself cannot be made; others can. */
export const wrong = (problem) => Failure.poison("http-request", problem);

/** No request can go there. Its user, path and query may be secrets. */
export function wrongUrl(url) {
  const shown = /^([a-z][a-z0-9+.-]*):\/\/(?:[^/?#]*@)?([^/?#]*)/i.exec(url);
  const where = shown === null ? "a URL without scheme and host" : `${shown[1]}://${shown[2]}`;
  return wrong(`no request can go to ${where}: a URL is \`https://host:port/path?query\``);
}

/** There is no answer; there may be one later. */
export const failed = (message) => Failure.retry("http-failed", message);

/** The host's own words begin with what they are, also where it shows them as the error of a stream. */
export function said(message) {
  const wrapped = /^(?:ErrorCode::)?InternalError\(Some\("(.*)"\)\)/s.exec(message);
  const words = wrapped === null ? message : wrapped[1].replaceAll(/\\(["'\\])/g, "$1");
  if (words.startsWith("denied: ")) return Failure.fatal("http-denied", words.slice("denied: ".length));
  if (words.startsWith("timeout: ")) return Failure.retry("http-timeout", words.slice("timeout: ".length));
  return failed(words);
}
