//! `check`: whether config, plugins and source would work. Changes nothing but the compile cache, which it
//! warms.

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    config::{Config, Mapping, Mappings},
    model::EntityName,
    plugin::{Plugin, PluginError},
    postgres::{Finding, PreflightRequest, Purpose, Severity, preflight},
};

use super::{Context, Exit, output::ProblemShape, prepare::Plugins, problems_of};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}

/// The JSON shape of `check`.
#[derive(Debug, Default, Serialize)]
struct Shape {
    /// Whether `run` would start.
    ok: bool,
    plugins: Vec<PluginShape>,
    mappings: Vec<MappingShape>,
    /// Plugins that do nothing, and why.
    notices: Vec<String>,
    /// What is wrong with the config once plugins are known.
    problems: Vec<ProblemShape>,
    /// What is wrong with the source.
    findings: Vec<FindingShape>,
}

#[derive(Debug, Serialize)]
struct PluginShape {
    path: String,
    ok: bool,
    name: Option<String>,
    version: Option<String>,
    /// `ok`, or why it cannot be loaded.
    verdict: String,
}

#[derive(Debug, Serialize)]
struct MappingShape {
    name: String,
    entity: String,
    transform: String,
    sink: String,
    destination: String,
}

#[derive(Debug, Serialize)]
struct FindingShape {
    /// `error` or `warning`.
    severity: &'static str,
    /// A short stable word.
    code: &'static str,
    message: String,
    /// A statement or setting that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

pub(super) fn run(context: &Context, _: &Arguments) -> anyhow::Result<Exit> {
    let config = context.config()?;
    let plugins = Plugins::load(&config)?;
    let mut shape = Shape { plugins: plugin_shapes(&plugins), ..Shape::default() };
    let exit = match plugins.mappings(&config) {
        // Which tables are meant is not known then, so there is nothing to look for in the source.
        Err(error) => {
            shape.problems = problems_of(&error);
            Exit::Usage
        }
        Ok(mappings) => {
            let full = full_identity(&plugins, &mappings);
            shape.findings = context.block_on(source(&config, &mappings, &full))?;
            shape.mappings = mapping_shapes(&mappings);
            shape.notices = mappings.notices;
            let broken = plugins.failures().next().is_some()
                || plugins.loaded().any(|plugin| plugin.ungranted().is_some());
            let stopped = shape.findings.iter().any(|finding| finding.severity == "error");
            if broken || stopped { Exit::Failed } else { Exit::Done }
        }
    };
    shape.ok = exit == Exit::Done;
    context.output.result(&shape, text)?;
    Ok(exit)
}

/// The tables whose transforms name their own document ids.
fn full_identity(plugins: &Plugins, mappings: &Mappings) -> Vec<EntityName> {
    let names_ids = |name: &str| plugins.named(name).is_some_and(|plugin| plugin.description().names_ids);
    let mappings = mappings.mappings.iter().filter(|mapping| names_ids(&mapping.transform));
    mappings.map(|mapping| mapping.entity.clone()).collect()
}

async fn source(
    config: &Config,
    mappings: &Mappings,
    full_identity: &[EntityName],
) -> anyhow::Result<Vec<FindingShape>> {
    let mut tables: Vec<_> = mappings.mappings.iter().map(|mapping| mapping.entity.clone()).collect();
    tables.sort();
    tables.dedup();
    let client = config.source.connect.connect(Purpose::Control).await?;
    let request = PreflightRequest {
        slot: &config.source.slot,
        publication: &config.source.publication,
        managed: config.source.manage_publication,
        tables: &tables,
        full_identity,
    };
    let findings = preflight(&client, &request).await?;
    client.close().await;
    Ok(findings.into_iter().map(finding_shape).collect())
}

fn finding_shape(finding: Finding) -> FindingShape {
    FindingShape {
        severity: match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        code: finding.code,
        message: finding.what,
        fix: finding.fix,
    }
}

fn plugin_shapes(plugins: &Plugins) -> Vec<PluginShape> {
    let shape = |(path, plugin): &(PathBuf, Result<Plugin, PluginError>)| PluginShape {
        path: path.display().to_string(),
        ok: plugin.as_ref().is_ok_and(|plugin| plugin.ungranted().is_none()),
        name: plugin.as_ref().ok().map(|plugin| plugin.revision().name.clone()),
        version: plugin.as_ref().ok().map(|plugin| plugin.revision().version.to_string()),
        verdict: match plugin {
            Ok(plugin) => match plugin.ungranted() {
                None => "ok".to_owned(),
                Some(ungranted) => format!("plugin {} {ungranted}", plugin.revision()),
            },
            Err(error) => error.to_string(),
        },
    };
    plugins.files.iter().map(shape).collect()
}

fn mapping_shapes(mappings: &Mappings) -> Vec<MappingShape> {
    let shape = |mapping: &Mapping| MappingShape {
        name: mapping.name.clone(),
        entity: mapping.entity.to_string(),
        transform: mapping.transform.clone(),
        sink: mapping.sink.clone(),
        destination: mapping.destination.clone(),
    };
    mappings.mappings.iter().map(shape).collect()
}

fn text(shape: &Shape) -> String {
    let mut lines = Vec::new();
    for plugin in &shape.plugins {
        match (&plugin.name, &plugin.version) {
            (Some(name), Some(version)) if plugin.ok => lines.push(format!("plugin   {name} {version}: ok")),
            _ => lines.push(format!("error    {}", plugin.verdict)),
        }
    }
    for mapping in &shape.mappings {
        let MappingShape { name, sink, destination, .. } = mapping;
        lines.push(format!("mapping  {name}: {destination} in {sink}"));
    }
    lines.extend(shape.notices.iter().map(|notice| format!("note     {notice}")));
    for problem in &shape.problems {
        lines.push(format!("error    {problem}"));
    }
    for finding in &shape.findings {
        lines.push(format!("{:<8} {}: {}", finding.severity, finding.code, finding.message));
        lines.extend(finding.fix.iter().map(|fix| format!("         fix: {fix}")));
    }
    lines.push(if shape.ok { "ready to run".to_owned() } else { "not ready to run".to_owned() });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_with_their_fix() {
        let finding = FindingShape {
            severity: "error",
            code: "wal-level",
            message: "wal_level is `replica`, and streaming needs `logical`".into(),
            fix: Some("alter system set wal_level = 'logical';".into()),
        };
        let shape = Shape { findings: vec![finding], ..Shape::default() };
        assert_eq!(
            text(&shape),
            "error    wal-level: wal_level is `replica`, and streaming needs `logical`\n         \
             fix: alter system set wal_level = 'logical';\nnot ready to run"
        );
    }
}
