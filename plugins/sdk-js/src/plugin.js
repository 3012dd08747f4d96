/** Plugins: how one is defined, what it says of itself, what it may answer. */

const OPTIONS = [
  "name", "version", "tables", "columns", "raw", "destination", "wantsDeletes", "namesIds", "dependsOn", "prepare",
  "transform",
];
const SDK = "anabranch-sdk-js 0.1.0";

/** The answer that leaves the destination as it is. */
export const skip = Symbol("anabranch: skip");

/** One document with its own id or destination. Made by `document`. */
export class Document {
  constructor(body, { id, destination, ...rest } = {}) {
    const unknown = Object.keys(rest);
    if (unknown.length > 0) throw new TypeError(`a document has no \`${unknown[0]}\`: id, destination`);
    for (const [name, value] of [["id", id], ["destination", destination]]) {
      if (value !== undefined && value !== null && typeof value !== "string") {
        throw new TypeError(`the ${name} of a document is a string, not ${typeof value}`);
      }
    }
    this.body = body;
    this.id = id ?? null;
    this.destination = destination ?? null;
  }
}

/** A document with its own id or destination: to be answered, alone or in an array. */
export function document(body, names) {
  return new Document(body, names);
}

function texts(options, name) {
  const list = options[name];
  if (list === undefined) return undefined;
  if (!Array.isArray(list) || list.some((item) => typeof item !== "string")) {
    throw new TypeError(`\`${name}\` is an array of strings`);
  }
  return [...list];
}

/** An option of a type, where it is given. */
export function typed(options, name, type) {
  const value = options[name];
  if (value !== undefined && typeof value !== type) throw new TypeError(`\`${name}\` is a ${type}`);
  return value;
}

/** Refuses options that are not known. */
export function check(options, known, what) {
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new TypeError(`\`${unknown}\` is no option of ${what}: ${known.join(", ")}`);
  }
}

/** Defines a transform. See `index.d.ts` for the options. */
export function transform(options) {
  check(options, OPTIONS, "a transform");
  if (typeof options.transform !== "function") throw new TypeError("`transform` is a function");
  const columns = texts(options, "columns");
  const raw = texts(options, "raw") ?? [];
  const stranger = columns && raw.find((name) => !columns.includes(name));
  if (stranger !== undefined) throw new TypeError(`\`raw\` names \`${stranger}\`, which is not in \`columns\``);
  return Object.freeze({
    kind: "transform",
    name: typed(options, "name", "string"),
    version: typed(options, "version", "string"),
    tables: texts(options, "tables") ?? [],
    columns,
    raw,
    destination: typed(options, "destination", "string"),
    wantsDeletes: typed(options, "wantsDeletes", "boolean") ?? false,
    namesIds: typed(options, "namesIds", "boolean") ?? false,
    dependsOn: texts(options, "dependsOn") ?? [],
    prepare: typed(options, "prepare", "function"),
    transform: options.transform,
  });
}

/**
 * What a plugin says of itself: the JSON of `wit/v1/describe.md`. `project` has the name and version of its
 * package.json, and the version that the build demands, if any.
 */
export function describe(plugin, project) {
  const names = {
    name: plugin.name ?? project.name,
    version: project.demanded ?? plugin.version ?? project.version,
    kind: plugin.kind,
    sdk: SDK,
  };
  if (plugin.kind === "sink") return JSON.stringify({ ...names, encoding: "msgpack" });
  return JSON.stringify({
    ...names,
    encoding: "json",
    tables: plugin.tables,
    columns: plugin.columns ?? null,
    raw: plugin.raw,
    destination: plugin.destination ?? null,
    wants_deletes: plugin.wantsDeletes,
    names_ids: plugin.namesIds,
    depends_on: plugin.dependsOn,
  });
}
