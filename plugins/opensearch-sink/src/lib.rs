//! Delivers documents to OpenSearch or Elasticsearch, by the bulk API. A destination is an alias, and each rebuild of it an
//! index of its own: `places`.

pub mod answer;
pub mod bulk;
pub mod places;

use std::collections::BTreeSet;

use anabranch_sdk::{
    Failure, FailureClass,
    http::{Request, Response},
    sink::{Batch, Delivered, Purge, Sink},
};
use serde::Deserialize;

use answer::Answer;

/// The settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where the server is: `https://search.example.com:9200`.
    pub url: String,
    /// What stands before the name of each index.
    #[serde(default)]
    pub index_prefix: String,
    /// The most bytes of a request; a single larger document goes alone.
    #[serde(default = "five_mib")]
    pub max_bytes: usize,
    /// When documents are to be found by searches.
    #[serde(default)]
    pub refresh: Refresh,
    /// Whether an index that has the name of a destination may be removed for the alias, once what is built beside it is
    /// complete.
    #[serde(default)]
    pub replace_index: bool,
}

fn five_mib() -> usize {
    5 << 20
}

/// When documents are to be found by searches.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Refresh {
    /// When the index is refreshed the next time, a second later as a rule.
    #[default]
    False,
    /// At once; costs the server much.
    True,
    /// As `false`, and a delivery ends only then.
    WaitFor,
}

impl Refresh {
    fn parameter(self) -> &'static str {
        match self {
            Self::False => "",
            Self::True => "&refresh=true",
            Self::WaitFor => "&refresh=wait_for",
        }
    }
}

/// The sink.
#[derive(Debug)]
pub struct OpenSearch {
    settings: Settings,
    /// Destinations that are indexes and no aliases.
    plain: BTreeSet<String>,
}

/// So many destinations are kept in mind; an instance is replaced now and then anyway.
const MOST_PLAIN: usize = 1000;

impl Sink for OpenSearch {
    type Settings = Settings;

    fn open(mut settings: Settings) -> Result<Self, Failure> {
        let url = settings.url.trim_end_matches('/');
        if !url.starts_with("https://") && !url.starts_with("http://") {
            return Err(Failure::fatal("settings", "`url` begins with https:// or http://"));
        }
        if url.contains(['?', '#', '@', ' ']) {
            let message = "`url` is an address only: credentials belong into `[plugins.opensearch-sink.grants]`, as a \
                           header of its origin";
            return Err(Failure::fatal("settings", message));
        }
        if settings.max_bytes < 1024 {
            return Err(Failure::fatal("settings", "`max_bytes` is 1024 or more"));
        }
        settings.url = url.to_owned();
        Ok(Self { settings, plain: BTreeSet::new() })
    }

    fn deliver(&mut self, batch: &Batch<'_>) -> Result<Vec<Delivered>, Failure> {
        let mut results =
            batch.each(|_| Err(Failure::retry("not-sent", "a document before it has to be delivered first")));
        let max_bytes = self.settings.max_bytes;
        let mut requests = self.requests(batch, 0..batch.documents.len(), max_bytes, &mut results)?;
        let mut made = BTreeSet::new();
        // The next one last.
        requests.reverse();
        while let Some(request) = requests.pop() {
            match self.bulk(&request, batch.place)? {
                Answer::Each(each) => {
                    let missing = missing(batch, &request, &each, &made);
                    if let (Some(&first), Some(&last), false) =
                        (request.documents.first(), request.documents.last(), missing.is_empty())
                    {
                        for destination in missing {
                            self.make(destination)?;
                            made.insert(destination);
                        }
                        // All of it again, in its order.
                        let again = self.requests(batch, first..last + 1, max_bytes, &mut results)?;
                        requests.extend(again.into_iter().rev());
                        continue;
                    }
                    let waits = each.iter().any(|result| {
                        result.as_ref().is_err_and(|failure| failure.class != FailureClass::Poison)
                    });
                    for (&at, result) in request.documents.iter().zip(each) {
                        results[at] = result.map_err(|failure| match batch.place {
                            Some(place) if failure.code == "index-missing" => places::gone(place),
                            _ => failure,
                        });
                    }
                    if waits {
                        // Everything comes again, so that nothing overtakes what waits.
                        break;
                    }
                }
                Answer::TooLarge => match request.documents.as_slice() {
                    [one] => {
                        let message = format!("the server takes no request of {} bytes", request.body.len());
                        results[*one] = Err(Failure::poison("too-large", message));
                    }
                    several => {
                        let halves = bulk::halves(request.body.len());
                        let (first, last) = (several[0], several[several.len() - 1]);
                        let smaller = self.requests(batch, first..last + 1, halves, &mut results)?;
                        requests.extend(smaller.into_iter().rev());
                    }
                },
                // One of its documents may be the cause: the host finds out which.
                Answer::Failed(failure) if failure.class == FailureClass::Poison => return Err(failure),
                Answer::Failed(failure) => {
                    // As results of documents, because those carry the server's wish for a pause.
                    for &at in &request.documents {
                        results[at] = Err(failure.clone());
                    }
                    break;
                }
            }
        }
        Ok(results)
    }
}

