import type { Change, Delivered, Failure, Plugin, SinkPlugin } from "./index.js";

/** Sets what `config.get` gives, in place of what was set before. */
export function setConfig(settings: Record<string, string>): void;

/** The log lines since the last call. */
export function takeLog(): { level: "error" | "warn" | "info" | "debug" | "trace"; message: string }[];

/** Forgets settings, log lines, answers, the store and numbers: for `beforeEach`. */
export function reset(): void;

/** Sets what questions are answered with: a function of a statement's SQL and one set of parameters, which gives its rows. */
export function setQuery(answer: (sql: string, parameters: (string | null)[]) => Record<string, any>[]): void;

/** Sets what requests are answered with: a function of the request, which gives an answer or throws a Failure. */
export function setHttp(
  respond: (request: { method: string; url: string; headers: Record<string, string>; body: Uint8Array }) => {
    status?: number;
    headers?: Record<string, string>;
    body?: string | Uint8Array;
  },
): void;

/** What the store has, as texts. */
export function stored(): Record<string, string>;

/** What a number came to: `name`, or `name{label="value"}`. */
export function metric(series: string): number | undefined;

/** Opens a sink with settings, as the host does; throws a Failure where it refuses them. */
export function open(plugin: SinkPlugin, settings?: Record<string, any>): OpenSink;

/** A sink at work. */
export interface OpenSink {
  /** Delivers documents (those without a body are deletes); gives a result for each: null where it was accepted, else the Failure. */
  deliver(
    documents: { id: string; destination?: string; body?: any }[],
    options?: { entity?: string; origin?: "stream" | "backfill"; generation?: number; place?: string },
  ): Delivered[];
  /** Empties a destination. */
  purge(destination: string): void;
  /** Makes an empty place beside what readers see; gives whether they see anything. */
  begin(destination: string, place: string): boolean;
  /** Shows a place to the readers of its destination. */
  switch(destination: string, place: string): void;
  /** Removes a place that is of no use any more. */
  abandon(destination: string, place: string): void;
}

/** An insert of a row, with id `1`, to be given to a plugin's `transform`. */
export function change<Row>(row: Row, rest?: Partial<Change<Row>>): Change<Row>;

/** What `describe` gives for a plugin. */
export function describe(plugin: Plugin<any, any> | SinkPlugin): Record<string, any>;

/** A table as the plugin asks for it. */
export function table<Row>(
  plugin: Plugin<Row, any>,
  options?: {
    /** The columns that are sent, where the plugin reads all. */
    columns?: string[];
    /** Types of columns as the host names them (`numeric`, `timestamptz`, …), where the values do not tell. */
    types?: Record<string, string>;
    origin?: "stream" | "backfill";
  },
): Table<Row>;

/** Changes of a table, as a batch. */
export interface Table<Row> {
  /** A new row; columns that are not named were not sent. */
  insert(id: string, row: Partial<Row>): this;
  /** A row that a backfill read. */
  read(id: string, row: Partial<Row>): this;
  /** A new version of a row. */
  update(id: string, row: Partial<Row>, old?: Partial<Row> | null): this;
  /** The end of a row. */
  delete(id: string, old: Partial<Row>): this;
  /** The batch as the host would send it. */
  request(): string;
  /** Runs the plugin over the changes; throws a Failure where the whole batch failed. */
  run(): Outcome[];
}

/** An outcome as the host would read it. */
export interface Outcome {
  readonly kind: "emit" | "delete" | "skip" | "failed";
  readonly documents: { id: string | null; destination: string | null; text: string; body: any }[];
  /** Why it failed. */
  readonly failure: Failure | null;
  /** The one document, where it is one, as JavaScript reads it. */
  readonly document: any;
  /** Its text. */
  readonly text: string | undefined;
}
