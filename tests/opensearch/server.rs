//! A stand-in of the server: as much of its documented protocol as the sink speaks with.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    receiver::{Received, Reply},
    scene::SOON,
};

pub const KEY: &str = "ApiKey bWFya2VyLTQ3MTE6c2VjcmV0";

pub type Documents = BTreeMap<String, Value>;

#[derive(Default)]
pub struct Index {
    pub documents: Documents,
    pub aliases: BTreeSet<String>,
    /// What searches find: those of the last refresh.
    visible: Documents,
}

#[derive(Default)]
pub struct State {
    pub indexes: BTreeMap<String, Index>,
    /// Answers that come before any other.
    pub first: Vec<u16>,
    pub without_key: bool,
    /// What is done is not answered, and nothing is done any more, from the first request on that begins with this
    /// (`PUT /shop-products.`), or is [`PLACED`].
    pub hangs: Option<String>,
    /// Whether one was not answered.
    pub hung: bool,
    /// Requests that have this in their body wait for as long as it is here.
    pub holds: Option<String>,
    /// Requests that begin with this (`PUT /shop-products.`) are answered with this status, and nothing is done.
    pub refuses: Option<(String, u16)>,
    /// The actions of the requests that changed aliases.
    pub alias_changes: Vec<Value>,
    /// Ids whose documents may come to readers; none: all may.
    pub live: Option<BTreeSet<String>>,
    /// An index that takes no document of the title `odd`.
    pub refuses_odd: Option<String>,
    /// Whether it refuses the whole request for one.
    pub refuses_whole: bool,
    /// What readers must never see, and saw.
    pub violations: Vec<String>,
    /// What readers have seen of all ids that do not change.
    sealed: Documents,
}

#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<State>>);

/// See [`State::hangs`]: documents for an index that is built.
pub const PLACED: &str = "placed";

/// What readers search.
pub const READ: &str = "shop-products";

impl Server {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn answer(&self, request: &Received) -> Reply {
        let line = format!("{} {}", request.method, request.target);
        let body = String::from_utf8_lossy(&request.body);
        let is_held = || self.state().holds.as_ref().is_some_and(|part| body.contains(part));
        let until = Instant::now() + SOON;
        while is_held() && Instant::now() < until {
            tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(5)));
        }
        let mut state = self.state();
        if state.hung {
            return Reply::Hang;
        }
        let done = state.answer(request);
        state.look_as_a_reader(request);
        let concerns =
            |hangs: &String| line.starts_with(hangs) || (hangs == PLACED && line.contains("require_alias"));
        if state.hangs.as_ref().is_some_and(concerns) {
            state.hung = true;
            return Reply::Hang;
        }
        done
    }

    /// What an index has, or the one behind an alias.
    pub fn documents(&self, name: &str) -> Documents {
        let state = self.state();
        let found = state.behind(name);
        assert!(found.len() < 2, "{found:?}");
        found.first().map(|index| state.indexes[index].documents.clone()).unwrap_or_default()
    }

    /// All indexes, and those that readers see.
    pub fn indexes(&self) -> (Vec<String>, Vec<String>) {
        let state = self.state();
        (state.indexes.keys().cloned().collect(), state.behind(READ))
    }

    /// From now on readers must see what they see now, but for documents of these ids.
    pub fn seal(&self, live: impl IntoIterator<Item = u64>) {
        let mut seen = self.documents(READ);
        let live: BTreeSet<String> = live.into_iter().map(|id| id.to_string()).collect();
        seen.retain(|id, _| !live.contains(id));
        let mut state = self.state();
        (state.live, state.sealed) = (Some(live), seen);
    }

    pub fn unseal(&self) {
        let mut state = self.state();
        (state.live, state.sealed) = (None, Documents::new());
    }
}

fn plain(status: u16, body: Value) -> Reply {
    Reply::with_body(status, &body.to_string())
}

fn no_index() -> Reply {
    let error = json!({"type": "index_not_found_exception", "reason": "no such index"});
    plain(404, json!({"error": error, "status": 404}))
}

impl State {
    fn behind(&self, name: &str) -> Vec<String> {
        let is_meant = |index: &str, aliases: &BTreeSet<String>| match name.strip_suffix('*') {
            Some(start) => index.starts_with(start),
            None => index == name || aliases.contains(name),
        };
        let found = self.indexes.iter().filter(|(name, index)| is_meant(name, &index.aliases));
        found.map(|(name, _)| name.clone()).collect()
    }

