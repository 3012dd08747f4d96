//! Rebuilds beside what readers see: an index for each, and an alias that leads readers to one of them.
//!
//! A destination is an alias. Its rebuild goes into an index of its own, `<destination>.anabranch-<place>`, which has an
//! alias for writing. Once it is complete the readers' alias is moved to it, in one request, and the indexes of
//! other places are removed. An index that was not made here is never removed, but for one that has the name of the
//! destination, where the setting `replace_index` says so.

use std::collections::BTreeMap;

use anabranch_sdk::{Failure, FailureClass, info, sink::Generations, warn};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::json;

use crate::{
    OpenSearch,
    bulk::{self, MARK, path_segment, place_index, write_alias},
};

/// The answer of `_count`.
#[derive(Deserialize)]
struct Counted {
    count: u64,
}

/// What readers see under a destination.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    /// An index that has the destination's own name.
    Index,
    /// The indexes behind an alias.
    Alias(Vec<String>),
}

impl Generations for OpenSearch {
    fn begin(&mut self, destination: &str, place: &str) -> Result<bool, Failure> {
        let (name, index) = self.names(destination, place)?;
        let seen = self.seen(&name)?;
        if seen == Seen::Index && !self.settings.replace_index {
            return Err(in_the_way(&name));
        }
        let body = json!({"aliases": {write_alias(&index): {}}}).to_string();
        let made = self.ask("PUT", &format!("/{}", path_segment(&index)), &body);
        if let Err(failure) = made {
            // It is begun again, or it cannot be made.
            if self.indexes(&index)?.is_empty() {
                return Err(failure);
            }
            self.empty(&path_segment(&index))?;
        }
        Ok(match seen {
            Seen::Nothing => false,
            Seen::Index => true,
            Seen::Alias(_) => !self.is_empty(&name)?,
        })
    }

    fn switch(&mut self, destination: &str, place: &str) -> Result<(), Failure> {
        let (name, index) = self.names(destination, place)?;
        let seen = self.seen(&name)?;
        // Those that are there before the switch: what is begun meanwhile, by whom ever, is not of those that it ends.
        let known = self.indexes(&format!("{name}{MARK}*"))?;
        if seen != Seen::Alias(vec![index.clone()]) {
            // What was delivered is found by searches from the first moment on.
            if self.post(&format!("/{}/_refresh", path_segment(&index)), "")?.is_none() {
                return Err(gone(&index));
            }
            let mut actions = vec![json!({"add": {"index": index, "alias": name}})];
            match &seen {
                Seen::Nothing => {}
                Seen::Index if self.settings.replace_index => {
                    actions.push(json!({"remove_index": {"index": name}}));
                }
                Seen::Index => return Err(in_the_way(&name)),
                Seen::Alias(others) => {
                    let others = others.iter().filter(|other| **other != index);
                    actions.extend(others.map(|other| json!({"remove": {"index": other, "alias": name}})));
                }
            }
            let body = json!({"actions": actions}).to_string();
            if self.post("/_aliases", &body)?.is_none() {
                let message = "an index of the aliases that were to be changed is not there any more";
                return Err(Failure::retry("alias-missing", message));
            }
        }
        if let Seen::Alias(others) = &seen {
            let kept = others.iter().filter(|other| !is_place(&name, other));
            kept.for_each(|other| info!("{name} leads to {index} now; {other} was not made here, and stays"));
        }
        for other in known.iter().filter(|other| **other != index && is_place(&name, other)) {
            self.remove(other)?;
        }
        Ok(())
    }

    fn abandon(&mut self, destination: &str, place: &str) -> Result<(), Failure> {
        let (name, index) = self.names(destination, place)?;
        match self.seen(&name)? {
            Seen::Alias(seen) if seen.contains(&index) => Ok(()),
            _ => self.remove(&index),
        }
    }
}

impl OpenSearch {
    /// The readers' alias, and the index of the place.
    fn names(&self, destination: &str, place: &str) -> Result<(String, String), Failure> {
        let prefix = &self.settings.index_prefix;
        Ok((bulk::index_name(prefix, destination)?, place_index(prefix, destination, place)?))
    }

    fn seen(&self, name: &str) -> Result<Seen, Failure> {
        let indexes = self.indexes(name)?;
        Ok(match indexes.as_slice() {
            [] => Seen::Nothing,
            [one] if one == name => Seen::Index,
            _ => Seen::Alias(indexes),
        })
    }

