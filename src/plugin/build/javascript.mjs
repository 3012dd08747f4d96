// From a JavaScript or TypeScript project to a component. `anabranch plugin build` runs this in the project's folder
// with one argument, the task (see javascript.rs); the last line of standard output is the answer.
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

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

async function bundle(esbuild, { entry, name, version, demanded }) {
  const module = `
    import * as log from "anabranch:plugin/log@1.0.0";
    import * as config from "anabranch:plugin/config@1.0.0";
    import { component } from "anabranch-sdk/component";
    import * as project from ${JSON.stringify(`./${entry}`)};
    const names = ${JSON.stringify({ name, version, demanded })};
    export const { describe, transform } = component(project.plugin, names, { log, config });
  `;
  const { outputFiles } = await esbuild.build({
    stdin: { contents: module, resolveDir: process.cwd(), sourcefile: "component.js" },
    bundle: true,
    write: false,
    format: "esm",
    platform: "neutral",
    mainFields: ["module", "main"],
    target: "es2022",
    charset: "utf8",
    external: ["anabranch:*"],
    logLevel: "warning",
    // A namespace without `plugin` is told by the SDK, in better words.
    logOverride: { "import-is-undefined": "silent" },
  });
  return outputFiles[0].text;
}

async function build(task) {
  if (Number(process.versions.node.split(".")[0]) < NODE) {
    return answer({ tools: `Node ${process.versions.node} is too old; install Node ${NODE} or newer from https://nodejs.org` });
  }
  const missing = [];
  const esbuild = await tool("esbuild", missing);
  const componentizer = await tool("@bytecodealliance/componentize-js", missing);
  if (missing.length > 0) {
    return answer({
      tools: `${missing.join(" and ")} cannot be found: run \`npm install\` there; package.json needs both `
        + "esbuild and @bytecodealliance/componentize-js as devDependencies (`anabranch plugin new` writes one)",
    });
  }
  let source;
  try {
    source = await bundle(esbuild, task);
  } catch (error) {
    if (error.errors) process.exitCode = 1; // esbuild has told them
    else fails(error);
    return;
  }
  const sourcePath = join(task.work, "js", "plugin.js");
  await mkdir(join(task.work, "js"));
  await writeFile(sourcePath, source);
  try {
    const { component } = await componentizer.componentize({
      sourcePath,
      witPath: task.wit,
      worldName: task.world,
      // Each of them would import WASI.
      disableFeatures: ["random", "stdio", "clocks", "http", "fetch-event"],
    });
    await writeFile(task.output, component);
  } catch (error) {
    return fails(error);
  }
  answer("built");
}

await build(JSON.parse(process.argv.at(-1)));
