//! A client for one request a connection, and a reader of OpenMetrics text that takes nothing that is not sound.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use serde_json::Value;
use testkit::{Host, wait_until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Long, because several tests share two cores.
const SOON: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// By lower-case name.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Where a host answers.
#[derive(Clone, Copy, Debug)]
pub struct Web(pub SocketAddr);

impl Web {
    /// Waits until a host that was started after `from` listens.
    pub async fn of(host: &mut Host, from: usize) -> Self {
        let line = host.wait_log(from, "listening for HTTP", SOON).await.unwrap();
        let address = line.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
        Self(address.parse().unwrap())
    }

    pub async fn get(self, path: &str) -> Answer {
        self.ask("GET", path).await.unwrap()
    }

    pub async fn ask(self, method: &str, path: &str) -> anyhow::Result<Answer> {
        let mut stream = TcpStream::connect(self.0).await?;
        stream.write_all(format!("{method} {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).await?;
        let mut bytes = Vec::new();
        tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await??;
        let text = String::from_utf8(bytes)?;
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().parse()?;
        let header = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_lowercase(), v.to_owned()));
        Ok(Answer { status, headers: lines.filter_map(header).collect(), body: body.to_owned() })
    }

    pub async fn health(self) -> Value {
        self.get("/healthz").await.json()
    }

    pub async fn metrics(self) -> Metrics {
        let answer = self.get("/metrics").await;
        assert_eq!(answer.status, 200);
        Metrics::read(&answer.body)
    }

    /// Waits until a path answers with a status and a body with `text` in it; gives the answer.
    pub async fn wait(self, path: &str, status: u16, text: &str) -> Answer {
        let (mut last, mut right) = (String::new(), None);
        let what = format!("{path} to answer {status} with {text:?}");
        let waited = wait_until(&what, SOON, async || {
            let answer = self.ask("GET", path).await?;
            last = format!("{} {}", answer.status, answer.body);
            if answer.status == status && answer.body.contains(text) {
                right = Some(answer);
            }
            Ok(right.is_some())
        });
        waited.await.unwrap_or_else(|error| panic!("{error:#}; it was: {last}"));
        right.unwrap()
    }

    /// Waits until a path answers with `text`, while another never answers with anything but 200.
    pub async fn ask_until(self, path: &str, text: &str, other: &str) -> anyhow::Result<()> {
        wait_until(&format!("{path} to tell {text:?}"), SOON, async || {
            let always = self.ask("GET", other).await?;
            assert_eq!(always.status, 200, "{other}: {}", always.body);
            Ok(self.ask("GET", path).await?.body.contains(text))
        })
        .await
    }

    /// Waits until the metrics are as wanted; gives them.
    pub async fn wait_metrics(self, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
        let mut last = None;
        let waited = wait_until(what, SOON, async || {
            let metrics = self.metrics().await;
            let right = wanted(&metrics);
            last = Some(metrics);
            Ok(right)
        });
        let waited = waited.await;
        let last = last.unwrap();
        waited.unwrap_or_else(|error| panic!("{error:#}; they were: {last:#?}"));
        last
    }
}

/// Samples by name and labels, as `name{label="value",…}` with the labels sorted.
#[derive(Debug)]
pub struct Metrics {
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Metrics {
    fn read(text: &str) -> Self {
        let mut samples = BTreeMap::new();
        let mut families: BTreeMap<String, String> = BTreeMap::new();
        let mut family = String::new();
        assert!(text.ends_with("\n# EOF\n"), "cut off");
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.splitn(3, ' ');
                let (what, name, rest) =
                    (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
                match what {
                    "TYPE" => {
                        let told = families.insert(name.to_owned(), rest.to_owned());
                        assert_eq!(told, None, "{name} is there twice");
                        family = name.to_owned();
                    }
                    "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                    "HELP" => assert!(rest.len() > 3, "{line}"),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = match series.split_once('{') {
                None => (series, BTreeMap::new()),
                Some((name, labels)) => (name, read_labels(labels.strip_suffix('}').unwrap())),
            };
            let suffixes = match families[&family].as_str() {
                "counter" => &["_total"][..],
                "gauge" => &[""],
                "histogram" => &["_bucket", "_count", "_sum"],
                "info" => &["_info"],
                other => panic!("{family} is a {other}"),
            };
            let belongs = suffixes.iter().any(|suffix| name == format!("{family}{suffix}"));
            assert!(belongs, "{line} is not of {family}");
            let known = samples.insert((name.to_owned(), labels), value.parse().unwrap());
            assert_eq!(known, None, "twice: {line}");
        }
        Self { samples }
    }

    /// The value of the series that has these labels and perhaps more; none where there is no such series.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let name = format!("anabranch_{name}");
        let mut found = self.samples.iter().filter(|((of, has), _)| {
            *of == name && labels.iter().all(|(key, value)| has.get(*key).is_some_and(|is| is == value))
        });
        let first = found.next().map(|(_, value)| *value);
        assert!(found.next().is_none(), "several are {name} {labels:?}");
        first
    }

    /// The same, of a series that is there.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.get(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?} in {self:#?}"))
    }

    /// The sum of the series that have these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let name = format!("anabranch_{name}");
        let is = |((of, has), _): &(&(String, BTreeMap<String, String>), &f64)| {
            *of == name && labels.iter().all(|(key, value)| has.get(*key).is_some_and(|is| is == value))
        };
        self.samples.iter().filter(is).map(|(_, value)| *value).sum()
    }

    /// The names of all samples, without labels.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.samples.keys().map(|(name, _)| name.as_str()).collect();
        names.dedup();
        names
    }
}

fn read_labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, value) = rest.split_once("=\"").unwrap();
        let (mut read, mut chars) = (String::new(), value.char_indices());
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => match chars.next().unwrap().1 {
                    'n' => read.push('\n'),
                    c @ ('"' | '\\') => read.push(c),
                    c => panic!("\\{c} in {text}"),
                },
                (_, c) => read.push(c),
            }
        };
        labels.insert(key.trim_start_matches(',').to_owned(), read);
        rest = &value[end + 1..];
    }
    labels
}
