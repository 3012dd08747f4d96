/** Failures by class. */

const CLASSES = ["retry", "poison", "fatal"];

/** Why a change or document could not be processed. Throw it. */
export class Failure extends Error {
  /**
   * @param {"retry" | "poison" | "fatal"} failureClass
   * @param {string} code
   * @param {string} message
   * @param {{ afterMs?: number }} options
   */
  constructor(failureClass, code, message, { afterMs } = {}) {
    super(message);
    if (!CLASSES.includes(failureClass)) {
      throw new TypeError(`\`${failureClass}\` is no class of failure: ${CLASSES.join(", ")}`);
    }
    if (afterMs !== undefined && !(Number.isSafeInteger(afterMs) && afterMs >= 0)) {
      throw new TypeError("`afterMs` is a whole number of milliseconds");
    }
    this.name = "Failure";
    this.class = failureClass;
    this.code = String(code);
    this.afterMs = afterMs;
  }

  /** It may work later: the host tries again. A sink may say after how many milliseconds that is welcome. */
  static retry(code, message, options) {
    return new Failure("retry", code, message, options);
  }

  /** This change or document can never work; others can. */
  static poison(code, message) {
    return new Failure("poison", code, message);
  }

  /** Nothing can work as things are configured or written. */
  static fatal(code, message) {
    return new Failure("fatal", code, message);
  }
}

/** Halves of a character, which UTF-8 does not have, are replaced. */
const sendable = (text) => new TextDecoder().decode(new TextEncoder().encode(text));

/** A failure as it leaves the guest. */
export function told(failure) {
  return { class: failure.class, code: sendable(failure.code), message: sendable(failure.message) };
}

/** Whether a text has half a character in it: with the flag, a pair is one character. */
export const hasHalf = (text) => /[\ud800-\udfff]/u.test(text);

/** A text as the host takes it. Replaced halves would make two keys one. */
export function whole(which, text) {
  const said = String(text);
  if (hasHalf(said)) {
    throw Failure.poison("text", `${which} has half a character, which UTF-8 does not have: the host takes none`);
  }
  return said;
}

function exception(thrown, who, failureClass) {
  if (thrown instanceof Failure) return thrown;
  const said = thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown);
  return new Failure(failureClass, "exception", `${who} threw ${said}`);
}

/**
 * What was thrown while one change was answered, as its failure: what is no Failure is poison. The same row would come to the
 * same.
 */
export const failureOf = (thrown) => exception(thrown, "the transform", "poison");

/**
 * What a sink threw: what is no Failure is retry. It may be a connection that broke, and no document is to be given up for
 * that.
 */
export const sinkFailure = (thrown, failureClass = "retry") => exception(thrown, "the sink", failureClass);

/** What an author's function returned: a promise has done nothing yet, and a Failure is one also where it is returned. */
export function done(returned, who) {
  if (returned instanceof Failure) throw returned;
  if (typeof returned?.then === "function") {
    throw Failure.fatal("async", `${who} returned a promise; it has to answer at once`);
  }
  return returned;
}

/** What a function of the host threw, as the Failure that it means; anything else as it is. */
export function hostFailure(thrown) {
  const said = thrown?.payload;
  return CLASSES.includes(said?.class) ? new Failure(said.class, said.code, said.message) : thrown;
}