/// The destinations of a request that no alias has the name of, and that were not looked at. Where a place is gone,
/// nothing is made in its stead.
fn missing<'a>(
    batch: &Batch<'a>,
    request: &bulk::Request,
    each: &[Delivered],
    made: &BTreeSet<&str>,
) -> BTreeSet<&'a str> {
    let is_missing =
        |result: &Delivered| result.as_ref().is_err_and(|failure| failure.code == "index-missing");
    let named = request.documents.iter().zip(each).filter(|(_, result)| is_missing(result));
    named
        .map(|(&at, _)| batch.documents[at].destination)
        .filter(|destination| batch.place.is_none() && !made.contains(destination))
        .collect()
}

impl OpenSearch {
    fn requests(
        &self,
        batch: &Batch<'_>,
        range: std::ops::Range<usize>,
        max_bytes: usize,
        results: &mut [Delivered],
    ) -> Result<Vec<bulk::Request>, Failure> {
        let names =
            bulk::Names { prefix: &self.settings.index_prefix, place: batch.place, plain: Some(&self.plain) };
        bulk::requests(&batch.documents, range, names, max_bytes, results)
    }

    /// Looks at what a destination is that is no alias. Where nothing is there, makes an index behind an alias, as if a
    /// place had been begun: a later rebuild then has nothing in its way.
    fn make(&mut self, destination: &str) -> Result<(), Failure> {
        if self.is_plain(destination)? {
            if self.plain.len() >= MOST_PLAIN {
                self.plain.clear();
            }
            self.plain.insert(destination.to_owned());
        }
        Ok(())
    }

    fn bulk(&self, request: &bulk::Request, place: Option<&str>) -> Result<Answer, Failure> {
        // The server makes an index where there is none: one that was removed under a rebuild would be back, half-filled.
        let alias = if place.is_some() { "&require_alias=true" } else { "" };
        let url = format!(
            "{}/_bulk?filter_path=items.*.status,items.*.error{}{alias}",
            self.settings.url,
            self.settings.refresh.parameter()
        );
        let sent = Request::post(url)
            .header("content-type", "application/x-ndjson")
            .body(request.body.clone())
            .send()?;
        Ok(answer::read(request, &sent))
    }

    fn post(&self, path: &str, body: &str) -> Result<Option<Response>, Failure> {
        self.ask("POST", path, body)
    }

    /// The answer to a request; none where there is no index.
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<Option<Response>, Failure> {
        let request = Request::new(method, format!("{}{path}", self.settings.url));
        let request = if body.is_empty() {
            request
        } else {
            request.header("content-type", "application/json").body(body)
        };
        let answer = request.send()?;
        match answer.status {
            200 => Ok(Some(answer)),
            // There is no index.
            404 => Ok(None),
            status => Err(answer::failed(&answer)
                .unwrap_or_else(|| Failure::fatal(format!("http-{status}"), "the request is too large"))),
        }
    }
}