    fn look_as_a_reader(&mut self, request: &Received) {
        if self.live.is_none() {
            return;
        }
        let what = format!("after {} {}", request.method, request.target);
        match self.behind(READ).as_slice() {
            [one] => {
                let documents = &self.indexes[one].documents;
                let missing = self.sealed.iter().filter(|(id, seen)| documents.get(*id) != Some(*seen));
                let missing: Vec<_> = missing.map(|(id, _)| id.as_str()).collect();
                if !missing.is_empty() {
                    let told = format!("{} of {} are missing {what}", missing.len(), self.sealed.len());
                    self.violations.push(told);
                }
            }
            others => self.violations.push(format!("readers see {others:?} {what}")),
        }
    }

    fn answer(&mut self, request: &Received) -> Reply {
        let key = request.headers.get("authorization").map(String::as_str);
        if key != Some(KEY) || self.without_key {
            let error = json!({"type": "security_exception", "reason": "missing authentication credentials"});
            return plain(401, json!({"error": error, "status": 401}));
        }
        if let Some(status) = self.first.pop() {
            let pause = vec![("retry-after", "1".to_owned())];
            return Reply::Status(status, pause, "{}".to_owned());
        }
        let line = format!("{} {}", request.method, request.target);
        if let Some((_, status)) = self.refuses.as_ref().filter(|(start, _)| line.starts_with(start)) {
            let error = json!({"type": "refused", "reason": "it is refused"});
            return plain(*status, json!({"error": error, "status": status}));
        }
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let body = || serde_json::from_slice::<Value>(&request.body).unwrap();
        match (request.method.as_str(), parts.as_slice()) {
            ("POST", ["_bulk"]) => self.bulk(request, query.contains("require_alias=true")),
            ("POST", ["_aliases"]) => self.change_aliases(body()),
            ("PUT", [name]) => {
                if !self.behind(name).is_empty() {
                    let error = json!({"type": "resource_already_exists_exception", "reason": "it exists"});
                    return plain(400, json!({"error": error, "status": 400}));
                }
                let aliases = body()["aliases"].as_object().unwrap().keys().cloned().collect();
                self.indexes.insert((*name).to_owned(), Index { aliases, ..Index::default() });
                plain(200, json!({"acknowledged": true}))
            }
            ("DELETE", [name]) => match self.indexes.remove(*name) {
                Some(_) => plain(200, json!({"acknowledged": true})),
                None => no_index(),
            },
            ("GET", [name, "_alias"]) => {
                let name = name.replace("%2A", "*");
                let found = self.behind(&name);
                if found.is_empty() && !name.ends_with('*') {
                    return no_index();
                }
                let told = found.into_iter().map(|index| {
                    let aliases = self.indexes[&index].aliases.iter().map(|alias| (alias.clone(), json!({})));
                    (index.clone(), json!({"aliases": aliases.collect::<serde_json::Map<_, _>>()}))
                });
                plain(200, Value::Object(told.collect()))
            }
            ("GET", [name, "_count"]) => {
                let found = self.behind(name);
                let count: usize = found.iter().map(|index| self.indexes[index].visible.len()).sum();
                plain(200, json!({"count": count}))
            }
            ("POST", [name, what]) => {
                let found = self.behind(name);
                let Some(index) = found.first().and_then(|index| self.indexes.get_mut(index)) else {
                    return no_index();
                };
                match *what {
                    "_refresh" => {
                        index.visible = index.documents.clone();
                        plain(200, json!({"_shards": {"total": 1, "successful": 1, "failed": 0}}))
                    }
                    "_delete_by_query" => {
                        let found: Vec<_> = index.visible.keys().cloned().collect();
                        found.iter().for_each(|id| drop(index.documents.remove(id)));
                        index.visible = index.documents.clone();
                        plain(200, json!({"deleted": found.len(), "version_conflicts": 0, "failures": []}))
                    }
                    other => panic!("nobody asks for {other}"),
                }
            }
            (method, _) => panic!("nobody asks for {method} {path}"),
        }
    }

