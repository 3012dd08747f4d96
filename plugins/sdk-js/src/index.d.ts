/** What can be done about a failure. */
export type FailureClass = "retry" | "poison" | "fatal";

/**
 * Why a change or document could not be processed. Throw it. Anything else that is thrown has the code `exception`: of a
 * transform it is poison of its change; of a sink it is retry, since no document is at fault for it, and fatal while it is
 * opened.
 */
export class Failure extends Error {
  constructor(failureClass: FailureClass, code: string, message: string, options?: { afterMs?: number });
  /** What can be done about it. */
  readonly class: FailureClass;
  /** A short stable word for programs, such as `bad-currency`. */
  readonly code: string;
  /** After how many milliseconds a retry is welcome, where a sink knows it. */
  readonly afterMs: number | undefined;
  /** It may work later: the host tries again. A sink may say after how many milliseconds that is welcome. */
  static retry(code: string, message: string, options?: { afterMs?: number }): Failure;
  /** This change or document can never work; others can. */
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
  /**
   * Is shown the changes of a batch before the first of them is answered: to ask the source or a service once for all of
   * them, and keep the answers in a variable of the module. What it throws is a failure of the whole batch. Not async.
   */
  prepare?(changes: readonly Change<Row>[]): void;
  /** Answers one change. Not async. */
  transform(change: Change<Row>): Answer<Body>;
}

/** A transform, to be exported as `plugin`. */
export interface Plugin<Row = Record<string, Value>, Body = unknown> extends Readonly<Options<Row, Body>> {}

/** Defines a transform. Throws a TypeError for an option that it does not know. */
export function transform<Row = Record<string, Value>, Body = unknown>(
  options: Options<Row, Body>,
): Plugin<Row, Body>;

/** A parameter of a statement: Postgres reads its text for the type that it has there. Null is NULL. */
export type Parameter = string | number | bigint | boolean | null;

/**
 * The rows of one SELECT (or VALUES, or WITH … SELECT) of the source, with parameters for $1, $2, … Who uses it asks for
 * `query`. Names of tables need their schema. Throws a Failure.
 */
export function query<Row = Record<string, Value>>(sql: string, parameters?: Parameter[]): Row[];

/**
 * The rows of each set of parameters of each statement, in their order, from one snapshot. A statement without `parameters`
 * runs once.
 */
export function queryMany<Row = Record<string, Value>>(statements: { sql: string; parameters?: Parameter[][] }[]): Row[][];

/**
 * A small store of keys and values, of each mapping and generation alone. Who uses it asks for `state`. What a call writes
 * is durable before its documents are delivered; a batch that is sent again may meet its own earlier writes.
 */
export const state: {
  /** The text under a key. */
  get(key: string): string | undefined;
  /** The bytes under a key. */
  getBytes(key: string): Uint8Array | undefined;
  /** The texts under some keys, in their order, read in one go. */
  getMany(keys: string[]): (string | undefined)[];
  set(key: string, value: string | Uint8Array): void;
  /** Removes a key, whether it is there or not. */
  delete(key: string): void;
  /** The keys that begin with a prefix, after a key, in the order of their bytes; so many at the most (1000). */
  keys(options?: { prefix?: string; after?: string; limit?: number }): string[];
};

/** Numbers at the host's /metrics. Who uses it asks for `metrics`. Give labels few values. */
export const metrics: {
  /** Adds to a counter, which is shown as `anabranch_guest_<name>_total`. */
  count(name: string, by?: number, labels?: Record<string, string | number | boolean>): void;
  /** Sets a gauge, which is shown as `anabranch_guest_<name>`. */
  gauge(name: string, value: number, labels?: Record<string, string | number | boolean>): void;
};

/** Requests over HTTP. Who uses it asks for `http`. */
export const http: {
  /**
   * Sends a request and waits for the whole answer, whatever its status; redirects are not followed. Throws a Failure where
   * there is none: code `http-denied` (fatal), `http-timeout` or `http-failed` (retry), `http-request` (poison: no request
   * can be made of the URL, the method or the headers).
   */
  request(url: string, options?: {
    /** `GET` if left out. */
    method?: string;
    /** The host adds those that the config has for the URL's origin. */
    headers?: Record<string, string>;
    body?: string | Uint8Array;
    /** How long to wait for the answer to begin; never longer than the config lets a request take. */
    timeoutMs?: number;
  }): HttpAnswer;
};

