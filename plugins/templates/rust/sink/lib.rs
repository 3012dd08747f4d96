//! Puts each document under a URL of its own, and removes it from there.

use anabranch_sdk::{
    Failure,
    http::{Request, escaped},
    sink::{Batch, Delivered, Sink},
};
use serde::Deserialize;

/// The settings: `config` of the `[sink.…]` table. A name that is not here is refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where the service is.
    url: String,
}

/// The sink.
#[derive(Debug)]
pub struct Plugin(Settings);

impl Sink for Plugin {
    type Settings = Settings;

    /// There are several instances, and each is opened: be quick.
    fn open(settings: Settings) -> Result<Self, Failure> {
        Ok(Self(settings))
    }

    fn deliver(&mut self, batch: &Batch<'_>) -> Result<Vec<Delivered>, Failure> {
        let mut results = Vec::with_capacity(batch.documents.len());
        for document in &batch.documents {
            if matches!(document.id, "." | "..") {
                // At the end of a URL these are the folder.
                results.push(Err(Failure::poison(
                    "id",
                    "an id of dots is no part of a URL",
                )));
                continue;
            }
            let url = format!(
                "{}/{}/{}",
                self.0.url,
                escaped(document.destination),
                escaped(document.id)
            );
            let request = match document.body {
                Some(body) => Request::new("PUT", url)
                    .header("content-type", "application/json")
                    .body(body),
                // The id is to be removed.
                None => Request::new("DELETE", url),
            };
            // Where there is no answer nothing is known of any document: all come again.
            results.push(match request.send()?.status {
                // It is durable.
                200..=299 => Ok(()),
                404 if document.body.is_none() => Ok(()),
                // This document can never work; the others can.
                400 | 422 => Err(Failure::poison(
                    "refused",
                    "the service refused the document",
                )),
                // Nothing goes on behind it: the whole batch comes again.
                status => {
                    return Err(Failure::retry(
                        "busy",
                        format!("the service answered {status}"),
                    ));
                }
            });
        }
        Ok(results)
    }
}

anabranch_sdk::export_sink!(Plugin);

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use anabranch_sdk::{FailureClass, Origin, http::Response, sink::Document, testing};

    use super::*;

    /// Delivers documents to a service that has nothing yet; what became of them, and what it was sent.
    fn deliver(
        documents: &[(&str, Option<&str>)],
    ) -> (Result<Vec<Delivered>, Failure>, Vec<String>) {
        let sent = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&sent);
        testing::set_http(move |request| {
            seen.borrow_mut()
                .push(format!("{} {}", request.method, request.url));
            let status = match request.body.as_slice() {
                b"\"busy\"" => 503,
                b"\"bad\"" => 422,
                b"" => 404,
                _ => 201,
            };
            Ok(Response {
                status,
                ..Response::default()
            })
        });
        let document = |&(id, body)| Document {
            destination: "items",
            id,
            body,
            lsn: 1,
            commit_time_us: 0,
        };
        let documents = documents.iter().map(document).collect();
        let batch = Batch {
            entity: "public.t",
            origin: Origin::Stream,
            generation: 1,
            place: None,
            documents,
        };
        let mut sink = Plugin::open(Settings {
            url: "https://x".to_owned(),
        })
        .unwrap();
        (sink.deliver(&batch), sent.take())
    }

    #[test]
    fn each_document_has_a_result() {
        let (results, sent) = deliver(&[
            ("1", Some("{}")),
            ("2", Some("\"bad\"")),
            ("a/ü", None),
            ("..", None),
        ]);
        let results = results.unwrap();
        assert_eq!(results[0], Ok(()));
        assert_eq!(results[1].as_ref().unwrap_err().class, FailureClass::Poison);
        assert_eq!(results[2], Ok(()), "what is not there is removed");
        assert_eq!(results[3].as_ref().unwrap_err().class, FailureClass::Poison);
        let expected = [
            "PUT https://x/items/1",
            "PUT https://x/items/2",
            "DELETE https://x/items/a%2F%C3%BC",
        ];
        assert_eq!(sent, expected);
    }

    #[test]
    fn nothing_is_sent_behind_what_has_to_come_again() {
        let (results, sent) = deliver(&[("1", Some("\"busy\"")), ("2", Some("{}"))]);
        assert_eq!(results.unwrap_err().class, FailureClass::Retry);
        assert_eq!(sent, ["PUT https://x/items/1"]);
    }
}