    /// `POST /_aliases`: all actions, or none.
    fn change_aliases(&mut self, body: Value) -> Reply {
        let actions = body["actions"].as_array().unwrap();
        let one = |action: &Value| {
            let (kind, of) = action.as_object().unwrap().iter().next().unwrap();
            let text = |key: &str| of[key].as_str().unwrap_or_default().to_owned();
            (kind.clone(), text("index"), text("alias"))
        };
        if actions.iter().map(one).any(|(_, index, _)| !self.indexes.contains_key(&index)) {
            return no_index();
        }
        // An index that is removed makes room for an alias of its name, in whatever order they stand.
        for (kind, index, _) in actions.iter().map(one) {
            if kind == "remove_index" {
                self.indexes.remove(&index);
            }
        }
        for (kind, index, alias) in actions.iter().map(one) {
            match kind.as_str() {
                "add" => {
                    assert!(!self.indexes.contains_key(&alias), "an index has this name: {alias}");
                    self.indexes.get_mut(&index).unwrap().aliases.insert(alias);
                }
                "remove" => assert!(self.indexes.get_mut(&index).unwrap().aliases.remove(&alias)),
                "remove_index" => {}
                other => panic!("nobody asks for {other}"),
            }
        }
        self.alias_changes.push(body["actions"].clone());
        plain(200, json!({"acknowledged": true}))
    }

    /// `POST /_bulk`, as the reference has it.
    fn bulk(&mut self, request: &Received, require_alias: bool) -> Reply {
        assert_eq!(request.headers["content-type"], "application/x-ndjson");
        assert_eq!(request.body.last(), Some(&b'\n'), "the last line ends with a line break");
        let text = std::str::from_utf8(&request.body).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is_odd = text.contains("\"title\":\"odd\"") && !require_alias;
        if is_odd && self.refuses_whole {
            let error = json!({"type": "illegal_argument_exception", "reason": "the request is refused"});
            return plain(400, json!({"error": error, "status": 400}));
        }
        let mut items = Vec::new();
        while let Some(action) = lines.next() {
            let (kind, target) = action.as_object().unwrap().iter().next().unwrap();
            let (name, id) = (target["_index"].as_str().unwrap(), target["_id"].as_str().unwrap());
            let source = (kind == "index").then(|| lines.next().unwrap());
            let behind = self.behind(name);
            if behind.len() > 1 {
                let reason = format!("no write index is defined for alias [{name}]");
                let error = json!({"type": "illegal_argument_exception", "reason": reason});
                items.push(json!({kind.as_str(): {"status": 400, "error": error}}));
                continue;
            }
            let index = behind.first().cloned();
            let is_alias = index.as_ref().is_some_and(|index| index != name);
            let wants_alias = require_alias || target["require_alias"] == json!(true);
            if kind == "index" && wants_alias && !is_alias {
                let reason = format!("no such index [{name}] and [require_alias] request flag is [true]");
                let error = json!({"type": "index_not_found_exception", "reason": reason});
                items.push(json!({kind.as_str(): {"status": 404, "error": error}}));
                continue;
            }
            let live = self.live.as_ref().filter(|_| name == READ);
            if live.is_some_and(|live| !live.contains(id)) {
                self.violations.push(format!("what is read for a rebuild came to readers: {id}"));
            }
            let Some(source) = source else {
                let index = index.and_then(|index| self.indexes.get_mut(&index));
                let removed = index.and_then(|index| index.documents.remove(id));
                items.push(json!({"delete": {"status": if removed.is_some() { 200 } else { 404 }}}));
                continue;
            };
            let index = index.unwrap_or_else(|| name.to_owned());
            let odd = source["title"] == "odd" && self.refuses_odd.as_ref() == Some(&index);
            if source["title"] == "boom" || source["text"] == "refused" || odd {
                let cause =
                    json!({"type": "illegal_argument_exception", "reason": "For input string: \"boom\""});
                let error = json!({"type": "mapper_parsing_exception", "reason": "failed to parse field [title]", "caused_by": cause});
                items.push(json!({"index": {"status": 400, "error": error}}));
                continue;
            }
            // One is made where there is none.
            let before = self.indexes.entry(index).or_default().documents.insert(id.to_owned(), source);
            items.push(json!({"index": {"status": if before.is_some() { 200 } else { 201 }}}));
        }
        Reply::with_body(200, &json!({"items": items}).to_string())
    }
}