/** An answer. */
export interface HttpAnswer {
  readonly status: number;
  /** Whether the status is one of success. */
  readonly ok: boolean;
  /** By their names in lower case; of several of one name the first. */
  readonly headers: Record<string, string>;
  readonly body: Uint8Array;
  text(): string;
  json(): any;
}

/** A document, or the end of one. */
export interface SinkDocument {
  /** Where it goes. */
  destination: string;
  id: string;
  /** Its JSON text, to be put under the id whether one is there or not. Null: the id is to be removed, whether it is there or not. */
  body: string | null;
  /** Position of the commit that made it, as Postgres writes it; `0/0` where a backfill read the row. */
  lsn: string;
  /** When that was committed: microseconds since 1970-01-01 UTC. */
  commitTimeUs: number;
}

/** What became of one document: null where it was accepted, which means that it is durable, else why not. */
export type Delivered = Failure | null | undefined;

/** Documents of one mapping, in commit order. Several may have the same id: the last one wins. */
export interface Batch {
  /** The table whose rows made them, as `schema.table`. */
  entity: string;
  origin: "stream" | "backfill";
  /** Counts the rebuilds of the mapping. */
  generation: number;
  /**
   * The place that all of it is for, where a sink with `Generations` builds their destination, which is one then. Null: they are for
   * what readers see.
   */
  place: string | null;
  documents: SinkDocument[];
  /** Every document was accepted. */
  accepted(): Delivered[];
  /**
   * One result for each document, in order, by a function that returns where it is accepted and throws where it is not.
   * Behind a failure that is not poison nothing more is tried: the batch comes again.
   */
  each(deliver: (document: SinkDocument) => void): Delivered[];
}

/** Delivers documents. There may be several instances, and instances are replaced now and then. */
export interface Sink {
  /** Delivers a batch, in order, and gives one result for each document, in order. Not async. */
  deliver(batch: Batch): Delivered[];
  /** Removes every document of a destination: a sink that has it can be asked to. */
  purge?(destination: string): void;
}

/**
 * What a sink has, too, that can build a destination beside what its readers see, and show it to them at once: all three methods.
 * The host begins a place for each rebuild, fills it (`batch.place` says what is for it), and switches once it is whole. Each may
 * be called again with the same words, on another instance, too, and comes to the same.
 */
export interface Generations {
  /**
   * Makes an empty place for a destination; one of that name that is there is emptied. Returns whether readers see anything under the
   * destination now: where not, the host switches at once.
   */
  begin(destination: string, place: string): boolean;
  /**
   * Shows the place to the readers of the destination, in one step. All other places of it are removed. Throws a fatal Failure where
   * the place is not there any more.
   */
  switch(destination: string, place: string): void;
  /** Removes a place that is of no use any more. One that readers see stays, and one that is not there is removed already. */
  abandon(destination: string, place: string): void;
}

type NoGenerations = { [name in keyof Generations]?: never };

type SettingType = "string" | "number" | "boolean" | "array" | "object";

export interface SinkOptions {
  /** How the config refers to it; else the name in package.json. */
  name?: string;
  /** Strict semver; else the version in package.json. */
  version?: string;
  /** The settings and their types, with a `?` where one may be missing. Others are refused; all are taken if this is left out. */
  settings?: Record<string, SettingType | `${SettingType}?`>;
}

/** A sink, to be exported as `plugin`. */
export interface SinkPlugin extends Readonly<SinkOptions> {
  readonly kind: "sink";
}

/**
 * Defines a sink: a class that is made with its settings. Throws a TypeError where it has some methods of `Generations`, and not all
 * of them.
 */
export function sink<Settings = Record<string, any>>(
  type: new (settings: Settings) => Sink & (Generations | NoGenerations),
  options?: SinkOptions,
): SinkPlugin;