    /// Whether a destination is an index that has its name. Where nothing is there, an index and its alias are made, in one
    /// request, by a name that another instance would give them too.
    pub(crate) fn is_plain(&self, destination: &str) -> Result<bool, Failure> {
        let prefix = &self.settings.index_prefix;
        let name = bulk::index_name(prefix, destination)?;
        let index = bulk::unbegun_index(prefix, destination)?;
        let mut seen = self.seen(&name)?;
        if seen == Seen::Nothing {
            let body = json!({"aliases": {&name: {}, write_alias(&index): {}}}).to_string();
            match self.ask("PUT", &format!("/{}", path_segment(&index)), &body) {
                Ok(_) => return Ok(false),
                Err(failure) => seen = self.seen_instead(&name, &index, failure)?,
            }
        }
        Ok(seen == Seen::Index)
    }

    /// What is there, since it could not be made.
    fn seen_instead(&self, name: &str, index: &str, failure: Failure) -> Result<Seen, Failure> {
        match self.seen(name)? {
            Seen::Nothing if self.indexes(index)?.is_empty() => Err(failure),
            Seen::Nothing => {
                let message = format!(
                    "the alias `{name}` is not there, and the index {index}, to which it led, is: give it the alias \
                     again, or remove it and request a backfill"
                );
                Err(Failure::fatal("alias-missing", message))
            }
            seen => Ok(seen),
        }
    }

    /// Whether searches find nothing under a name, as where a first generation was begun and nothing came of it.
    fn is_empty(&self, name: &str) -> Result<bool, Failure> {
        let path = path_segment(name);
        self.post(&format!("/{path}/_refresh"), "")?;
        let answer = match self.ask("GET", &format!("/{path}/_count"), "") {
            Err(failure) if failure.class != FailureClass::Retry => {
                info!("{name} cannot be searched, and is taken for one that has documents: {failure}");
                return Ok(false);
            }
            answer => answer?,
        };
        let counted = answer.and_then(|answer| serde_json::from_slice::<Counted>(&answer.body).ok());
        Ok(counted.is_some_and(|counted| counted.count == 0))
    }

    /// The indexes that a name or a pattern leads to, in order.
    fn indexes(&self, name: &str) -> Result<Vec<String>, Failure> {
        let path = format!("/{}/_alias", path_segment(name));
        let Some(answer) = self.ask("GET", &path, "")? else { return Ok(Vec::new()) };
        let found: BTreeMap<String, IgnoredAny> = serde_json::from_slice(&answer.body).map_err(|error| {
            Failure::retry("alias-answer", format!("the list of aliases of {name} cannot be read: {error}"))
        })?;
        Ok(found.into_keys().collect())
    }

    /// Removes an index. That it may not be removed holds up nothing.
    fn remove(&self, index: &str) -> Result<(), Failure> {
        match self.ask("DELETE", &format!("/{}", path_segment(index)), "") {
            Ok(_) => Ok(()),
            Err(failure) if failure.class == FailureClass::Retry => Err(failure),
            Err(failure) => {
                warn!(
                    "the index {index} is of no use any more, and could not be removed: do it by hand. {failure}"
                );
                Ok(())
            }
        }
    }
}

