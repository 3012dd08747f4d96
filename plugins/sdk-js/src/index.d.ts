/** What can be done about a failure. */
export type FailureClass = "retry" | "poison" | "fatal";

/** Why a change could not be processed. Throw it; anything else that is thrown is poison with code `exception`. */
export class Failure extends Error {
  constructor(failureClass: FailureClass, code: string, message: string);
  /** What can be done about it. */
  readonly class: FailureClass;
  /** A short stable word for programs, such as `bad-currency`. */
  readonly code: string;
  /** It may work later: the host tries again. */
  static retry(code: string, message: string): Failure;
  /** This change can never work; others can. */
  static poison(code: string, message: string): Failure;
  /** Nothing can work as things are configured or written. */
  static fatal(code: string, message: string): Failure;
}

/** Writes lines to the host's log, which limits their rate and length. */
export const log: {
  error(message: string): void;
  warn(message: string): void;
  info(message: string): void;
  debug(message: string): void;
  trace(message: string): void;
};

/** The settings of `[plugins.<name>] config`. */
export const config: {
  /** The text under a key. Not at the top of a module: that runs once, when the plugin is built. */
  get(key: string): string | undefined;
};

/**
 * JSON text that stands as it is in a document: digits of numbers, order of keys and white space are kept. Columns
 * that are named in `raw` come as such.
 */
export class RawJson {
  /** Throws a SyntaxError if the text is no JSON. */
  constructor(text: string);
  readonly text: string;
  /** The value, with JavaScript's numbers: digits beyond a double are lost. */
  parse(): any;
}

/**
 * A numeric column (a string) as a JSON number with all its digits; null for NULL, `NaN` and the infinities, which
 * are no JSON numbers.
 */
export function jsonNumber(text: string | null | undefined): RawJson | null;

/** A column of a row. NULL is null; a column that was not sent is not there. */
export type Value =
  | null
  | boolean
  /** An integer, or a float that is a number. */
  | number
  /** An integer beyond 2^53. */
  | bigint
  /** Text, numeric (its digits), dates and times, bytea (base64), and floats that are no number (`"NaN"`). */
  | string
  | RawJson
  | Value[]
  /** A json or jsonb column as JavaScript parses it, or an hstore. */
  | { [key: string]: any };

/** One change of a row. */
export interface Change<Row = Record<string, Value>> {
  /** `read` is a row that a backfill read; `delete` comes only to plugins with `wantsDeletes`. */
  operation: "insert" | "update" | "delete" | "read";
  origin: "stream" | "backfill";
  /** The document id: the key's text. Null where the table has no key. */
  id: string | null;
  /** The row as it is now; for a delete, the old row as far as the server sent it. */
  row: Row;
  /** The row before the change, as far as the server sent it. */
  old: Partial<Row> | null;
  /** Position of the commit, as Postgres writes it. */
  lsn: string;
  /** When it was committed: microseconds since 1970-01-01 UTC. */
  commitTimeUs: number;
  /** Position in its transaction or chunk. */
  sequence: number;
}

/** The answer that leaves the destination as it is. */
export const skip: unique symbol;

/** One document with its own id or destination. Made by `document`. */
export class Document<Body = unknown> {
  private constructor();
  readonly body: Body;
  readonly id: string | null;
  readonly destination: string | null;
}

/** A document with its own id or destination: to be answered, alone or in an array. */
export function document<Body>(body: Body, names?: { id?: string; destination?: string }): Document<Body>;

/**
 * What a transform answers: a document (anything that JSON can say, a RawJson or bigint in it too), null (this row
 * has no document), `skip`, or several documents (none at all is null).
 */
export type Answer<Body = unknown> = Body | null | typeof skip | Document<Body> | Document<Body>[];

export interface Options<Row, Body> {
  /** How mappings refer to it; else the name in package.json. */
  name?: string;
  /** Strict semver; else the version in package.json. */
  version?: string;
  /** The tables it is meant for, as `schema.table`. */
  tables?: string[];
  /** The columns that it reads; no others are sent. All if left out. */
  columns?: (keyof Row & string)[];
  /** Columns that come as RawJson: the host's own JSON text. */
  raw?: (keyof Row & string)[];
  /** Where its documents land unless the mapping says otherwise. */
  destination?: string;
  /** Whether deletes come to it. Otherwise the host deletes by document id. */
  wantsDeletes?: boolean;
  /** Whether its documents name their own ids. It must then want deletes too. */
  namesIds?: boolean;
  /** Other tables whose rows its documents depend on. */
  dependsOn?: string[];
  /** Answers one change. Not async. */
  transform(change: Change<Row>): Answer<Body>;
}

/** A plugin, to be exported as `plugin`. */
export interface Plugin<Row = Record<string, Value>, Body = unknown> extends Readonly<Options<Row, Body>> {}

/** Defines a plugin. Throws a TypeError for an option that it does not know. */
export function transform<Row = Record<string, Value>, Body = unknown>(
  options: Options<Row, Body>,
): Plugin<Row, Body>;
