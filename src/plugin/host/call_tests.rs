use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use async_trait::async_trait;

use super::{
    super::services::{KeyValues, Meter, Queries},
    *,
};
use crate::plugin::grants::{MetricsGrant, QueryGrant, StateGrant};

/// Answers nothing to everything, or never.
#[derive(Debug)]
struct Source {
    answers: bool,
}

#[async_trait]
impl Queries for Source {
    async fn query(
        &self,
        _: &[QueryStatement],
        _: &[Xid],
        _: &QueryGrant,
    ) -> Result<Vec<QueryRows>, Failure> {
        if self.answers { Ok(Vec::new()) } else { std::future::pending().await }
    }
}

/// Keys with themselves as values, and what was written or told.
#[derive(Debug, Default)]
struct Kept {
    keys: BTreeSet<&'static str>,
    told: Mutex<Vec<(String, Labels)>>,
}

#[async_trait]
impl KeyValues for Kept {
    fn mapping(&self) -> &str {
        "m"
    }

    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let value = |key: &String| self.keys.contains(key.as_str()).then(|| key.clone().into_bytes());
        Ok(keys.iter().map(value).collect())
    }

    async fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, Failure> {
        let wanted = |key: &&&str| key.starts_with(prefix) && after.is_none_or(|after| **key > after);
        Ok(self.keys.iter().filter(wanted).take(limit).map(|key| (*key).to_owned()).collect())
    }

    async fn write(&self, _: Writes, _: &StateGrant) -> Result<(), Failure> {
        Ok(())
    }
}

impl Meter for Kept {
    fn count(&self, name: &str, labels: Labels, _: u64, _: &MetricsGrant) -> Result<(), Failure> {
        self.told.lock().unwrap().push((name.to_owned(), labels));
        Ok(())
    }

    fn gauge(&self, name: &str, labels: Labels, _: f64, grant: &MetricsGrant) -> Result<(), Failure> {
        self.count(name, labels, 0, grant)
    }

    fn refused(&self, _: Capability) {}
}

fn granted() -> Granted {
    let grants = Grants {
        http: None,
        query: Some(QueryGrant { timeout: Duration::from_millis(50), max_rows: 10, max_bytes: 1000 }),
        state: Some(StateGrant { max_bytes: 2000, max_keys: 3 }),
        metrics: Some(MetricsGrant { max_series: 10 }),
    };
    Granted { plugin: "p".to_owned(), grants, encoding: Encoding::Json }
}

fn call(kept: &Arc<Kept>, answers: bool) -> Call {
    let services = Services {
        queries: Some(Arc::new(Source { answers })),
        state: Some(Arc::clone(kept) as _),
        meter: Some(Arc::clone(kept) as _),
    };
    Call { services, ..Call::default() }
}

fn said<T>(done: Result<T, Failure>) -> String {
    done.err()
        .map(|failure| format!("{} {}: {}", failure.class, failure.code, failure.message))
        .unwrap_or_default()
}

#[tokio::test]
async fn questions_have_a_size_and_a_time() {
    let (granted, kept) = (granted(), Arc::default());
    let sets = |count| vec![QueryStatement { sql: String::new(), parameters: vec![Vec::new(); count] }];
    let answered = call(&kept, true);
    assert!(granted.query(&answered, sets(MAX_SETS)).await.is_ok());
    let much = said(granted.query(&answered, sets(MAX_SETS + 1)).await);
    assert_eq!(
        much,
        "fatal query-size: 10001 statements and sets of parameters in one call; at most 10000 (fixed)"
    );
    // Statements without parameters count as well.
    let many = (0..=MAX_SETS).flat_map(|_| sets(0)).collect();
    assert!(said(granted.query(&answered, many).await).contains("query-size"));
    let silent = call(&kept, false);
    let asked = tokio::time::timeout(Duration::from_secs(20), granted.query(&silent, sets(1))).await;
    let late = said(asked.expect("the question to have a limit of time"));
    assert!(late.starts_with("retry query-timeout: the source did not answer within 50ms"), "{late}");
    assert!(late.ends_with("raise `[plugins.p.grants] query_timeout`"), "{late}");
}