impl Purge for OpenSearch {
    fn purge(&mut self, destination: &str) -> Result<(), Failure> {
        self.empty(&bulk::path_segment(&bulk::index_name(&self.settings.index_prefix, destination)?))
    }
}

impl OpenSearch {
    /// Removes every document of an index, or of the one behind an alias, given as part of a path.
    fn empty(&self, index: &str) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Told {
            #[serde(default)]
            version_conflicts: u64,
            #[serde(default)]
            failures: Vec<serde_json::Value>,
        }
        // A query finds what was refreshed, and no more.
        if self.post(&format!("/{index}/_refresh"), "")?.is_none() {
            return Ok(());
        }
        let path = format!("/{index}/_delete_by_query?conflicts=proceed&refresh=true");
        let Some(answer) = self.post(&path, "{\"query\":{\"match_all\":{}}}")? else { return Ok(()) };
        let told: Told = serde_json::from_slice(&answer.body).map_err(|error| {
            Failure::retry(
                "purge-answer",
                format!("the answer to the delete by query cannot be read: {error}"),
            )
        })?;
        if told.version_conflicts > 0 || !told.failures.is_empty() {
            let message = format!(
                "{} documents were not removed, because they changed meanwhile or a shard failed",
                told.version_conflicts + told.failures.len() as u64
            );
            return Err(Failure::retry("purge-incomplete", message));
        }
        Ok(())
    }
}

