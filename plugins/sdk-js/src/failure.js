/** Failures by class. */

const CLASSES = ["retry", "poison", "fatal"];

/** Why a change could not be processed. Throw it. */
export class Failure extends Error {
  /**
   * @param {"retry" | "poison" | "fatal"} failureClass
   * @param {string} code
   * @param {string} message
   */
  constructor(failureClass, code, message) {
    super(message);
    if (!CLASSES.includes(failureClass)) {
      throw new TypeError(`\`${failureClass}\` is no class of failure: ${CLASSES.join(", ")}`);
    }
    this.name = "Failure";
    this.class = failureClass;
    this.code = String(code);
  }

  /** It may work later: the host tries again. */
  static retry(code, message) {
    return new Failure("retry", code, message);
  }

  /** This change can never work; others can. */
  static poison(code, message) {
    return new Failure("poison", code, message);
  }

  /** Nothing can work as things are configured or written. */
  static fatal(code, message) {
    return new Failure("fatal", code, message);
  }
}

/** What was thrown while one change was answered, as its failure: what is no Failure is poison. */
export function failureOf(thrown) {
  if (thrown instanceof Failure) return thrown;
  const said = thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown);
  return Failure.poison("exception", `the transform threw ${said}`);
}