#[tokio::test]
async fn what_is_kept_has_a_size_and_keys_that_can_be_kept() {
    let (granted, kept) = (granted(), Arc::default());
    let mut call = call(&kept, true);
    let keys = vec![String::new(); MAX_KEYS + 1];
    assert_eq!(
        said(granted.state_get(&call, keys).await),
        "fatal state-size: 10001 keys in one call; at most 10000 (fixed)"
    );
    let long = "k".repeat(MAX_KEY + 1);
    for key in ["", "a\0b", &long] {
        let wrong = said(granted.state_set(&mut call, key.to_owned(), None));
        assert!(wrong.starts_with("poison state-key: a key has 1 to 512 bytes and no NUL"), "{wrong}");
    }
    for key in ["a", "b", &long[..MAX_KEY]] {
        granted.state_set(&mut call, key.to_owned(), Some(vec![0; 100])).unwrap();
    }
    let many = said(granted.state_set(&mut call, "d".to_owned(), None));
    assert!(many.starts_with("fatal state-keys: one call wrote more than 3 keys"), "{many}");
    assert!(many.ends_with("raise `[plugins.p.grants] state_max_keys`"), "{many}");
    // Over and over the same is no more keys, and yet more bytes that wait.
    granted.state_set(&mut call, "a".to_owned(), Some(vec![0; 1000])).unwrap();
    let much = said(granted.state_set(&mut call, "a".to_owned(), Some(vec![0; 200])));
    assert!(much.starts_with("fatal state-bytes: one call wrote more than 2000 bytes"), "{much}");
    assert!(much.ends_with("raise `[plugins.p.grants] state_max_bytes`"), "{much}");
    assert_eq!(call.writes.len(), 3, "what was refused is not there");
}

#[tokio::test]
async fn a_call_sees_its_own_writes() {
    let granted = granted();
    let kept = Arc::new(Kept { keys: ["a1", "a2", "a3", "b1"].into(), ..Kept::default() });
    let mut call = call(&kept, true);
    granted.state_set(&mut call, "a2".to_owned(), None).unwrap();
    granted.state_set(&mut call, "a1".to_owned(), Some(b"own".to_vec())).unwrap();
    granted.state_set(&mut call, "a4".to_owned(), Some(Vec::new())).unwrap();
    let asked = ["a1", "a2", "a3", "a4", "a5"].map(str::to_owned).to_vec();
    let values = granted.state_get(&call, asked).await.unwrap();
    let texts: Vec<_> = values.iter().map(|value| value.as_deref()).collect();
    assert_eq!(texts, [Some(&b"own"[..]), None, Some(b"a3"), Some(b""), None]);
    let keys = async |prefix: &str, after: Option<&str>, limit| {
        granted.state_keys(&call, prefix, after, limit).await.unwrap()
    };
    assert_eq!(keys("a", None, 10).await, ["a1", "a3", "a4"]);
    assert_eq!(keys("a", None, 2).await, ["a1", "a3"], "what is removed is not in the way");
    assert_eq!(keys("a", Some("a1"), 10).await, ["a3", "a4"]);
}

#[tokio::test]
async fn c099_names_of_numbers_and_labels_are_plain_and_few() {
    let (granted, kept) = (granted(), Arc::<Kept>::default());
    let call = call(&kept, true);
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let count = |name: &str, labels: Labels| said(granted.measure(&call, name, labels, Number::Count(1)));
    let long = "x".repeat(MAX_LABEL + 1);
    for (name, labels, words) in [
        ("", vec![], "is no name of a number"),
        ("Seen", vec![], "is no name of a number"),
        ("1st", vec![], "is no name of a number"),
        ("a b", vec![], "is no name of a number"),
        ("a\n# TYPE forged", vec![], "is no name of a number"),
        (&long[..49], vec![], "is no name of a number"),
        ("n", vec![label("plugin", "other")], "are the host's"),
        ("n", vec![label("mapping", "other")], "are the host's"),
        ("n", vec![label("a=\"", "")], "is no name of a label"),
        ("n", vec![label("a", "1"), label("b", ""), label("a", "2")], "the label `a` comes twice"),
        (
            "n",
            ["a", "b", "c", "d", "e"].map(|name| label(name, "")).to_vec(),
            "has 5 labels; at most 4 (fixed)",
        ),
        ("n", vec![label("a", &long)], "has a value of 129 bytes; at most 128 (fixed)"),
    ] {
        let refused = count(name, labels);
        assert!(
            refused.starts_with("poison metrics-name: ") && refused.contains(words),
            "{name:?}: {refused}"
        );
        assert!(!refused.contains('\n'), "{refused:?}");
    }
    assert!(kept.told.lock().unwrap().is_empty());
    assert_eq!(count("n", vec![label("b", &long[1..]), label("a", "")]), "");
    let told = kept.told.lock().unwrap();
    assert_eq!(told[0].1.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"], "in order");
}