anabranch_sdk::export_sink!(OpenSearch, purge, generations);

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use anabranch_sdk::{Origin, http::Error, sink::Document, testing::set_http};

    use super::*;

    fn sink(settings: &str) -> Result<OpenSearch, Failure> {
        OpenSearch::open(serde_json::from_str(settings).unwrap())
    }

    fn batch<'a>(documents: &[(&'a str, Option<&'a str>)]) -> Batch<'a> {
        let document = |&(id, body): &(&'a str, Option<&'a str>)| Document {
            destination: "products",
            id,
            body,
            lsn: 1,
            commit_time_us: 0,
        };
        Batch {
            entity: "public.products",
            origin: Origin::Stream,
            generation: 1,
            place: None,
            documents: documents.iter().map(document).collect(),
        }
    }

    #[test]
    fn what_is_for_a_place_goes_by_its_alias_or_nowhere() {
        let seen = answers(vec![items(&[201])]);
        let batch = Batch { place: Some("3-5f2c81d0"), ..batch(&[("1", Some("{}"))]) };
        sink(URL).unwrap().deliver(&batch).unwrap();
        let seen = seen.borrow();
        assert!(seen[0].url.ends_with("&require_alias=true"), "{}", seen[0].url);
        let body = String::from_utf8_lossy(&seen[0].body);
        assert!(body.contains("\"_index\":\"products.anabranch-3-5f2c81d0.write\""), "{body}");
        let gone = br#"{"items":[{"index":{"status":404,"error":{"type":"index_not_found_exception","reason":"no such index"}}}]}"#;
        answers(vec![Ok(Response { status: 200, headers: Vec::new(), body: gone.to_vec() })]);
        let results = sink(URL).unwrap().deliver(&batch).unwrap();
        let failure = results[0].as_ref().unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, "place-gone"));
        assert!(failure.message.contains("anabranch backfill request"), "{}", failure.message);
    }

    /// Answers requests with what is left of some answers, and keeps them.
    fn answers(answers: Vec<Result<Response, Error>>) -> Rc<RefCell<Vec<Request>>> {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let (kept, left) = (Rc::clone(&seen), RefCell::new(answers.into_iter()));
        set_http(move |request| {
            kept.borrow_mut().push(request.clone());
            left.borrow_mut().next().unwrap_or_else(|| Err(Error::Failed("one request too many".to_owned())))
        });
        seen
    }

    fn items(statuses: &[u16]) -> Result<Response, Error> {
        let items: Vec<_> =
            statuses.iter().map(|status| format!("{{\"index\":{{\"status\":{status}}}}}")).collect();
        Ok(Response {
            status: 200,
            headers: Vec::new(),
            body: format!("{{\"items\":[{}]}}", items.join(",")).into_bytes(),
        })
    }

    fn status(status: u16) -> Result<Response, Error> {
        Ok(Response { status, ..Response::default() })
    }

    fn codes(results: &[Delivered]) -> Vec<&str> {
        results
            .iter()
            .map(|result| result.as_ref().err().map_or("", |failure| failure.code.as_str()))
            .collect()
    }

    const URL: &str = r#"{"url":"https://search.example.com:9200/"}"#;

    #[test]
    fn requests_go_to_the_bulk_api() {
        let seen = answers(vec![items(&[201, 200])]);
        let results = sink(URL).unwrap().deliver(&batch(&[("1", Some("{}")), ("2", None)])).unwrap();
        assert_eq!(codes(&results), ["", ""]);
        let seen = seen.borrow();
        assert_eq!(
            seen[0].url,
            "https://search.example.com:9200/_bulk?filter_path=items.*.status,items.*.error"
        );
        assert_eq!(seen[0].headers, [("content-type".to_owned(), "application/x-ndjson".to_owned())]);
    }

    #[test]
    fn what_comes_behind_a_failure_is_not_told_as_accepted() {
        let small = r#"{"url":"http://x","max_bytes":1024}"#;
        let body = format!("{{\"x\":\"{}\"}}", "y".repeat(900));
        let documents = [("1", Some(body.as_str())), ("2", Some(body.as_str())), ("3", Some(body.as_str()))];
        let seen = answers(vec![items(&[200]), items(&[429])]);
        let results = sink(small).unwrap().deliver(&batch(&documents)).unwrap();
        assert_eq!(codes(&results), ["", "http-429", "not-sent"]);
        assert_eq!(seen.borrow().len(), 2);
        answers(vec![items(&[200]), status(503)]);
        let results = sink(small).unwrap().deliver(&batch(&documents)).unwrap();
        assert_eq!(codes(&results), ["", "http-503", "not-sent"]);
        answers(vec![items(&[200]), items(&[400]), items(&[200])]);
        let results = sink(small).unwrap().deliver(&batch(&documents)).unwrap();
        assert_eq!(codes(&results), ["", "refused", ""], "a document that can never work holds up no other");
        answers(vec![items(&[200]), status(400)]);
        assert_eq!(sink(small).unwrap().deliver(&batch(&documents)).unwrap_err().code, "http-400");
    }

    #[test]
    fn a_request_that_is_too_large_is_sent_in_parts() {
        let seen = answers(vec![status(413), items(&[200]), items(&[200])]);
        let documents = [("1", Some("{\"a\":1}")), ("2", Some("{\"a\":2}"))];
        let results = sink(URL).unwrap().deliver(&batch(&documents)).unwrap();
        assert_eq!(codes(&results), ["", ""]);
        assert_eq!(seen.borrow().len(), 3);
        answers(vec![status(413)]);
        assert_eq!(codes(&sink(URL).unwrap().deliver(&batch(&documents[..1])).unwrap()), ["too-large"]);
    }

    #[test]
    fn what_is_not_granted_is_fatal() {
        answers(vec![Err(Error::Denied("not granted".to_owned()))]);
        let failure = sink(URL).unwrap().deliver(&batch(&[("1", Some("{}"))])).unwrap_err();
        assert_eq!(failure.class, FailureClass::Fatal);
        answers(vec![Err(Error::Timeout("late".to_owned()))]);
        let failure = sink(URL).unwrap().deliver(&batch(&[("1", Some("{}"))])).unwrap_err();
        assert_eq!(failure.class, FailureClass::Retry);
    }

    #[test]
    fn an_alias_is_looked_for_once_where_the_server_has_none() {
        let told = |status: u16, text: &str| {
            Ok(Response { status, headers: Vec::new(), body: text.as_bytes().to_vec() })
        };
        let documents = [("1", Some("{}")), ("2", Some("{}"))];
        // Nothing is there: an index is made behind the alias, and everything is sent again.
        let seen = answers(vec![items(&[404, 404]), status(404), told(200, "{}"), items(&[201, 201])]);
        let results = sink(URL).unwrap().deliver(&batch(&documents)).unwrap();
        assert_eq!(codes(&results), ["", ""]);
        let made = &seen.borrow()[2];
        assert!(made.method == "PUT" && made.url.ends_with("/products.anabranch-0-00000000"), "{made:?}");
        let body: serde_json::Value = serde_json::from_slice(&made.body).unwrap();
        let aliases: Vec<_> = body["aliases"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(aliases, ["products", "products.anabranch-0-00000000.write"]);
        // An index of that name is written to as it is, from then on without being asked about.
        let seen = answers(vec![items(&[404]), told(200, "{\"products\":{}}"), items(&[201]), items(&[200])]);
        let mut sink_of_index = sink(URL).unwrap();
        assert_eq!(codes(&sink_of_index.deliver(&batch(&documents[..1])).unwrap()), [""]);
        assert_eq!(codes(&sink_of_index.deliver(&batch(&documents[..1])).unwrap()), [""]);
        let bodies: Vec<_> = seen.borrow().iter().map(|sent| sent.body.clone()).collect();
        let required: Vec<_> =
            bodies.iter().map(|body| String::from_utf8_lossy(body).contains("require_alias")).collect();
        assert_eq!(required, [true, false, false, false]);
        // Another instance was first.
        answers(vec![
            items(&[404]),
            status(404),
            status(400),
            told(200, "{\"products.anabranch-0-00000000\":{}}"),
            items(&[201]),
        ]);
        assert_eq!(codes(&sink(URL).unwrap().deliver(&batch(&documents[..1])).unwrap()), [""]);
        // It is gone again at once: once is enough.
        answers(vec![items(&[404]), status(404), told(200, "{}"), items(&[404])]);
        assert_eq!(codes(&sink(URL).unwrap().deliver(&batch(&documents[..1])).unwrap()), ["index-missing"]);
        // What is for a place makes nothing.
        answers(vec![items(&[404])]);
        let placed = Batch { place: Some("3-5f2c81d0"), ..batch(&documents[..1]) };
        assert_eq!(codes(&sink(URL).unwrap().deliver(&placed).unwrap()), ["place-gone"]);
    }

    #[test]
    fn settings_that_cannot_work_are_told() {
        for bad in [
            r#"{"url":"search:9200"}"#,
            r#"{"url":"https://user:pass@x"}"#,
            r#"{"url":"http://x","max_bytes":1}"#,
        ] {
            assert_eq!(sink(bad).unwrap_err().code, "settings", "{bad}");
        }
        assert!(serde_json::from_str::<Settings>(r#"{"url":"http://x","indx":1}"#).is_err());
        assert!(sink(r#"{"url":"http://x","refresh":"wait_for"}"#).is_ok());
    }

    #[test]
    fn a_purge_refreshes_first_and_is_whole_or_comes_again() {
        let told =
            |text: &str| Ok(Response { status: 200, headers: Vec::new(), body: text.as_bytes().to_vec() });
        let seen = answers(vec![told("{}"), told(r#"{"deleted":3,"version_conflicts":0,"failures":[]}"#)]);
        sink(URL).unwrap().purge("products").unwrap();
        let paths: Vec<_> = seen.borrow().iter().map(|request| request.url.clone()).collect();
        assert!(
            paths[0].ends_with("/products/_refresh")
                && paths[1].contains("/products/_delete_by_query?conflicts=proceed")
        );
        answers(vec![told("{}"), told(r#"{"deleted":3,"version_conflicts":1,"failures":[]}"#)]);
        assert_eq!(sink(URL).unwrap().purge("products").unwrap_err().class, FailureClass::Retry);
        answers(vec![status(404)]);
        sink(URL).unwrap().purge("products").unwrap();
    }
}