/// Whether an index is of a place of a destination, by its name.
fn is_place(name: &str, index: &str) -> bool {
    let place = index.strip_prefix(name).and_then(|rest| rest.strip_prefix(MARK));
    place.and_then(|place| place.split_once('-')).is_some_and(|(generation, token)| {
        !generation.is_empty()
            && generation.bytes().all(|byte| byte.is_ascii_digit())
            && token.len() == 8
            && token.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn in_the_way(name: &str) -> Failure {
    let message = format!(
        "`{name}` is an index, and an alias has to have that name: a rebuild goes into an index of its own, and the \
         alias leads readers to it once it is complete. Either set `replace_index = true` in the `config` of the sink: \
         readers see the index until then, and it is removed in the same step. Or reindex, rename or remove it \
         yourself, or set another `destination` in the [[map]]"
    );
    Failure::fatal("index-in-the-way", message)
}

pub(crate) fn gone(index: &str) -> Failure {
    let message = format!(
        "the index {index} of the rebuild is gone, and readers go on seeing what they see: begin it again with \
         `anabranch backfill request`"
    );
    Failure::fatal("place-gone", message)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        collections::{BTreeMap, BTreeSet},
        rc::Rc,
    };

    use anabranch_sdk::{
        http::{Request, Response},
        sink::Sink,
        testing::set_http,
    };
    use serde_json::Value;

    use super::*;

    /// Indexes with their aliases, and the requests that changed something.
    #[derive(Default)]
    struct Server {
        indexes: BTreeMap<String, BTreeSet<String>>,
        changes: Vec<String>,
        forbidden: bool,
        /// Made, and removed, by somebody else while aliases are changed.
        comes: Option<String>,
        goes: Option<String>,
        /// How many documents there are in all; none: they are not counted.
        count: Option<u64>,
        /// How the question for that is answered instead.
        uncounted: Option<u16>,
    }

    impl Server {
        fn answer(&mut self, request: &Request) -> (u16, String) {
            let path = request.url.strip_prefix("http://x/").unwrap();
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            if request.method != "GET" {
                self.changes.push(format!("{} {path}", request.method));
            }
            match (request.method.as_str(), path.split_once('/')) {
                ("GET", Some((name, "_alias"))) => {
                    let name = name.replace("%2A", "*");
                    let matches = |index: &str, aliases: &BTreeSet<String>| match name.strip_suffix('*') {
                        Some(start) => index.starts_with(start),
                        None => index == name || aliases.contains(&name),
                    };
                    let found = self.indexes.iter().filter(|(index, aliases)| matches(index, aliases));
                    let found: BTreeMap<_, _> =
                        found.map(|(index, _)| (index, json!({"aliases": {}}))).collect();
                    (
                        if found.is_empty() && !name.ends_with('*') { 404 } else { 200 },
                        json!(found).to_string(),
                    )
                }
                ("PUT", None) if self.forbidden => (403, String::new()),
                ("PUT", None) if self.indexes.contains_key(path) => (400, String::new()),
                ("PUT", None) => {
                    let aliases = body["aliases"].as_object().unwrap().keys().cloned().collect();
                    self.indexes.insert(path.to_owned(), aliases);
                    (200, "{}".to_owned())
                }
                ("DELETE", None) if self.forbidden => (403, String::new()),
                ("DELETE", None) => {
                    (if self.indexes.remove(path).is_some() { 200 } else { 404 }, String::new())
                }
                ("GET", Some((_, "_count"))) if self.uncounted.is_some() => {
                    (self.uncounted.unwrap(), String::new())
                }
                ("GET", Some((_, "_count"))) => match self.count {
                    Some(count) => (200, json!({"count": count}).to_string()),
                    None => (404, String::new()),
                },
                ("POST", None) if path == "_aliases" => {
                    self.indexes.extend(self.comes.take().map(|index| (index, BTreeSet::new())));
                    self.goes.take().map(|index| self.indexes.remove(&index));
                    let index = |action: &Value| {
                        let of = action.as_object().unwrap().values().next().unwrap();
                        of["index"].as_str().unwrap().to_owned()
                    };
                    let actions = body["actions"].as_array().unwrap();
                    if !actions.iter().all(|action| self.indexes.contains_key(&index(action))) {
                        return (404, String::new());
                    }
                    for action in body["actions"].as_array().unwrap() {
                        let (kind, of) = action.as_object().unwrap().iter().next().unwrap();
                        let index = of["index"].as_str().unwrap();
                        let alias = of["alias"].as_str().unwrap_or_default().to_owned();
                        match kind.as_str() {
                            "add" => drop(self.indexes.get_mut(index).unwrap().insert(alias)),
                            "remove" => drop(self.indexes.get_mut(index).unwrap().remove(&alias)),
                            _ => drop(self.indexes.remove(index)),
                        }
                    }
                    (200, String::new())
                }
                ("POST", Some((index, _))) if self.indexes.contains_key(index) => (200, "{}".to_owned()),
                _ => (404, String::new()),
            }
        }
    }

    fn serve(server: Server) -> Rc<RefCell<Server>> {
        let server = Rc::new(RefCell::new(server));
        let answering = Rc::clone(&server);
        set_http(move |request| {
            let (status, body) = answering.borrow_mut().answer(request);
            Ok(Response { status, headers: Vec::new(), body: body.into_bytes() })
        });
        server
    }

    fn sink(more: &str) -> OpenSearch {
        OpenSearch::open(serde_json::from_str(&format!("{{\"url\":\"http://x\"{more}}}")).unwrap()).unwrap()
    }

    fn indexes(server: &RefCell<Server>) -> Vec<(String, bool)> {
        let server = server.borrow();
        server.indexes.iter().map(|(index, aliases)| (index.clone(), aliases.contains("d"))).collect()
    }

    const OLD: &str = "1-00000001";
    const NEW: &str = "2-0000000a";

    #[test]
    fn readers_are_moved_in_one_request_and_the_old_index_goes_after_it() {
        let server = serve(Server::default());
        let mut sink = sink("");
        assert!(!sink.begin("d", OLD).unwrap(), "nobody sees anything");
        sink.switch("d", OLD).unwrap();
        assert!(sink.begin("d", NEW).unwrap());
        let (old, new) = ("d.anabranch-1-00000001".to_owned(), "d.anabranch-2-0000000a".to_owned());
        assert_eq!(indexes(&server), [(old.clone(), true), (new.clone(), false)]);
        server.borrow_mut().changes.clear();
        sink.switch("d", NEW).unwrap();
        assert_eq!(indexes(&server), [(new.clone(), true)]);
        assert_eq!(
            server.borrow().changes,
            [format!("POST {new}/_refresh"), "POST _aliases".to_owned(), format!("DELETE {old}")]
        );
        // Again, as after a crash before it was recorded.
        server.borrow_mut().changes.clear();
        sink.switch("d", NEW).unwrap();
        assert_eq!((indexes(&server), server.borrow().changes.len()), (vec![(new, true)], 0));
    }

    #[test]
    fn an_alias_of_nothing_shows_nothing() {
        let server = serve(Server { count: Some(0), ..Server::default() });
        let mut sink = sink("");
        sink.begin("d", OLD).unwrap();
        sink.switch("d", OLD).unwrap();
        server.borrow_mut().changes.clear();
        assert!(
            !sink.begin("d", "1-00000002").unwrap(),
            "begun again, as after a kill before it was recorded"
        );
        assert_eq!(
            server.borrow().changes.last().unwrap(),
            "POST d/_refresh",
            "what was delivered last counts"
        );
        server.borrow_mut().count = Some(1);
        assert!(sink.begin("d", NEW).unwrap());
        // What may not be searched is not known to be empty.
        (server.borrow_mut().count, server.borrow_mut().uncounted) = (Some(0), Some(403));
        assert!(sink.begin("d", NEW).unwrap());
        server.borrow_mut().uncounted = Some(503);
        assert_eq!(sink.begin("d", NEW).unwrap_err().class, FailureClass::Retry);
    }

    #[test]
    fn what_cannot_be_made_or_moved_is_told() {
        let server = serve(Server { forbidden: true, ..Server::default() });
        let mut sink = sink("");
        assert_eq!(sink.begin("d", OLD).unwrap_err().class, FailureClass::Fatal);
        server.borrow_mut().forbidden = false;
        sink.begin("d", OLD).unwrap();
        sink.switch("d", OLD).unwrap();
        sink.begin("d", NEW).unwrap();
        let (old, new) = ("d.anabranch-1-00000001".to_owned(), "d.anabranch-2-0000000a".to_owned());
        server.borrow_mut().goes = Some(old);
        let failure = sink.switch("d", NEW).unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Retry, "alias-missing"));
        sink.switch("d", NEW).unwrap();
        assert_eq!(indexes(&server), [(new, true)]);
        // An index that has come into the way since.
        let server = serve(Server::default());
        sink.begin("d", NEW).unwrap();
        server.borrow_mut().indexes.insert("d".to_owned(), BTreeSet::new());
        assert_eq!(sink.switch("d", NEW).unwrap_err().code, "index-in-the-way");
        assert!(server.borrow().indexes.contains_key("d"));
    }

    #[test]
    fn what_came_before_any_place_is_behind_the_alias_already() {
        let server = serve(Server { count: Some(1), ..Server::default() });
        let mut sink = sink("");
        assert!(!sink.is_plain("d").unwrap());
        let own = "d.anabranch-0-00000000".to_owned();
        assert_eq!(indexes(&server), [(own.clone(), true)]);
        assert!(!sink.is_plain("d").unwrap(), "again, as after a kill");
        assert!(sink.begin("d", NEW).unwrap());
        sink.switch("d", NEW).unwrap();
        assert_eq!(indexes(&server), [("d.anabranch-2-0000000a".to_owned(), true)]);
        // Its alias was taken away.
        server.borrow_mut().indexes.clear();
        server.borrow_mut().indexes.insert(own, BTreeSet::new());
        let failure = sink.is_plain("d").unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, "alias-missing"));
        // Somebody made an index of that name.
        server.borrow_mut().indexes.insert("d".to_owned(), BTreeSet::new());
        assert!(sink.is_plain("d").unwrap());
    }

    #[test]
    fn what_somebody_begins_meanwhile_stays() {
        let server = serve(Server::default());
        let mut sink = sink("");
        sink.begin("d", OLD).unwrap();
        sink.switch("d", OLD).unwrap();
        sink.begin("d", NEW).unwrap();
        let other = "d.anabranch-3-0000000b".to_owned();
        server.borrow_mut().comes = Some(other.clone());
        sink.switch("d", NEW).unwrap();
        assert_eq!(indexes(&server), [("d.anabranch-2-0000000a".to_owned(), true), (other, false)]);
    }

    #[test]
    fn what_is_begun_again_and_what_readers_see_is_not_abandoned() {
        let server = serve(Server::default());
        let mut sink = sink("");
        sink.begin("d", OLD).unwrap();
        sink.begin("d", OLD).unwrap();
        let last = server.borrow().changes.last().cloned().unwrap();
        assert!(last.contains("d.anabranch-1-00000001/_delete_by_query"), "{last}");
        sink.switch("d", OLD).unwrap();
        sink.abandon("d", OLD).unwrap();
        sink.begin("d", NEW).unwrap();
        sink.abandon("d", NEW).unwrap();
        sink.abandon("d", NEW).unwrap();
        assert_eq!(indexes(&server), [("d.anabranch-1-00000001".to_owned(), true)]);
        assert_eq!(sink.switch("d", NEW).unwrap_err().code, "place-gone");
    }

    #[test]
    fn an_index_in_the_way_is_told_and_removed_only_when_that_is_asked_for() {
        let plain =
            || Server { indexes: BTreeMap::from([("d".to_owned(), BTreeSet::new())]), ..Server::default() };
        let server = serve(plain());
        let failure = sink("").begin("d", NEW).unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, "index-in-the-way"));
        assert!(
            failure.message.contains("`d` is an index") && failure.message.contains("replace_index = true")
        );
        assert_eq!(sink("").switch("d", NEW).unwrap_err().code, "place-gone");
        assert_eq!(indexes(&server), [("d".to_owned(), false)]);
        let server = serve(plain());
        let mut sink = sink(",\"replace_index\":true");
        assert!(sink.begin("d", NEW).unwrap());
        sink.switch("d", NEW).unwrap();
        assert_eq!(indexes(&server), [("d.anabranch-2-0000000a".to_owned(), true)]);
    }

    #[test]
    fn an_index_that_was_not_made_here_stays() {
        let made = |alias: &str| BTreeSet::from([alias.to_owned()]);
        let foreign = BTreeMap::from([
            ("mine".to_owned(), made("d")),
            ("d.anabranch-notes".to_owned(), made("x")),
            ("d.anabranch-1-0000000".to_owned(), made("x")),
            ("d.anabranch-1-0000000g".to_owned(), made("x")),
            ("d.anabranch-x-00000001".to_owned(), made("x")),
            ("dd.anabranch-1-00000001".to_owned(), made("dd")),
        ]);
        let server = serve(Server { indexes: foreign, ..Server::default() });
        let mut sink = sink("");
        assert!(sink.begin("d", NEW).unwrap());
        sink.switch("d", NEW).unwrap();
        let seen = indexes(&server);
        assert_eq!(seen.len(), 7, "{seen:?}");
        assert_eq!(seen.iter().filter(|(_, seen)| *seen).count(), 1);
    }

    #[test]
    fn an_index_that_may_not_be_removed_holds_up_nothing() {
        let server = serve(Server::default());
        let mut sink = sink("");
        sink.begin("d", OLD).unwrap();
        sink.switch("d", OLD).unwrap();
        sink.begin("d", NEW).unwrap();
        server.borrow_mut().forbidden = true;
        sink.switch("d", NEW).unwrap();
        let (old, new) = ("d.anabranch-1-00000001".to_owned(), "d.anabranch-2-0000000a".to_owned());
        assert_eq!(indexes(&server), [(old, false), (new, true)]);
    }
}
