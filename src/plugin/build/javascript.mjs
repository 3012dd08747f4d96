// From a JavaScript or TypeScript project to a component. `anabranch plugin build` runs this in the project's folder,
// twice, with one argument, the task (see javascript.rs); the last line of standard output is the answer.
import { existsSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { delimiter, join } from "node:path";
import { pathToFileURL } from "node:url";

const NODE = 20;

const answer = (value) => console.log(JSON.stringify(value));

/** A package of the project, or the sentence that says how to get it. */
async function tool(name, missing) {
  try {
    return await import(name);
  } catch (error) {
    if (error.code === "ERR_MODULE_NOT_FOUND" && error.message.includes(name)) missing.push(name);
    else throw error;
  }
}

function fails(problem) {
  console.error(String(problem?.message ?? problem).trim());
  process.exitCode = 1;
}

/** What differs between a plugin as a component and one that is looked at here. */
const SETTINGS = {
  bundle: true,
  write: false,
  metafile: true,
  format: "esm",
  platform: "neutral",
  mainFields: ["module", "main"],
  target: "es2022",
  charset: "utf8",
  logLevel: "warning",
  // A namespace without `plugin` is told in better words.
  logOverride: { "import-is-undefined": "silent" },
};

const HOST = { filter: /^(anabranch|wasi):/ };

/** Interfaces of the host are no files. Those of WASI get another name: what has that name, componentize-js stubs. */
const imported = (standIn) => ({
  name: "host",
  setup: ({ onResolve }) =>
    onResolve(HOST, ({ path }) => ({ path: path.replace(/^wasi:/, `${standIn}:`), external: true })),
});

/** They are not there where the module is only looked at. */
const missing = {
  name: "host",
  setup({ onLoad, onResolve }) {
    onResolve(HOST, ({ path }) => ({ path, namespace: "host" }));
    onLoad({ filter: /./, namespace: "host" }, () => ({ contents: "module.exports = {};" }));
  },
};

/** One module of the project. In a component, the SDK's functions of the host are the host's own. */
async function bundle(esbuild, contents, conditions, host) {
  const { outputFiles, metafile } = await esbuild.build({
    ...SETTINGS,
    stdin: { contents, resolveDir: process.cwd(), sourcefile: "component.js" },
    conditions,
    plugins: [host],
  });
  return { source: outputFiles[0].text, metafile };
}

/** What is wrong with the project. */
class Wrong extends Error {}

/** The plugin's module, which runs here as its tests run it. */
async function definition(esbuild, { entry, work }) {
  const path = join(work, "definition.mjs");
  const { source } = await bundle(esbuild, `export * from ${JSON.stringify(`./${entry}`)};`, [], missing);
  await writeFile(path, source);
  try {
    return await import(pathToFileURL(path));
  } catch (error) {
    const said = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    throw new Wrong(`${entry} cannot be loaded: ${said}; what stands at its top runs when it is built, without a host`);
  }
}

/** What a bundle imports of the host: each interface, and the first file that does. */
function imports({ inputs, outputs }) {
  const wanted = new Set(Object.values(outputs).flatMap((output) => output.imports).map(({ path }) => path));
  return [...wanted].map((path) => {
    const from = Object.keys(inputs).filter((name) => inputs[name].imports.some((found) => found.path === path));
    return { path, from: from.find((name) => name !== "component.js") ?? null };
  });
}

/** First step: the module, and what it exports and imports. */
async function prepare(esbuild, task) {
  const { entry, name, version, demanded } = task;
  const { plugin } = await definition(esbuild, task);
  if (plugin?.kind !== "transform" && plugin?.kind !== "sink") {
    throw new Wrong(`${entry} exports no \`plugin\`; write \`export const plugin = transform({ … })\`, or \`sink(…)\``);
  }
  const optional = Object.entries({ purge: plugin.purges, generations: plugin.hasGenerations });
  const exports = plugin.kind === "transform" ? ["transform"] : ["sink", ...optional.filter(([, has]) => has).map(([name]) => name)];
  const { source, metafile } = await bundle(esbuild, `
    import * as log from "anabranch:plugin/log@1.0.0";
    import * as config from "anabranch:plugin/config@1.0.0";
    import { component } from "anabranch-sdk/${plugin.kind === "transform" ? "component" : "sink-component"}";
    import * as project from ${JSON.stringify(`./${entry}`)};
    const names = ${JSON.stringify({ name, version, demanded })};
    export const { describe, ${exports.join(", ")} } = component(project.plugin, names, { log, config });
  `, ["anabranch-component"], imported(task.stand_in));
  await mkdir(join(task.work, "js"));
  await writeFile(join(task.work, "js", "plugin.js"), source);
  answer({ prepared: { exports, imports: imports(metafile) } });
}

/** The `weval` that is installed, if one is; componentize-js fetches it otherwise. */
function weval() {
  const places = (process.env.PATH ?? "").split(delimiter).map((folder) => join(folder, "weval"));
  return places.find((file) => existsSync(file));
}

/** Second step: the component, of the world that was made for it. */
async function componentize(componentizer, task) {
  const { component } = await componentizer.componentize({
    sourcePath: join(task.work, "js", "plugin.js"),
    witPath: task.wit,
    worldName: task.world,
    // Each of them would import WASI, also in a plugin that does not ask for it.
    disableFeatures: ["random", "stdio", "clocks", "http", "fetch-event"],
    enableAot: task.aot,
    wevalBin: task.aot ? weval() : undefined,
  });
  await writeFile(task.output, component);
  answer("built");
}

async function build(task) {
  if (Number(process.versions.node.split(".")[0]) < NODE) {
    return answer({ problem: `Node ${process.versions.node} is too old; install Node ${NODE} or newer from https://nodejs.org` });
  }
  const missing = [];
  const esbuild = await tool("esbuild", missing);
  const componentizer = await tool("@bytecodealliance/componentize-js", missing);
  if (missing.length > 0) {
    return answer({
      problem: `${missing.join(" and ")} cannot be found: run \`npm install\` there; package.json needs both `
        + "esbuild and @bytecodealliance/componentize-js as devDependencies (`anabranch plugin new` writes one)",
    });
  }
  try {
    await (task.step === "prepare" ? prepare(esbuild, task) : componentize(componentizer, task));
  } catch (error) {
    if (error instanceof Wrong) answer({ problem: error.message });
    else if (error.errors) process.exitCode = 1; // esbuild has told them
    else fails(error);
  }
}

await build(JSON.parse(process.argv.at(-1)));
// The module that was looked at may hold the event loop: nothing of it is waited for, once all is written.
process.stdout.write("", () => process.stderr.write("", () => process.exit()));
